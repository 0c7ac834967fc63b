"""Text of any character set, decoded exactly as the server converts it.

Rows in the binlog hold the bytes of the column's own character set, while a SELECT gets them converted by the server.
Libraries differ from the server in single characters (the yen sign of sjis, byte 0x81 of latin1), so the server is
asked for its tables: once a process, each in one statement.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.schema import UTF8_CHARSETS, TableSchema
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.session import raw, value

Decode = Callable[[bytes], str]

#: Charsets that are Unicode in another form: the same everywhere. A lone surrogate is an error, as it is in a SELECT.
_UNICODE = {"utf16": "utf-16-be", "ucs2": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}

#: Bytes that may stand at each place of a character of several bytes, by charset: what the server knows among them
#: is in its table.
_HIGH, _TRAIL = range(0x80, 0x100), range(0x30, 0x100)
_DIGIT = range(0x30, 0x3A)
_PLACES: dict[str, tuple[tuple[range, ...], ...]] = {
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis"), ((_HIGH, _TRAIL),)),
    **dict.fromkeys(("eucjpms", "ujis"), ((_HIGH, _TRAIL), (range(0x8F, 0x90), _HIGH, _HIGH))),
    # Of its four bytes the ones above 0x8F are Unicode in sequence, see _gb18030.
    "gb18030": ((_HIGH, _TRAIL), (range(0x81, 0x90), _DIGIT, range(0x81, 0xFF), _DIGIT)),
}


class Decoders(Mapping[str, Decode]):
    """How text of each character set is decoded; a mapping that never changes.

    :param decoders: (character set -> function from bytes to text, which raises ``UnicodeDecodeError``).
    """

    def __init__(self, decoders: Mapping[str, Decode]) -> None:
        self._decoders = dict(decoders)

    def __getitem__(self, charset: str) -> Decode:
        return self._decoders[charset]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoders)

    def __len__(self) -> int:
        return len(self._decoders)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _codec(name: str) -> Decode:
    return lambda data: data.decode(name)


#: Those that need no server.
UNICODE = Decoders(
    {**dict.fromkeys(UTF8_CHARSETS, bytes.decode), **{charset: _codec(name) for charset, name in _UNICODE.items()}}
)

_known: dict[tuple[str, str], Decode] = {}
_made: dict[tuple[str, frozenset[str]], Decoders] = {}


def decoders(opened: Callable[[], AbstractContextManager[Connection[Any]]], tables: Iterable[TableSchema]) -> Decoders:
    """Decoders of all character sets that tables have.

    :param opened: opens a connection to the server, or hands out one that is open; called only where a table has a
        character set that is not a form of Unicode.
    :raises TerminalError: for a character set that is not known here.
    """
    charsets = {str(c.charset) for table in tables for c in table.columns if c.charset}
    wanted = frozenset(charsets.difference(UNICODE))
    if not wanted:
        return UNICODE
    with opened() as connection:
        version = str(value(connection, "SELECT VERSION()"))
        for charset in wanted:
            if (version, charset) not in _known:
                _known[version, charset] = _ask(connection, charset)
    tables_of = {charset: _known[version, charset] for charset in wanted}
    return _made.setdefault((version, wanted), Decoders({**UNICODE, **tables_of}))


def _ask(connection: Connection[Any], charset: str) -> Decode:
    """Make a decoder of what the server says of every character of a charset."""
    single = dict(_characters(connection, charset, (range(0x100),)))
    listed = [single.get(bytes([byte]), "\ufffe") for byte in range(0x100)]  # U+FFFE is an error to the codec
    if charset not in _PLACES:
        if (
            raw(
                connection,
                f"SELECT 1 FROM information_schema.character_sets WHERE character_set_name = '{charset}' "
                "AND maxlen = 1",
            )
            == ()
        ):
            raise TerminalError(f"character set {charset} is not known", "Exclude the table in source.exclude")
        table = "".join(listed)
        return lambda data: codecs.charmap_decode(data, "strict", table)[0]
    known = dict(single)
    for places in _PLACES[charset]:
        known.update(_characters(connection, charset, places))
    is_ascii = all(known.get(bytes([byte])) == chr(byte) for byte in range(0x80))
    return lambda data: data.decode("ascii") if is_ascii and data.isascii() else "".join(_walk(data, known, charset))


def _characters(connection: Connection[Any], charset: str, places: tuple[range, ...]) -> Iterator[tuple[bytes, str]]:
    """Characters of a charset, and what the server makes of them: (bytes, text)."""
    names = "abcd"[: len(places)]
    listed = [
        f"(SELECT {' UNION ALL SELECT '.join(f'{byte} AS {name}' for byte in place)}) AS t{name}"
        for name, place in zip(names, ([f"x'{byte:02x}'" for byte in place] for place in places), strict=True)
    ]
    joined, whole = ", ".join(listed), f"CONCAT({', '.join(names)})"
    found = raw(
        connection,
        f"SELECT code, HEX(CONVERT(text USING utf8mb4)) FROM (SELECT HEX({whole}) AS code, "
        f"CONVERT({whole} USING {charset}) AS text FROM {joined}) AS listed "
        # What is not a character is NULL on MySQL, and turned into another one on MariaDB.
        "WHERE CHAR_LENGTH(text) = 1 AND HEX(text) = code",
    )
    for code, text in found:
        yield bytes.fromhex((code or b"").decode()), bytes.fromhex((text or b"").decode()).decode()


def _walk(data: bytes, known: Mapping[bytes, str], charset: str) -> Iterator[str]:
    at = 0
    while at < len(data):
        # The longest first: MySQL also counts the first two bytes of three as a character of eucjpms.
        for size in (4, 3, 2, 1):
            text = known.get(data[at : at + size])
            if text is not None:
                break
        else:
            size, text = 4, _gb18030(data[at : at + 4], charset)
            if text is None:
                raise UnicodeDecodeError(charset, data, at, at + 1, "not a character")
        yield text
        at += size


def _gb18030(four: bytes, charset: str) -> str | None:
    """A character beyond U+FFFF, which gb18030 counts through from 0x90308130 on."""
    if charset != "gb18030" or len(four) < 4 or not 0x90 <= four[0] <= 0xE3:
        return None
    number = ((four[0] - 0x90) * 10 + four[1] - 0x30) * 1260 + (four[2] - 0x81) * 10 + four[3] - 0x30
    return chr(0x10000 + number) if 0 <= number < 0x100000 else None
