"""The text of a statement as words: names, strings, keywords and signs, as a server would read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

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
    """How the session that wrote a statement quotes.

    :param backslash_escapes: whether a backslash in a string hides the sign behind it: not under
        ``NO_BACKSLASH_ESCAPES``.
    :param ansi_quotes: whether a double-quoted word is a name (``ANSI_QUOTES``), in which a backslash is a sign like
        others.
    """

    backslash_escapes: bool = True
    ansi_quotes: bool = False


#: With the sql_mode that servers come with.
DEFAULT_QUOTING = Quoting()


class Token(NamedTuple):
    """A word of the text: a keyword or name, or one sign."""

    text: str
    #: Quote character of a quoted name or string, or the empty text.
    quote: str = ""

    @property
    def keyword(self) -> str:
        """The word as a keyword: upper case, nothing for quoted ones."""
        return "" if self.quote else self.text.upper()

    @property
    def is_name(self) -> bool:
        """Whether it may be a name: a double-quoted word is a string, or with ANSI_QUOTES a name."""
        if self.quote:
            return self.quote != "'"
        return self.text[0] in "_$" or self.text[0].isalnum() or not self.text[0].isascii()


@cache
def _lexer(quoting: Quoting) -> re.Pattern[str]:
    single = (_ESCAPED if quoting.backslash_escapes else _PLAIN) % ("'", "'", "''", "'")
    double = (_ESCAPED if quoting.backslash_escapes and not quoting.ansi_quotes else _PLAIN) % ('"', '"', '""', '"')
    return re.compile(_LEXER % (single, double), re.VERBOSE | re.DOTALL)


def tokenize(sql: str, quoting: Quoting) -> Iterator[Token]:
    """The words of a statement, version comments opened and other comments left out."""
    for match in _lexer(quoting).finditer(sql):
        text = match[0]
        if match["tick"]:
            yield Token(text[1:-1].replace("``", "`"), "`")
        elif match["string"]:
            yield Token(text[1:-1].replace(text[0] * 2, text[0]), text[0])
        elif match["word"] or (match["sign"] and text != "*/"):
            yield Token(text)


def version_comments(sql: str, quoting: Quoting) -> Iterator[tuple[str, str]]:
    """Letter and number of each version comment: ``M`` for MariaDB alone, and nothing where there is none."""
    for match in _lexer(quoting).finditer(sql):
        if match["version"]:
            letter, _, digits = match["version"][2:].partition("!")
            yield letter, digits


def executed_text(sql: str) -> Iterator[str]:
    """The text with version comments opened and other comments taken out."""
    for match in _lexer(DEFAULT_QUOTING).finditer(sql):
        if match["version"] or match["comment"] or match[0] == "*/":
            yield " "
        else:
            yield match[0]
            yield " " if match["word"] else ""
