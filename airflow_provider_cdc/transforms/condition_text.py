"""The text of a condition on rows, as tokens of the few kinds that a condition has.

The parser reads the SQL of every statement, and some of it differently from a server: it skips comments that a server
executes, and reads CAST as a literal. This module lets nothing through that could be such a text, and reads literals
itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_TOKENS = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<name>`(?:[^`]|``)+`)
    | (?P<hex>[xX]'(?:[0-9a-fA-F]{2})*')
    | (?P<text>'(?:[^'\\]|\\.|'')*')
    | (?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_$.\u0080-\U0010ffff]))
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<comparison><=>|<>|!=|<=|>=|=|<|>)
    | (?P<sign>-(?!-)|[(),+])
    """,
    re.VERBOSE | re.DOTALL,
)
KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "LIKE", "TRUE", "FALSE"})
#: Words that are keywords in front of a text, and names otherwise.
LITERAL_KEYWORDS = frozenset({"DATE", "TIMESTAMP"})
_BEFORE_PARENTHESIS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN"})
#: What :func:`is_well_formed` has for a keyword. DATE and TIMESTAMP are parts of literals.
_LETTERS = {"AND": "&", "OR": "|", "NOT": "!", "IN": "i", "BETWEEN": "b", "IS": "s", "NULL": "0", "LIKE": "l"}
_LETTERS |= {"TRUE": "v", "FALSE": "v", "DATE": "", "TIMESTAMP": ""}
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ONLY = "Compare columns of the row with literals"
_COLUMNS = "Write the name of a column of the table, or a text in single quotes"
_NO_OPERATORS = f"{_ONLY}, joined by AND, OR and NOT"
#: What is refused, by what the text begins with there: what it is, and the remedy.
_REFUSED_SIGNS = (
    (("--", "#", "/*", "*/"), "a comment", "Leave the comment out"),
    ((";",), "the end of a statement", "Write one condition"),
    (("@",), "a variable", _ONLY),
    (('"',), "a text or a name in double quotes", "Write a text in single quotes, and a name in backticks"),
    (("&&", "||", "!"), "an operator of MySQL that is not supported", "Write AND, OR or NOT"),
    ((".",), "the name of a table, or a number without its zero", "Write only the name of the column; 0.5, not .5"),
    (("'", "`"), "a text or a name without an end", "Close the quotes"),
    (("+", "-", "*", "/", "%", "&", "|", "^", "~", "<<", ">>"), "arithmetic", _NO_OPERATORS),
)
#: The same for words that are no columns.
_REFUSED_WORDS = {
    **dict.fromkeys(("SELECT", "EXISTS", "ANY", "ALL", "SOME", "TABLE"), ("a subquery", _ONLY)),
    **dict.fromkeys(("REGEXP", "RLIKE"), ("a regular expression", "Write LIKE, or list the values with IN")),
    **dict.fromkeys(("COLLATE", "BINARY"), ("a collation", "Texts are equal if they are the same characters")),
    **dict.fromkeys(("DIV", "MOD", "INTERVAL"), ("arithmetic", _NO_OPERATORS)),
    "XOR": ("an operator that is not supported", "Write AND, OR or NOT"),
    "ESCAPE": ("another escape character", "Escape % and _ in a pattern by a backslash"),
    "UNKNOWN": ("a test that is not supported", "Write IS NULL or IS NOT NULL"),
    "CASE": ("a function", _ONLY),
    **dict.fromkeys(("TIME", "DATETIME"), ("a literal that is not supported", "Write DATE '...' or TIMESTAMP '...'")),
}
_REFUSED_WORDS |= {f"CURRENT_{word}": ("a function", _ONLY) for word in ("DATE", "TIME", "TIMESTAMP", "USER")}


