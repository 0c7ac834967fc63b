"""Determine which tables a statement in the binlog changes.

Rows travel in row events. Statements travel as text: transaction brackets, DDL, and DML of sessions that log by
statement. The stream must stop when such a statement changes a captured table, so this module errs on one side only: if
in doubt, a table counts as changed. In almost every statement, MySQL's grammar puts the table first, and the names
there are read from the tokens. ``ALTER TABLE`` names tables in other places too, so it is left to sqlglot; if sqlglot
does not understand it, every name in the text counts.

Changes through views, triggers, stored functions and cascades are not visible in the text: see
:mod:`airflow_provider_cdc.ddl.indirect_writes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from airflow_provider_cdc.ddl.partition_parser import only_rearranges_partitions
from airflow_provider_cdc.ddl.tokens import (
    DEFAULT_QUOTING,
    Quoting,
    Token,
    executed_text,
    parse_with_sqlglot,
    tokenize,
    version_comments,
    word_set,
)
from airflow_provider_cdc.model.table_names import TableName, fold_name

StatementKind = Literal[
    "begin",
    "commit",
    "rollback",
    "rollback_to",
    "savepoint",
    "xa_start",
    "xa_end",
    "xa_commit",
    "xa_rollback",
    "dml",
    "ddl",
    "harmless",
]


@dataclass(frozen=True)
class Statement:
    """What a statement does to tables.

    :param kind: its role in a transaction, or what it changes.
    :param changed_tables: (database, table) pairs that it changes or may change, folded by
        :func:`~airflow_provider_cdc.model.table_names.fold_name`.
    :param dropped_databases: databases that it drops, folded likewise.
    :param xid: for an XA statement, the name of the transaction in the form of :func:`format_xid`.
    :param may_change_any_table: whether it may change any table at all, because it may call a stored routine.
    :param mentioned_names: for a statement that may call stored functions, everything that its tokens could name.
    :param dropped_index: folded name of the index that a DROP INDEX (or CREATE OR REPLACE INDEX) drops; such a
        statement does not change rows.
    :param summary: the statement's first words, for messages; never values or names.
    :param emptied_table: the (database, table) that has no rows after a TRUNCATE or a CREATE TABLE, spelled as in the
        statement.
    """

    kind: StatementKind
    changed_tables: frozenset[TableName] = frozenset()
    dropped_databases: frozenset[str] = frozenset()
    xid: str | None = None
    may_change_any_table: bool = False
    mentioned_names: frozenset[TableName] = frozenset()
    dropped_index: str = ""
    summary: str = ""
    emptied_table: TableName | None = None


# Statements that change no rows and no row layout. OPTIMIZE and REPAIR keep every row as it is.
_HARMLESS_VERBS = word_set(
    "BINLOG CACHE CHECK CHECKSUM FLUSH GRANT HELP INSTALL LOCK OPTIMIZE RELEASE REPAIR RESET REVOKE SET SHOW "
    "UNINSTALL UNLOCK USE"
)
# Objects of CREATE, ALTER and DROP. All but tables and databases are harmless for rows.
_OBJECT_KEYWORDS = word_set(
    "DATABASE EVENT FUNCTION INDEX INSTANCE LIBRARY LOGFILE PACKAGE PROCEDURE REFERENCE RESOURCE ROLE SCHEMA SEQUENCE "
    "SERVER TABLE TABLES TABLESPACE TRIGGER USER VIEW"
)
_INSERT_MODIFIERS = word_set("LOW_PRIORITY DELAYED HIGH_PRIORITY IGNORE INTO")


#: After ANALYZE: a table is analyzed. Otherwise (MariaDB), a statement is executed and its execution plan is shown.
_ANALYZE_TABLE_KEYWORDS = word_set("TABLE TABLES LOCAL NO_WRITE_TO_BINLOG")


def classify_statement(sql: str, default_database: str, quoting: Quoting = DEFAULT_QUOTING) -> Statement:
    """Determine what a statement in the binlog changes. Never raises, however odd the text.

    :param sql: text of the statement.
    :param default_database: database of names without one.
    :param quoting: quoting rules of the session.
    :returns: the statement, with folded names.
    """
    tokens = list(tokenize(sql, quoting))
    while [word.keyword for word in tokens[:2]] == ["SET", "STATEMENT"]:
        tokens = _after_set_statement(tokens)
    keys = [word.keyword for word in tokens[:40]]
    verb = keys[0] if keys else ""
    second = keys[1] if len(keys) > 1 else ""
    default = fold_name(default_database)

    if verb == "BEGIN" or (verb == "START" and second == "TRANSACTION"):
        return Statement("begin", summary=verb)
    if verb == "COMMIT":
        return Statement("commit", summary=verb)
    if verb == "ROLLBACK":
        return Statement("rollback_to" if "TO" in keys else "rollback", summary=verb)
    if verb == "SAVEPOINT":
        return Statement("savepoint", summary=verb)
    if verb == "XA":
        return _classify_xa(second, tokens[2:])
    if not tokens or verb in _HARMLESS_VERBS or (verb == "ANALYZE" and second in _ANALYZE_TABLE_KEYWORDS):
        return Statement("harmless", summary=verb)
    if verb in {"CREATE", "ALTER", "DROP"}:
        return _classify_ddl(verb, sql, tokens, keys, default_database, quoting)
    if verb == "RENAME":
        if second == "USER":
            return Statement("harmless", summary="RENAME USER")
        return Statement("ddl", frozenset(_all_tables(tokens[2:], default)), summary="RENAME TABLE")
    if verb == "TRUNCATE":
        rest = tokens[2:] if second == "TABLE" and len(tokens) > 2 else tokens[1:]
        emptied = _first_table_as_spelled(rest, default_database)
        return Statement("ddl", frozenset(_all_tables(rest, default)), summary="TRUNCATE TABLE", emptied_table=emptied)
    if verb in {"INSERT", "REPLACE"}:
        at = next((i for i, word in enumerate(tokens[1:], 1) if word.keyword not in _INSERT_MODIFIERS), len(tokens))
        named = frozenset(_possible_tables(tokens, default))
        return Statement("dml", frozenset(_first_table(tokens[at:], default)), mentioned_names=named, summary=verb)
    if verb in {"UPDATE", "DELETE", "LOAD", "WITH", "IMPORT", "ANALYZE", "EXPLAIN", "DESCRIBE", "DESC"}:
        # MariaDB's ANALYZE and MySQL's EXPLAIN ANALYZE execute what they explain.
        named = frozenset(_possible_tables(tokens, default))
        sure = not any(version_comments(sql, quoting))
        return Statement("dml", frozenset(_dml_targets(tokens, default, sure)), mentioned_names=named, summary=verb)
    if verb in {"SELECT", "DO", "CALL", "VALUES", "TABLE"} or verb == "(":
        # With statement logging, a stored function that writes is logged as the SELECT or DO that called it.
        named = frozenset(_possible_tables(tokens, default))
        return Statement("dml", named, may_change_any_table=True, mentioned_names=named, summary=verb)
    return Statement(
        "ddl", frozenset(_possible_tables(tokens, default)), summary=verb if verb.isalpha() else "unknown statement"
    )


def _dml_targets(tokens: list[Token], default: str, is_fully_executed: bool) -> Iterator[TableName]:
    """Yield the tables that a LOAD DATA, UPDATE or DELETE may write to; for other DML, everything that it mentions.

    LOAD DATA names its table after ``INTO TABLE``, the others before ``SET`` or ``WHERE``. What follows is only read,
    and a column there may have the name of a captured table.

    :param is_fully_executed: whether all tokens are executed. If not, everything that is mentioned counts.
    """
    keys = [word.keyword for word in tokens] if is_fully_executed else [""]
    if keys[0] == "LOAD":
        into = next((i for i, pair in enumerate(pairwise(keys)) if pair == ("INTO", "TABLE")), None)
        return _possible_tables(tokens, default) if into is None else _first_table(tokens[into + 2 :], default)
    end, depth = {"UPDATE": "SET", "DELETE": "WHERE"}.get(keys[0]), 0
    for i, key in enumerate(keys):
        depth += (key == "(") - (key == ")")
        if key == end and depth == 0:
            return _possible_tables(tokens[:i], default)
    return _possible_tables(tokens, default)


def mentioned_names(sql: str, default_database: str) -> frozenset[TableName]:
    """Return everything that the tokens of a text could name, folded."""
    return frozenset(_possible_tables(list(tokenize(sql, DEFAULT_QUOTING)), fold_name(default_database)))


def _after_set_statement(tokens: list[Token]) -> list[Token]:
    """Return the statement inside MariaDB's ``SET STATEMENT variable = value, ... FOR statement``."""
    depth = 0
    for i, word in enumerate(tokens):
        depth += (word.keyword == "(") - (word.keyword == ")")
        if word.keyword == "FOR" and depth <= 0:
            return tokens[i + 1 :]
    return []


