"""Text of any character set, decoded exactly as the server converts it.

Rows in the binlog hold the bytes of the column's own character set, while a SELECT gets them converted by the server.
Libraries differ from the server in single characters (the yen sign of sjis, byte 0x81 of latin1), so the server is
asked for its tables: once a process, each in one statement.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import UTF8_CHARSETS, TableSchema
from airflow_provider_cdc.mysql.client.session import query_bytes, query_value

TextDecoder = Callable[[bytes], str]

#: Charsets that are Unicode in another form: the same everywhere. A lone surrogate is an error, as it is in a SELECT.
_UNICODE_CODECS = {"utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "ascii": "ascii"}

#: Bytes that may stand at each place of a character of several bytes, by charset: what the server knows among them
#: is in its table.
_HIGH, _TRAIL = range(0x80, 0x100), range(0x30, 0x100)
_DIGIT = range(0x30, 0x3A)
_BYTE_RANGES: dict[str, tuple[tuple[range, ...], ...]] = {
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis"), ((_HIGH, _TRAIL),)),
    **dict.fromkeys(("eucjpms", "ujis"), ((_HIGH, _TRAIL), (range(0x8F, 0x90), _HIGH, _HIGH))),
    # Of its four bytes the ones above 0x8F are Unicode in sequence, see _gb18030.
    "gb18030": ((_HIGH, _TRAIL), (range(0x81, 0x90), _DIGIT, range(0x81, 0xFF), _DIGIT)),
}


class NoRoundTripError(ValueError):
    """A key's value that does not come back from Unicode as it was: another one may have the same text.

    :param charset: character set of the key's column; of an ENUM, nothing.
    :param code: the bytes of the value, in hex.
    """

    def __init__(self, charset: str, code: str = "") -> None:
        what = f"x'{code.lower()}' of {charset}" if charset else "no member of the ENUM, but shown as '', which is one"
        super().__init__(f"a key with no way back from Unicode ({what})")


class CharsetDecoders(Mapping[str, TextDecoder]):
    """How text of each character set is decoded; a mapping that never changes.

    :param decoders: (character set -> function from bytes to text, which raises ``UnicodeDecodeError``).
    :param for_keys: the same for keys, where it is another function: it also raises :class:`NoRoundTripError`.
    """

    def __init__(self, decoders: Mapping[str, TextDecoder], of_keys: Mapping[str, TextDecoder] | None = None) -> None:
        self._decoders = dict(decoders)
        self.for_keys = {**self._decoders, **(of_keys or {})}

    def __getitem__(self, charset: str) -> TextDecoder:
        return self._decoders[charset]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoders)

    def __len__(self) -> int:
        return len(self._decoders)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _codec_decoder(name: str) -> TextDecoder:
    return lambda data: data.decode(name)


def _decode_ucs2(data: bytes) -> str:
    """Text of ucs2, to which two halves of a surrogate are two characters that are none."""
    text = data.decode("utf-16-be")
    if 2 * len(text) != len(data):
        raise UnicodeDecodeError("ucs2", data, 0, len(data), "surrogates")
    return text


#: Those that need no server.
UNICODE_DECODERS = CharsetDecoders(
    {
        **dict.fromkeys(UTF8_CHARSETS, bytes.decode),
        **{charset: _codec_decoder(name) for charset, name in _UNICODE_CODECS.items()},
        "ucs2": _decode_ucs2,
    }
)

_decoder_cache: dict[tuple[str, str], tuple[TextDecoder, TextDecoder]] = {}
_decoders_cache: dict[tuple[str, frozenset[str]], CharsetDecoders] = {}


def load_decoders(
    open_connection: Callable[[], AbstractContextManager[Connection[Any]]], tables: Iterable[TableSchema]
) -> CharsetDecoders:
    """Decoders of all character sets that tables have.

    :param open_connection: opens a connection to the server, or hands out one that is open; called only where a table
        has a character set that is not a form of Unicode.
    :raises TerminalError: for a character set that is not known here.
    """
    table_by_charset = {str(c.charset): table.label for table in tables for c in table.columns if c.charset}
    wanted = frozenset(table_by_charset.keys() - UNICODE_DECODERS.keys())
    if not wanted:
        return UNICODE_DECODERS
    with open_connection() as connection:
        version = str(query_value(connection, "SELECT VERSION()"))
        for charset in wanted:
            if (version, charset) not in _decoder_cache:
                _decoder_cache[version, charset] = _build_decoders(connection, charset, table_by_charset[charset])
    texts, keys = ({charset: _decoder_cache[version, charset][i] for charset in wanted} for i in (0, 1))
    return _decoders_cache.setdefault((version, wanted), CharsetDecoders({**UNICODE_DECODERS, **texts}, keys))


def _build_decoders(connection: Connection[Any], charset: str, table: str) -> tuple[TextDecoder, TextDecoder]:
    """Make a decoder of what the server says of every character of a charset, and one of keys.

    :param table: one that has it, for the error.
    """
    single, one_way = _query_characters(connection, charset, (range(0x100),))
    if charset not in _BYTE_RANGES:
        if (
            query_bytes(
                connection,
                f"SELECT 1 FROM information_schema.character_sets WHERE character_set_name = '{charset}' "
                "AND maxlen = 1",
            )
            == ()
        ):
            raise TerminalError(
                f"character set {charset} of table {table} is not known",
                "Exclude the table in source.exclude",
                table=table,
            )
        table = "".join(single.get(bytes([byte]), "\ufffe") for byte in range(0x100))  # the codec's own error

        def decode_single(data: bytes) -> str:
            return codecs.charmap_decode(data, "strict", table)[0]

        return decode_single, _key_decoder(
            charset, decode_single, one_way, lambda data: (data[i : i + 1] for i in range(len(data)))
        )
    known = dict(single)
    for places in _BYTE_RANGES[charset]:
        characters, new_one_way = _query_characters(connection, charset, places)
        known, one_way = {**known, **characters}, one_way | new_one_way
    is_ascii = all(known.get(bytes([byte])) == chr(byte) for byte in range(0x80))

    def decode(data: bytes) -> str:
        if is_ascii and data.isascii():
            return data.decode("ascii")
        return "".join(known.get(code) or _decode_gb18030(code) for code in _split_characters(data, known, charset))

    return decode, _key_decoder(charset, decode, one_way, lambda data: _split_characters(data, known, charset))


def _key_decoder(
    charset: str, decode: TextDecoder, one_way: Set[bytes], codes: Callable[[bytes], Iterable[bytes]]
) -> TextDecoder:
    """A decoder of keys.

    :param one_way: characters that come back from Unicode as others.
    :param codes: splits text into characters.
    """
    if not one_way:
        return decode
    is_ascii = not any(code.isascii() for code in one_way)

    def decode_key(data: bytes) -> str:
        text = decode(data)
        if not (is_ascii and data.isascii()) and not one_way.isdisjoint(codes(data)):
            raise NoRoundTripError(charset, data.hex())
        return text

    return decode_key


def _query_characters(
    connection: Connection[Any], charset: str, places: tuple[range, ...]
) -> tuple[dict[bytes, str], frozenset[bytes]]:
    """Characters of a charset with what the server makes of them, and those that it does not make of that again."""
    names = "abcd"[: len(places)]
    byte_tables = [
        f"(SELECT {' UNION ALL SELECT '.join(f'{byte} AS {name}' for byte in place)}) AS t{name}"
        for name, place in zip(names, ([f"x'{byte:02x}'" for byte in place] for place in places), strict=True)
    ]
    joined, whole = ", ".join(byte_tables), f"CONCAT({', '.join(names)})"
    mapped = query_bytes(
        connection,
        f"SELECT code, HEX(CONVERT(text USING utf8mb4)), "
        f"HEX(CONVERT(CONVERT(text USING utf8mb4) USING {charset})) = code "
        f"FROM (SELECT HEX({whole}) AS code, CONVERT({whole} USING {charset}) AS text FROM {joined}) AS listed "
        # What is not a character is NULL on MySQL, and turned into another one on MariaDB.
        "WHERE CHAR_LENGTH(text) = 1 AND HEX(text) = code",
    )
    known, one_way = dict[bytes, str](), set[bytes]()
    for digits, text, comes_back in mapped:
        code = bytes.fromhex((digits or b"").decode())
        known[code] = bytes.fromhex((text or b"").decode()).decode()
        if comes_back != b"1":
            one_way.add(code)
    return known, frozenset(one_way)


def _split_characters(data: bytes, known: Mapping[bytes, str], charset: str) -> Iterator[bytes]:
    """Split text into characters."""
    at = 0
    while at < len(data):
        # The longest first: MySQL also counts the first two bytes of three as a character of eucjpms.
        for size in (4, 3, 2, 1):
            if data[at : at + size] in known:
                break
        else:
            size = 4
            if charset != "gb18030" or not _decode_gb18030(data[at : at + size]):
                raise UnicodeDecodeError(charset, data, at, at + 1, "not a character")
        yield data[at : at + size]
        at += size


def _decode_gb18030(four: bytes) -> str:
    """A character beyond U+FFFF, which gb18030 counts through from 0x90308130 on; nothing if it is none."""
    if len(four) < 4 or not 0x90 <= four[0] <= 0xE3:
        return ""
    number = ((four[0] - 0x90) * 10 + four[1] - 0x30) * 1260 + (four[2] - 0x81) * 10 + four[3] - 0x30
    return chr(0x10000 + number) if 0 <= number < 0x100000 else ""
