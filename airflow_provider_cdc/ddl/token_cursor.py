"""A cursor over the tokens of an ALTER TABLE, each of which must be expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from airflow_provider_cdc.ddl.tokens import (
    DEFAULT_QUOTING,
    Quoting,
    Token,
    parse_with_sqlglot,
    tokenize,
    version_comments,
    word_set,
)


class DdlNotFollowed(Exception):
    """A change of a table's definition that is not followed.

    :param reason: why; names the clause and the column, and never a value.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class StatementSession:
    """Properties of the session that wrote a statement.

    :param quoting: its quoting rules.
    :param real_as_float: whether REAL means FLOAT.
    :param standard_types: whether types have their usual meaning; not with ``sql_mode=ORACLE`` and the like.
    :param utf8mb4_collation: collation of utf8mb4 if a statement does not name one; ``None`` if unknown.
    """

    quoting: Quoting = DEFAULT_QUOTING
    real_as_float: bool = False
    standard_types: bool = True
    utf8mb4_collation: str | None = None


@dataclass(frozen=True)
class ServerTraits:
    """Properties of the server that executed a statement.

    :param mariadb: whether it is MariaDB rather than MySQL.
    :param version: version as numbers.
    :param default_collations: compiled-in default collation of each character set.
    :param charset_by_collation: character set of each collation.
    :param max_char_bytes: most bytes of a character, by character set.
    :param old_temporal_format: whether MariaDB gives new dates and times the format of its version 5.3.
    """

    mariadb: bool
    version: tuple[int, ...]
    default_collations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    charset_by_collation: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    max_char_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    old_temporal_format: bool = False


_NAME = re.compile(r"[A-Za-z_\u0080-\uffff][0-9A-Za-z_$\u0080-\uffff]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class TokenCursor:
    """The tokens of a statement, and a position among them.

    :raises DdlNotFollowed: if the tokens may differ from those that the server read.
    """

    def __init__(self, sql: str, session: StatementSession, server: ServerTraits) -> None:
        if any("\ud800" <= c <= "\udfff" for c in sql):
            raise DdlNotFollowed("its text has characters that cannot be decoded")
        if any(c > "\uffff" for c in sql):
            raise DdlNotFollowed("its text has a character that the catalog cannot hold")
        if "\0" in sql:
            raise DdlNotFollowed("its text has a zero byte")
        _check_version_comments(sql, session.quoting, server)
        self._tokens = list(tokenize(sql, session.quoting))
        self._quoting = session.quoting
        while self._tokens and self._tokens[-1] == Token(";"):
            self._tokens.pop()
        self.at = 0

    @property
    def at_end(self) -> bool:
        """Whether there are no more tokens."""
        return self.at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        """Return a token as a keyword or sign; empty for a quoted one and at the end."""
        at = self.at + ahead
        return self._tokens[at].keyword if at < len(self._tokens) else ""

    def accept(self, *keys: str) -> bool:
        """Consume these tokens if they are next."""
        if any(self.peek(i) != key for i, key in enumerate(keys)):
            return False
        self.at += len(keys)
        return True

    def accept_any(self, *keys: str) -> str:
        """Consume one of these tokens if it is next, and return it; empty if none is."""
        word = self.peek()
        return word if word in keys and self.accept(word) else ""

    def expect(self, key: str, where: str) -> None:
        """Consume a token that must be next."""
        if not self.accept(key):
            self.fail(where)

    def fail(self, where: str) -> NoReturn:
        """Reject the next token."""
        word = self.peek()
        raise DdlNotFollowed(f"{where}: {word if word in _SHOWABLE_KEYWORDS else 'a part of it'} is not followed")

    def expect_name(self, where: str) -> str:
        """Consume a name."""
        if not self.at_end:
            word = self._tokens[self.at]
            quoted = word.quote == "`" or (word.quote == '"' and self._quoting.ansi_quotes)
            if (quoted and word.text) or (not word.quote and _NAME.fullmatch(word.text)):
                self.at += 1
                return word.text
        raise DdlNotFollowed(f"{where}: a name is not understood")

    @property
    def at_string(self) -> bool:
        """Whether a string is next."""
        if self.at_end:
            return False
        quote = self._tokens[self.at].quote
        return quote == "'" or (quote == '"' and not self._quoting.ansi_quotes)

    def expect_string(self, where: str) -> str:
        """Consume a string, and return it without escapes."""
        if not self.at_string:
            raise DdlNotFollowed(f"{where}: a text is not understood")
        text = self._tokens[self.at].text
        self.at += 1
        if not self._quoting.backslash_escapes:
            return text
        return _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), text)

    def expect_table(self, where: str, default_database: str) -> tuple[str, str]:
        """Consume the name of a table, with or without its database."""
        name = self.expect_name(where)
        return (name, self.expect_name(where)) if self.accept(".") else (default_database, name)

    def expect_number(self, where: str) -> int:
        """Consume an unsigned integer."""
        word = self.peek()
        if not re.fullmatch(r"[0-9]{1,10}", word):
            raise DdlNotFollowed(f"{where}: a number is not understood")
        self.at += 1
        return int(word)

    def skip_brackets(self, where: str) -> None:
        """Consume a pair of parentheses and its content."""
        self.expect("(", where)
        depth = 1
        while depth:
            if self.at_end:
                raise DdlNotFollowed(f"{where}: a bracket is not closed")
            depth += (self.peek() == "(") - (self.peek() == ")")
            self.at += 1

    def text_since(self, first: int) -> str:
        """Return the text of the tokens from ``first`` up to here, with default quoting."""
        parts = []
        for word in self._tokens[first : self.at]:
            if word.quote == "`" or (word.quote == '"' and self._quoting.ansi_quotes):
                parts.append("`{}`".format(word.text.replace("`", "``")))
            elif word.quote:
                text = word.text
                if self._quoting.backslash_escapes:
                    text = _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), text)
                parts.append("'{}'".format(text.replace("\\", "\\\\").replace("'", "''")))
            elif word.text == "." and parts and parts[-1].isdigit():
                parts[-1] += "."
            elif word.text.isdigit() and parts and re.fullmatch(r"[0-9]+\.", parts[-1]):
                parts[-1] += word.text
            else:
                parts.append(word.text)
        return " ".join(parts)