def format_xid(format_id: int, gtrid: bytes, bqual: bytes) -> str:
    """Return the name of an XA transaction in one form for events and statements: ``X'6162',X'',1``."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"


def _classify_xa(verb: str, rest: Sequence[Token]) -> Statement:
    kinds: dict[str, StatementKind] = {
        "START": "xa_start",
        "BEGIN": "xa_start",
        "END": "xa_end",
        "COMMIT": "xa_commit",
        "ROLLBACK": "xa_rollback",
    }
    if verb not in kinds:
        return Statement("harmless", summary=f"XA {verb}")
    # XA COMMIT X'6162',X'',1 [ONE PHASE]: hexadecimal strings (or plain ones) and the format number.
    parts: list[bytes] = []
    format_id, is_hex = 1, False
    for word in rest:
        if word.quote == "'":
            try:
                parts.append(bytes.fromhex(word.text) if is_hex else word.text.encode("utf-8", "surrogateescape"))
            except ValueError:
                parts.append(word.text.encode("utf-8", "surrogateescape"))
        elif word.text.isdigit():
            format_id = int(word.text)
        is_hex = word.keyword == "X"
    gtrid, bqual = [*parts, b"", b""][:2]
    return Statement(kinds[verb], xid=format_xid(format_id, gtrid, bqual), summary=f"XA {verb}")


def _classify_ddl(
    verb: str, sql: str, tokens: list[Token], keys: list[str], default_database: str, quoting: Quoting
) -> Statement:
    default = fold_name(default_database)
    at = next((i for i, key in enumerate(keys) if key in _OBJECT_KEYWORDS), None)
    if at is None:
        return Statement("ddl", frozenset(_possible_tables(tokens, default)), summary=verb)
    what = f"{verb} {keys[at].removesuffix('S') if keys[at] == 'TABLES' else keys[at]}"
    if keys[at] in {"DATABASE", "SCHEMA"}:
        if verb != "DROP" and "REPLACE" not in keys[:at]:
            return Statement("harmless", summary=what)
        names = [word for word in tokens[at + 1 :] if word.is_name and word.keyword not in {"IF", "EXISTS"}]
        return Statement("ddl", dropped_databases=frozenset(fold_name(name.text) for name in names[:1]), summary=what)
    rest = tokens[at + 1 :]
    if keys[at] == "INDEX" and (verb == "DROP" or "REPLACE" in keys[:at]):
        return _classify_drop_index(rest, default, what)
    # MariaDB's sequences are tables: CREATE OR REPLACE SEQUENCE may drop any table.
    is_table = keys[at] in {"TABLE", "TABLES"} or (keys[at] == "SEQUENCE" and "REPLACE" in keys[:at])
    if not is_table or "TEMPORARY" in keys[:at]:
        return Statement("harmless", summary=what)
    if verb == "CREATE":
        filled = _fills_table(rest)
        if [word.keyword for word in rest[:3]] == ["IF", "NOT", "EXISTS"]:
            # If the table exists, nothing happens; if not, an earlier DROP or RENAME has been seen.
            if not filled:
                return Statement("harmless", summary=what)
            rest = rest[3:]
        # Without OR REPLACE, no such table existed: reading began before that, or the DROP was not logged.
        emptied = None if filled or "REPLACE" in keys[:at] else _first_table_as_spelled(rest, default_database)
        named = frozenset(_possible_tables(tokens, default)) if filled else frozenset[TableName]()
        return Statement(
            "ddl", frozenset(_first_table(rest, default)), mentioned_names=named, summary=what, emptied_table=emptied
        )
    if verb == "DROP":
        rest = rest[2:] if [word.keyword for word in rest[:2]] == ["IF", "EXISTS"] else rest
        return Statement("ddl", frozenset(_all_tables(rest, default)), summary=what)
    if "IGNORE" not in keys[:at] and only_rearranges_partitions(_after_table_name(rest)):
        return Statement("harmless", summary=f"{what} ... PARTITION")
    others = _altered_tables(sql, default, quoting)
    tables = set(_possible_tables(tokens, default)) if others is None else {*_first_table(rest, default), *others}
    return Statement("ddl", frozenset(tables), summary=what)


def _after_table_name(rest: list[Token]) -> list[Token]:
    """Return the tokens after the name of an altered table; none if they do not begin with a name."""
    rest = rest[2:] if [word.keyword for word in rest[:2]] == ["IF", "EXISTS"] else rest
    return rest[next(_dotted_names(rest), (0, []))[0] :] if rest and rest[0].is_name else []


def _classify_drop_index(rest: list[Token], default: str, what: str) -> Statement:
    """Classify a DROP INDEX, or MariaDB's CREATE OR REPLACE INDEX, which drops an index of the same name."""
    on = next((i for i, word in enumerate(rest) if word.keyword == "ON"), len(rest))
    named = [word for word in rest[:on] if word.is_name and word.keyword not in {"IF", "EXISTS"}]
    tables = frozenset(_first_table(rest[on + 1 :], default))
    if not named or not tables:
        return Statement("ddl", frozenset(_possible_tables(rest, default)), summary=what)
    return Statement("ddl", tables, dropped_index=fold_name(named[0].text), summary=what)


