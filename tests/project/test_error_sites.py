"""Each place at which the stream can stop names the table that it is about, or is argued here to be about all tables.

What is about one table suspends that table, and the others go on. What a sink raises is named where it is called: see
``sinks/table_errors.py`` and the test of its callers below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import ERROR_CLASSES, TransientError
from tests import ROOT

PACKAGE = ROOT / "airflow_provider_cdc"
#: What reads the binlog, decodes it, and applies it.
MODULES = [
    *sorted((PACKAGE / "mysql/binlog").rglob("*.py")),
    PACKAGE / "apply/batch_planner.py",
    PACKAGE / "mysql/positions/offset_walk.py",
    PACKAGE / "mysql/positions/xa_lookback.py",
    PACKAGE / "mysql/client/charsets.py",
    PACKAGE / "mysql/client/collations.py",
    PACKAGE / "mysql/keys/ownership.py",
    PACKAGE / "apply/task.py",
    PACKAGE / "apply/applier.py",
    PACKAGE / "stream/epoch.py",
    PACKAGE / "apply/follow_ddl.py",
]

#: Functions whose errors name a table.
OF_ONE_TABLE = {
    "of_table",
    "fail_table_at_event",
    "binlog_value_error",
    "_fail_mismatch",
    "of_one",
}
#: Functions whose errors are worth a retry of the whole stream, or are of the connection.
OF_A_RETRY = {"damaged_stream_error", "_translate_error", "_damaged_error in payload_unpacker.py"}
#: The type of a column that is not known here was refused when the table was planned, or its DDL was followed.
UNREACHABLE = {"unknown_type_error"}

_LOST = "what follows cannot be read without it, and nothing says whose it is"
_PLACE = "the place is wrong, or the history is another one: for all tables"
_INSIDE = "a fault of this software or of the whole stream, and not of one table's rows"
_EVENTS, _WALK = "mysql/binlog/events/", "mysql/binlog/walk/"
#: Why an error is about all tables, by module, function, and the first words of what it says.
OF_ALL: dict[tuple[str, str, str], str] = {
    (_EVENTS + "binlog_stream.py", "_skip_to", "there is no binlog event at "): _PLACE,
    (_EVENTS + "binlog_stream.py", "_check_file_start", "binlog file "): _PLACE,
    (_EVENTS + "event.py", "fail_at_event", ", at "): "its callers are places themselves",
    (
        _EVENTS + "statement_guard.py",
        "_check_indirect_writes",
        " logged by statement, at ",
    ): "what may not be seen may lead to any table",
    (_EVENTS + "payload.py", "open_payload", "unknown compression "): _LOST,
    (
        _EVENTS + "query.py",
        "decompress_mariadb",
        "damaged compressed event at ",
    ): "of a statement; for rows the caller names one",
    (_EVENTS + "query.py", "parse_query_event", "cut off statement at "): _LOST,
    (_EVENTS + "transactions.py", "read_transactions", "a compressed transaction without its end"): _LOST,
    (_EVENTS + "transactions.py", "feed", "transaction "): _LOST,
    (_EVENTS + "transactions.py", "_fail_unsupported", "the server reports lost events (INCIDENT)"): _LOST,
    (_EVENTS + "transactions.py", "_fail_unsupported", "rows of an unannounced table id "): _LOST,
    (_EVENTS + "transactions.py", "_fail_unsupported", "event type "): _LOST,
    (_EVENTS + "transactions.py", "_require_transaction", "an event outside of a transaction"): _PLACE,
    (_EVENTS + "transactions.py", "_begin_transaction", "transaction "): _LOST,
    (_EVENTS + "transactions.py", "_begin_transaction", "a GTID event that cannot be read ("): _LOST,
    (_EVENTS + "transactions.py", "_handle_xa_prepare", "a cut off XA_PREPARE event"): _LOST,
    (_EVENTS + "transactions.py", "_handle_table_map", "a cut off table map"): "before the table's name has been read",
    (_EVENTS + "transactions.py", "_handle_rows", "rows of an unannounced table id "): _LOST,
    (
        _WALK + "binlog_reader.py",
        "_next_step",
        "",
    ): "damage that came twice: no byte of it can be believed",
    (_WALK + "walker.py", "_handle_stop", "the transaction at "): _LOST,
    (_WALK + "walker.py", "_leave_payload", "a compressed transaction without its end, before "): _LOST,
    (_WALK + "walker.py", "_finish_transaction", "XA PREPARE of a transaction that did not begin as XA, at "): _LOST,
    ("apply/batch_planner.py", "find_batch_end", "the binlog of the server ends at "): _PLACE,
    ("mysql/positions/offset_walk.py", "_advance", " is in the binlog of the server before "): _PLACE,
    (
        "mysql/positions/xa_lookback.py",
        "prepared_rows",
        "XA transaction ",
    ): "the rows are gone, and so are the names of their tables",
    ("apply/task.py", "merge_manifests", "a batch range begins at "): _INSIDE,
    (
        "apply/applier.py",
        "check_snapshot_passed",
        "the stream had not passed the snapshot of ",
    ): "a failover, before any section",
    ("apply/applier.py", "apply", "a batch begins at "): _INSIDE,
    ("apply/applier.py", "_apply_tables", "a batch up to "): _INSIDE,
}


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """(function, called name, call) of each place that raises an error that it makes, or stops at an event."""
    parents: list[str] = []

    def visit(node: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
        is_function = isinstance(node, ast.FunctionDef)
        if is_function:
            parents.append(node.name)  # type: ignore[attr-defined]
        call = node.exc if isinstance(node, ast.Raise) else node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call):
            function = call.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if isinstance(node, ast.Raise) or name in ("fail_at_event", "fail_table_at_event", "_fail_mismatch"):
                yield parents[-1] if parents else "", name, call
        for child in ast.iter_child_nodes(node):
            yield from visit(child)
        if is_function:
            parents.pop()

    yield from visit(ast.parse(path.read_text()))


def sites() -> Iterator[tuple[str, str, str, ast.Call]]:
    for path in MODULES:
        for function, name, call in calls(path):
            yield str(path.relative_to(PACKAGE)), function, name, call


def is_settled(module: str, name: str, call: ast.Call) -> bool:
    """Whether an error names a table, is worth a retry, or is none of the project's own: its caller makes one of it."""
    if any(keyword.arg == "table" for keyword in call.keywords):
        return True
    names = {name, f"{name} in {Path(module).name}"}
    if names & (OF_ONE_TABLE | OF_A_RETRY | UNREACHABLE):
        return True
    if name == "fail_at_event":
        return False
    kind = ERROR_CLASSES.get(name)
    return kind is None or issubclass(kind, TransientError)


