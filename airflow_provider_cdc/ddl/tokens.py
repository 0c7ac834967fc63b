"""The text of a statement as tokens: names, strings, keywords and signs, as a server would read them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

_LEXER = r"""
      (?P<tick>`(?:[^`]|``)*`)
    | (?P<string>%s | %s)
    | (?P<version>/\*M?!\d*)             # the content of a version comment is executed
    | (?P<comment>/\*.*?\*/ | --(?=\s|\Z)[^\n]* | \#[^\n]*)
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<sign>\*/|\S)
    """
_ESCAPED, _PLAIN = r"%s(?:[^%s\\]|\\.|%s)*%s", r"%s(?:[^%s]|%s)*%s"


@dataclass(frozen=True)
class Quoting:
    """Quoting rules of the session that wrote a statement.

    :param backslash_escapes: whether a backslash in a string escapes the next character: not with
        ``NO_BACKSLASH_ESCAPES``.
    :param ansi_quotes: whether a double-quoted word is a name (``ANSI_QUOTES``), in which a backslash has no special
        meaning.
    """

    backslash_escapes: bool = True
    ansi_quotes: bool = False


#: Quoting rules of the server's default sql_mode.
DEFAULT_QUOTING = Quoting()


class Token(NamedTuple):
    """A keyword, a name, a string or one sign."""

    text: str
    #: Quote character of a quoted name or string; otherwise empty.
    quote: str = ""

    @property
    def keyword(self) -> str:
        """The token as a keyword in upper case; empty if it is quoted."""
        return "" if self.quote else self.text.upper()

    @property
    def is_name(self) -> bool:
        """Whether it may be a name. A double-quoted word is a string, or a name with ANSI_QUOTES."""
        if self.quote:
            return self.quote != "'"
        return self.text[0] in "_$" or self.text[0].isalnum() or not self.text[0].isascii()


@cache
def _lexer(quoting: Quoting) -> re.Pattern[str]:
    single = (_ESCAPED if quoting.backslash_escapes else _PLAIN) % ("'", "'", "''", "'")
    double = (_ESCAPED if quoting.backslash_escapes and not quoting.ansi_quotes else _PLAIN) % ('"', '"', '""', '"')
    return re.compile(_LEXER % (single, double), re.VERBOSE | re.DOTALL)


def tokenize(sql: str, quoting: Quoting) -> Iterator[Token]:
    """Yield the tokens of a statement, including the content of version comments but no other comments."""
    for match in _lexer(quoting).finditer(sql):
        text = match[0]
        if match["tick"]:
            yield Token(text[1:-1].replace("``", "`"), "`")
        elif match["string"]:
            yield Token(text[1:-1].replace(text[0] * 2, text[0]), text[0])
        elif match["word"] or (match["sign"] and text != "*/"):
            yield Token(text)


def version_comments(sql: str, quoting: Quoting) -> Iterator[tuple[str, str]]:
    """Yield letter and number of each version comment: ``M`` for MariaDB only; either may be empty."""
    for match in _lexer(quoting).finditer(sql):
        if match["version"]:
            letter, _, digits = match["version"][2:].partition("!")
            yield letter, digits


def executed_text(sql: str) -> Iterator[str]:
    """Yield the text with the content of version comments, and without other comments."""
    for match in _lexer(DEFAULT_QUOTING).finditer(sql):
        if match["version"] or match["comment"] or match[0] == "*/":
            yield " "
        else:
            yield match[0]
            yield " " if match["word"] else ""


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


def parse_with_sqlglot(sql: str) -> list[Any]:
    """Return the statements of a text as sqlglot reads them; it may raise an error of any kind."""
    import sqlglot

    logger = logging.getLogger("sqlglot")
    disabled, logger.disabled = logger.disabled, True  # it would log the statement, which may hold secrets
    try:
        return sqlglot.parse(sql, read="mysql")
    finally:
        logger.disabled = disabled