class RefusedText(ValueError):
    """A part of a condition that is refused.

    :param reason: what is wrong, without the part and where it is.
    :param remedy: what to write instead.
    :param start: where the part begins in the text.
    :param end: where it ends.
    """

    def __init__(self, reason: str, remedy: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.remedy, self.start, self.end = remedy, start, end


@dataclass(frozen=True)
class ConditionToken:
    """One token.

    :param kind: ``name``, ``text``, ``hex``, ``number``, ``keyword``, ``comparison`` or ``sign``.
    :param text: the token as written.
    :param start: where it begins in the text.
    :param value: a name or a text without its quotes, the digits of a hexadecimal literal, a keyword in upper case.
    """

    kind: str
    text: str
    start: int
    value: str

    @property
    def end(self) -> int:
        """Where it ends in the text."""
        return self.start + len(self.text)

    @property
    def is_positioned(self) -> bool:
        """Whether it is a name or a literal, whose position the parser tells."""
        return self.kind in {"name", "text", "hex", "number"}


def read_tokens(text: str, names: Collection[str]) -> list[ConditionToken]:
    """Return the tokens of a condition.

    :param names: names of the columns that it may use, in lower case.
    :raises RefusedText: if it has anything that a condition cannot have.
    """
    tokens = list(_split(text))
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        following = after.text if after else ""
        if token.text == "(" and before and _is_function(before):
            raise RefusedText("this is a function", _ONLY, before.start, token.end)
        if token.kind == "name" and following != "(" and token.value.lower() not in names:
            reason, remedy = _REFUSED_WORDS.get(token.text.upper(), ("not a column of the table", _COLUMNS))
            raise RefusedText(f"this is {reason}", remedy, token.start, token.end)
        if token.text in ("+", "-"):
            signs = before is None or before.kind in ("keyword", "comparison") or before.text in ("(", ",")
            if not signs or after is None or after.kind != "number":
                raise RefusedText("this is arithmetic", _NO_OPERATORS, token.start, token.end)
        if token.kind == "comparison" and after and after.kind == "comparison":
            raise RefusedText("this is not an operator", "Write one of = <> < <= > >= <=>", token.start, after.end)
        if token.text == "," and following in (")", ","):
            raise RefusedText("a value is missing", "Write a value after each comma", token.start, token.end)
    return tokens


def is_well_formed(tokens: list[ConditionToken]) -> bool:
    """Return whether tokens are comparisons, joined by AND, OR, NOT and parentheses, and nothing else.

    The parser accepts more than a server does, such as a keyword twice.
    """
    shape = "".join(_letter(token) for token in tokens)
    shape = re.sub("nc[v0]|[v0]cn|n!?i\\([v0](?:,[v0])*\\)|n!?bv&v|ns!?0|n!?lv", "T", shape)
    while (reduced := re.sub(r"\(T\)|!T|T(?:[&|]T)+", "T", shape)) != shape:
        shape = reduced
    return shape == "T"


def _letter(token: ConditionToken) -> str:
    if token.kind == "keyword":
        return _LETTERS[token.value]
    return {"name": "n", "comparison": "c", "sign": "" if token.text in "+-" else token.text}.get(token.kind, "v")


def _is_function(token: ConditionToken) -> bool:
    """Whether a parenthesis after this token would begin the arguments of a function."""
    return token.kind == "name" or (token.kind == "keyword" and token.value not in _BEFORE_PARENTHESIS)


def _split(text: str) -> Iterator[ConditionToken]:
    at = 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        kind = match.lastgroup if match else None
        if match is None or kind is None:
            raise _refused_sign(text, at)
        written, start, at = match[0], at, match.end()
        if kind == "word":
            quoted_next = text[at:].lstrip(" \t\r\n").startswith("'")
            word = written.upper()
            is_keyword = word in KEYWORDS or (word in LITERAL_KEYWORDS and quoted_next)
            yield ConditionToken("keyword" if is_keyword else "name", written, start, word if is_keyword else written)
        elif kind == "number" and len(written) > 100:
            raise RefusedText("the number is too long", "Write at most 100 digits", start, at)
        elif kind != "space":
            yield ConditionToken(kind, written, start, _value_of(kind, written, start))


def _value_of(kind: str, written: str, start: int) -> str:
    if kind == "name":
        return written[1:-1].replace("``", "`")
    if kind == "hex":
        return written[2:-1].lower()
    if kind != "text":
        return written
    value = re.sub(r"\\(.)|''", _unescape, written[1:-1], flags=re.DOTALL)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedText("this text is not Unicode", "Write whole characters", start, start + len(written)) from None
    return value


def _unescape(match: re.Match[str]) -> str:
    sign = match[1]
    if sign is None:
        return "'"
    return match[0] if sign in "%_" else _ESCAPES.get(sign, sign)  # \% and \_ keep their meaning for LIKE


def _refused_sign(text: str, at: int) -> RefusedText:
    for signs, reason, remedy in _REFUSED_SIGNS:
        for sign in signs:
            if text.startswith(sign, at):
                return RefusedText(f"this is {reason}", remedy, at, at + len(sign))
    return RefusedText("this is not understood", _NO_OPERATORS, at, at + 1)