def _fills_table(rest: list[Token]) -> bool:
    """Return whether a CREATE TABLE fills the table; with statement logging, those rows are not in the binlog.

    If the rows are logged as row events, the server omits their source from the statement.
    """
    keys = [word.keyword for word in rest]
    return any(
        key in ("SELECT", "TABLE") or (key == "VALUES" and after in ("ROW", "("))
        for key, after in zip(keys, [*keys[1:], ""], strict=True)
    )


def _altered_tables(sql: str, default: str, quoting: Quoting) -> set[TableName] | None:
    """Return the tables of an ALTER TABLE, except those that foreign keys refer to; ``None`` if it cannot be parsed."""
    from sqlglot import exp

    if quoting != DEFAULT_QUOTING:
        return None
    try:
        tree = parse_with_sqlglot("".join(executed_text(sql)))[0]
        if not isinstance(tree, exp.Alter):
            return None
        return {
            (fold_name(table.db) or default, fold_name(table.name))
            for table in tree.find_all(exp.Table)
            if table.find_ancestor(exp.Reference) is None
        }
    except Exception:  # on any failure, the caller counts every name
        return None


def _dotted_names(tokens: Sequence[Token]) -> Iterator[tuple[int, list[str]]]:
    """Yield names joined by dots, with the index of the token after each."""
    at = 0
    while at < len(tokens):
        if not tokens[at].is_name:
            at += 1
            continue
        chain = [tokens[at].text]
        at += 1
        while at + 1 < len(tokens) and tokens[at].text == "." and not tokens[at].quote and tokens[at + 1].is_name:
            chain.append(tokens[at + 1].text)
            at += 2
        yield at, chain