def first_words(call: ast.Call) -> str:
    texts = [node.value for arg in call.args for node in ast.walk(arg) if isinstance(node, ast.Constant)]
    return next((text for text in texts if isinstance(text, str)), "")


def test_each_error_is_of_one_table_or_argued_to_be_of_all() -> None:
    left = {(m, function, first_words(call)) for m, function, name, call in sites() if not is_settled(m, name, call)}
    assert left == OF_ALL.keys(), (sorted(left - OF_ALL.keys()), sorted(OF_ALL.keys() - left))


@pytest.mark.parametrize(
    ("module", "of"),
    [("apply/task.py", {"_writer", "writer"}), ("apply/applier.py", {"_apply_table"})],
    ids=["staging", "applying"],
)
def test_what_a_sink_raises_is_named_where_it_is_called(module: str, of: set[str]) -> None:
    """Each call of a writer, and each application of changes, lies in ``with name_table_in_errors(...)``."""
    tree = ast.parse((PACKAGE / module).read_text())
    named = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and "name_table_in_errors(" in ast.unparse(node.items[0].context_expr)
        for inner in ast.walk(node)
    }
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr in of or (isinstance(node.func.value, ast.Attribute) and node.func.value.attr in of))
    ]
    assert found
    assert [ast.unparse(node) for node in found if id(node) not in named] == []
