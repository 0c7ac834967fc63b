"""Which tables does a statement of the binlog change?

Rows travel in row events; statements travel as text: transaction brackets, DDL, and DML of sessions that log by
statement. The stream must stop when such a text changes a captured table, so this module errs on one side only: in
doubt a table counts as changed. MySQL's grammar puts the table first in almost every statement, and those places are
read from the words of the text; ``ALTER TABLE``, which names tables in other places too, is left to sqlglot, and
where sqlglot does not understand it every name in the text counts.

Known limit: a statement-format INSERT may change further tables through triggers, stored functions or cascades.
Only its own target can be seen in the text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal[
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
Table = tuple[str, str]


@dataclass(frozen=True)
class Statement:
    """What a statement does to tables.

    :param kind: its part in a transaction, or what it changes.
    :param tables: (database, table) pairs that it changes or may change, **in lower case**: compare without case.
    :param databases: databases that it drops, in lower case.
    :param xid: of an XA statement, the transaction's name as :func:`xid_text` writes it.
    :param anything: whether it may change any table at all (a stored routine was called).
    :param what: the statement's first words, for messages; never values or names.
    :param emptied: the (database, table) that has no rows behind a TRUNCATE or a CREATE TABLE, spelled as in the
        statement.
    """

    kind: Kind
    tables: frozenset[Table] = frozenset()
    databases: frozenset[str] = frozenset()
    xid: str | None = None
    anything: bool = False
    what: str = ""
    emptied: Table | None = None


class _Word(NamedTuple):
    """A word of the text: a keyword or name, or one sign."""

    text: str
    #: Quote character of a quoted name or string, or the empty text.
    quote: str = ""

    @property
    def key(self) -> str:
        """The word as a keyword: upper case, nothing for quoted ones."""
        return "" if self.quote else self.text.upper()

    @property
    def is_name(self) -> bool:
        # A double-quoted word is a string, or with ANSI_QUOTES a name: both readings are kept.
        return self.quote in ('"', "`") or (not self.quote and (self.text[0] in "_$" or self.text[0].isalnum()))


_LEXER = re.compile(
    r"""
      (?P<tick>`(?:[^`]|``)*`)
    | (?P<string>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
    | (?P<version>/\*M?!\d*)             # the content of a version comment is executed
    | (?P<comment>/\*.*?\*/ | --(?=\s|\Z)[^\n]* | \#[^\n]*)
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<sign>\*/|\S)
    """,
    re.VERBOSE | re.DOTALL,
)

# Statements that change no rows and no row layout. ANALYZE, OPTIMIZE and REPAIR keep every row as it is.
_HARMLESS = frozenset(
    [
        "ANALYZE",
        "BINLOG",
        "CACHE",
        "CHECK",
        "CHECKSUM",
        "FLUSH",
        "GRANT",
        "HELP",
        "INSTALL",
        "LOCK",
        "OPTIMIZE",
        "RELEASE",
        "REPAIR",
        "RESET",
        "REVOKE",
        "SET",
        "SHOW",
        "UNINSTALL",
        "UNLOCK",
        "USE",
    ]
)
# Objects of CREATE, ALTER and DROP. All but tables and databases are harmless for rows.
_OBJECTS = frozenset(
    [
        "DATABASE",
        "EVENT",
        "FUNCTION",
        "INDEX",
        "INSTANCE",
        "LIBRARY",
        "LOGFILE",
        "PROCEDURE",
        "REFERENCE",
        "RESOURCE",
        "ROLE",
        "SCHEMA",
        "SEQUENCE",
        "SERVER",
        "TABLE",
        "TABLES",
        "TABLESPACE",
        "TRIGGER",
        "USER",
        "VIEW",
    ]
)
_INSERT_MODIFIERS = frozenset(["LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"])


def classify(sql: str, default_database: str) -> Statement:
    """Say what a statement of the binlog changes. Never raises, however odd the text.

    :param sql: text of the statement.
    :param default_database: database of names without one.
    :returns: see :class:`Statement`; names are lower case.
    """
    words = list(_words(sql))
    if [word.key for word in words[:2]] == ["SET", "STATEMENT"]:
        # MariaDB: SET STATEMENT variable = value, ... FOR what is executed.
        at = next((i for i, word in enumerate(words) if word.key == "FOR"), len(words))
        words = words[at + 1 :]
    keys = [word.key for word in words[:40]]
    verb = keys[0] if keys else ""
    second = keys[1] if len(keys) > 1 else ""
    default = default_database.lower()

    if verb == "BEGIN" or (verb == "START" and second == "TRANSACTION"):
        return Statement("begin", what=verb)
    if verb == "COMMIT":
        return Statement("commit", what=verb)
    if verb == "ROLLBACK":
        return Statement("rollback_to" if "TO" in keys else "rollback", what=verb)
    if verb == "SAVEPOINT":
        return Statement("savepoint", what=verb)
    if verb == "XA":
        return _xa(second, words[2:])
    if not words or verb in _HARMLESS:
        return Statement("harmless", what=verb)
    if verb in {"CREATE", "ALTER", "DROP"}:
        return _ddl(verb, sql, words, keys, default_database)
    if verb == "RENAME":
        if second == "USER":
            return Statement("harmless", what="RENAME USER")
        return Statement("ddl", frozenset(_listed(words[2:], default)), what="RENAME TABLE")
    if verb == "TRUNCATE":
        rest = words[2:] if second == "TABLE" and len(words) > 2 else words[1:]
        emptied = _spelled(rest, default_database)
        return Statement("ddl", frozenset(_listed(rest, default)), what="TRUNCATE TABLE", emptied=emptied)
    if verb in {"INSERT", "REPLACE"}:
        at = next((i for i, word in enumerate(words[1:], 1) if word.key not in _INSERT_MODIFIERS), len(words))
        return Statement("dml", frozenset(_first(words[at:], default)), what=verb)
    if verb in {"UPDATE", "DELETE", "LOAD", "WITH", "IMPORT"}:
        return Statement("dml", frozenset(_mentioned(words, default)), what=verb)
    if verb in {"SELECT", "DO", "CALL", "VALUES", "TABLE"} or verb == "(":
        # By statement a stored function that writes is logged as the SELECT or DO that called it.
        return Statement("dml", frozenset(_mentioned(words, default)), anything=True, what=verb)
    return Statement("ddl", frozenset(_mentioned(words, default)), what=verb if verb.isalpha() else "unknown statement")


def xid_text(format_id: int, gtrid: bytes, bqual: bytes) -> str:
    """The name of an XA transaction, one text for events and statements: ``X'6162',X'',1``."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"


def _xa(verb: str, rest: Sequence[_Word]) -> Statement:
    kinds: dict[str, Kind] = {
        "START": "xa_start",
        "BEGIN": "xa_start",
        "END": "xa_end",
        "COMMIT": "xa_commit",
        "ROLLBACK": "xa_rollback",
    }
    if verb not in kinds:
        return Statement("harmless", what=f"XA {verb}")
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
        is_hex = word.key == "X"
    gtrid, bqual = [*parts, b"", b""][:2]
    return Statement(kinds[verb], xid=xid_text(format_id, gtrid, bqual), what=f"XA {verb}")


def _ddl(verb: str, sql: str, words: list[_Word], keys: list[str], default_database: str) -> Statement:
    default = default_database.lower()
    at = next((i for i, key in enumerate(keys) if key in _OBJECTS), None)
    if at is None:
        return Statement("ddl", frozenset(_mentioned(words, default)), what=verb)
    what = f"{verb} {keys[at].removesuffix('S') if keys[at] == 'TABLES' else keys[at]}"
    if keys[at] in {"DATABASE", "SCHEMA"}:
        if verb != "DROP":
            return Statement("harmless", what=what)
        names = [word for word in words[at + 1 :] if word.is_name and word.key not in {"IF", "EXISTS"}]
        return Statement("ddl", databases=frozenset(name.text.lower() for name in names[:1]), what=what)
    if keys[at] not in {"TABLE", "TABLES"} or "TEMPORARY" in keys[:at]:
        return Statement("harmless", what=what)
    rest = words[at + 1 :]
    if verb == "CREATE":
        # If the table is there, IF NOT EXISTS does nothing; if not, the DROP or RENAME before it has been seen.
        if [word.key for word in rest[:3]] == ["IF", "NOT", "EXISTS"]:
            return Statement("harmless", what=what)
        # Without OR REPLACE it says that there was no such table: the reading began before, or the DROP was not logged.
        emptied = None if "REPLACE" in keys[:at] else _spelled(rest, default_database)
        return Statement("ddl", frozenset(_first(rest, default)), what=what, emptied=emptied)
    if verb == "DROP":
        rest = rest[2:] if [word.key for word in rest[:2]] == ["IF", "EXISTS"] else rest
        return Statement("ddl", frozenset(_listed(rest, default)), what=what)
    others = _altered(sql, default)
    tables = set(_mentioned(words, default)) if others is None else {*_first(rest, default), *others}
    return Statement("ddl", frozenset(tables), what=what)


def _altered(sql: str, default: str) -> set[Table] | None:
    """Tables of an ALTER TABLE without those that a foreign key refers to; ``None`` if it is not understood."""
    import sqlglot
    from sqlglot import exp

    text = "".join(_executed(sql))
    logger = logging.getLogger("sqlglot")
    disabled, logger.disabled = logger.disabled, True  # it would log the statement, which may hold secrets
    try:
        tree = sqlglot.parse_one(text, read="mysql")
        if not isinstance(tree, exp.Alter):
            return None
        return {
            (table.db.lower() or default, table.name.lower())
            for table in tree.find_all(exp.Table)
            if table.find_ancestor(exp.Reference) is None
        }
    except Exception:  # whatever it stumbles over, the caller then counts every name
        return None
    finally:
        logger.disabled = disabled


def _words(sql: str) -> Iterator[_Word]:
    for match in _LEXER.finditer(sql):
        text = match[0]
        if match["tick"]:
            yield _Word(text[1:-1].replace("``", "`"), "`")
        elif match["string"]:
            yield _Word(text[1:-1].replace(text[0] * 2, text[0]), text[0])
        elif match["word"] or (match["sign"] and text != "*/"):
            yield _Word(text)


def _executed(sql: str) -> Iterator[str]:
    """The text with version comments opened and other comments taken out."""
    for match in _LEXER.finditer(sql):
        if match["version"] or match["comment"] or match[0] == "*/":
            yield " "
        else:
            yield match[0]
            yield " " if match["word"] else ""


def _chains(words: Sequence[_Word]) -> Iterator[tuple[int, list[str]]]:
    """Names joined by dots, with the index of the word behind each."""
    at = 0
    while at < len(words):
        if not words[at].is_name:
            at += 1
            continue
        chain = [words[at].text]
        at += 1
        while at + 1 < len(words) and words[at].text == "." and not words[at].quote and words[at + 1].is_name:
            chain.append(words[at + 1].text)
            at += 2
        yield at, chain


def _table(chain: list[str], default: str) -> Table:
    return (chain[0].lower(), chain[1].lower()) if len(chain) > 1 else (default, chain[0].lower())


def _spelled(words: Sequence[_Word], default_database: str) -> Table:
    """The table that the words begin with, spelled as there."""
    chain = next((chain for _, chain in _chains(words)), [""])
    return (chain[0], chain[1]) if len(chain) > 1 else (default_database, chain[0])


def _first(words: Sequence[_Word], default: str) -> Iterator[Table]:
    """The table that the words begin with."""
    for _, chain in _chains(words):
        yield _table(chain, default)
        return


def _listed(words: Sequence[_Word], default: str) -> Iterator[Table]:
    """Every name of a list of tables (keywords between them do no harm)."""
    for _, chain in _chains(words):
        yield _table(chain, default)


def _mentioned(words: Sequence[_Word], default: str) -> Iterator[Table]:
    """Every table that the words could name: of ``a.b`` both table b of a, and table a with a column b."""
    for _, chain in _chains(words):
        yield _table(chain, default)
        yield default, chain[0].lower()