#: Keywords that a reason may quote; any other word could be a name.
_SHOWABLE_KEYWORDS = word_set(
    "AUTO_INCREMENT AS CHECK COLUMN_FORMAT COMPRESSED CONVERT DATA DEFAULT DISCARD DROP ENCRYPTION "
    "ENGINE_ATTRIBUTE EXCHANGE GENERATED IGNORE IMPORT KEY NOT ON ORDER PARTITION PERIOD PRIMARY "
    "REF_SYSTEM_ID REFERENCES REMOVE RENAME REORGANIZE SERIAL SRID STORAGE SYSTEM TABLESPACE TRUNCATE "
    "UNION UNIQUE VIRTUAL WITH WITHOUT ZEROFILL"
)


def _check_version_comments(sql: str, quoting: Quoting, server: ServerTraits) -> None:
    """Check that the server executed the content of version comments, which is among the tokens."""
    for letter, digits in version_comments(sql, quoting):
        known = not digits or len(digits) in (5, 6)
        number = int(digits or 0)
        major, minor, patch = (*server.version, 0, 0, 0)[:3]
        executed = number <= major * 10000 + minor * 100 + patch
        if letter and not server.mariadb:
            executed = False
        if not letter and server.mariadb and 50700 <= number <= 99999:
            executed = False
        if not known or not executed:
            raise DdlNotFollowed("it has a comment that only other servers execute")


#: Nodes that sqlglot may find in statements that are followed.
_KNOWN_SQLGLOT_NODES = word_set(
    "AddConstraint Alter AlterColumn AlterIndex CharacterSetColumnConstraint CharacterSetProperty "
    "CheckColumnConstraint CollateColumnConstraint CollateProperty Column ColumnConstraint ColumnDef "
    "ColumnPosition ColumnPrefix CommentColumnConstraint Constraint Create CurrentTimestamp DataType "
    "DataTypeParam DefaultColumnConstraint Drop EngineProperty ForceProperty ForeignKey Identifier Index "
    "IndexColumnConstraint IndexConstraintOption IndexParameters InvisibleColumnConstraint Literal "
    "ModifyColumn RenameColumn Neg NotNullColumnConstraint Null OnProperty OnUpdateColumnConstraint Ordered Paren "
    "Property Reference RenameIndex RowFormatProperty Schema SchemaCommentProperty AutoIncrementProperty "
    "Table Var ZeroFillColumnConstraint Boolean"
)


@dataclass(frozen=True)
class ParsedClause:
    """A parsed clause, for the cross-check with sqlglot.

    :param text: a statement that has only this clause.
    :param label: human-readable name of the clause.
    :param sqlglot_name: sqlglot's name of it; empty for table options.
    :param column: name of the column that it defines, if any.
    :param has_expression: whether it contains an expression, in which any node is accepted.
    """

    text: str
    label: str
    sqlglot_name: str = ""
    column: str | None = None
    has_expression: bool = False


def cross_check_with_sqlglot(clauses: Sequence[ParsedClause]) -> None:
    """Compare the parsed clauses with the result of a second parser, sqlglot.

    sqlglot loses some information (REAL becomes FLOAT), so nothing is taken from it: it can only disagree.

    :raises DdlNotFollowed: if it disagrees, or does not understand a clause.
    """
    from sqlglot import exp

    for clause in clauses:
        try:
            trees = parse_with_sqlglot(clause.text)
        except Exception:  # sqlglot raises errors of many kinds
            raise DdlNotFollowed(f"{clause.label}: it is not understood by both parsers") from None
        tree = trees[0] if len(trees) == 1 else None
        name = None
        if isinstance(tree, exp.Alter):
            actions = tree.args.get("actions") or []
            name = type(actions[0]).__name__ if len(actions) == 1 else "" if not actions else None
        elif isinstance(tree, exp.Create | exp.Drop):
            name = type(tree).__name__
        if tree is None or name != clause.sqlglot_name:
            raise DdlNotFollowed(f"{clause.label}: it is not understood by both parsers")
        if not clause.has_expression and not {type(node).__name__ for node in tree.walk()} <= _KNOWN_SQLGLOT_NODES:
            raise DdlNotFollowed(f"{clause.label}: a part of it is not followed")
        if clause.column is not None:
            columns = list(tree.find_all(exp.ColumnDef))
            if len(columns) != 1 or columns[0].name != clause.column:
                raise DdlNotFollowed(f"{clause.label}: the two parsers read different columns")