def _resolve_name(chain: list[str], default: str) -> TableName:
    return (fold_name(chain[0]), fold_name(chain[1])) if len(chain) > 1 else (default, fold_name(chain[0]))


def _first_table_as_spelled(tokens: Sequence[Token], default_database: str) -> TableName:
    """Return the table that the tokens begin with, in its original spelling."""
    chain = next((chain for _, chain in _dotted_names(tokens)), [""])
    return (chain[0], chain[1]) if len(chain) > 1 else (default_database, chain[0])


def _first_table(tokens: Sequence[Token], default: str) -> Iterator[TableName]:
    """Yield the table that the tokens begin with."""
    for _, chain in _dotted_names(tokens):
        yield _resolve_name(chain, default)
        return


def _all_tables(tokens: Sequence[Token], default: str) -> Iterator[TableName]:
    """Yield every name in a list of tables; keywords between them do no harm."""
    for _, chain in _dotted_names(tokens):
        yield _resolve_name(chain, default)


def _possible_tables(tokens: Sequence[Token], default: str) -> Iterator[TableName]:
    """Yield every table that the tokens could name: ``a.b`` is table b of a, or column b of table a."""
    for _, chain in _dotted_names(tokens):
        yield _resolve_name(chain, default)
        yield default, fold_name(chain[0])
