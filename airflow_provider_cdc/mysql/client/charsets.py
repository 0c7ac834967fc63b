"""Text of any character set, decoded exactly as the server converts it.

Rows in the binlog contain bytes in the column's own character set, whereas the server converts the result of a SELECT.
Libraries differ from the server in single characters (the yen sign in sjis, byte 0x81 in latin1), so the conversion
tables are queried from the server: once per process, each in one statement.
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

#: Charsets that are encodings of Unicode, which are the same everywhere. A lone surrogate is an error, as in a SELECT.
_UNICODE_CODECS = {"utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "ascii": "ascii"}

#: The bytes that are possible at each place of a multibyte character, by charset. Which combinations are characters is
#: up to the server's table.
_HIGH, _TRAIL = range(0x80, 0x100), range(0x30, 0x100)
_DIGIT = range(0x30, 0x3A)
_BYTE_RANGES: dict[str, tuple[tuple[range, ...], ...]] = {
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis"), ((_HIGH, _TRAIL),)),
    **dict.fromkeys(("eucjpms", "ujis"), ((_HIGH, _TRAIL), (range(0x8F, 0x90), _HIGH, _HIGH))),
    # Four-byte characters that begin above 0x8F are consecutive in Unicode: see _decode_gb18030.
    "gb18030": ((_HIGH, _TRAIL), (range(0x81, 0x90), _DIGIT, range(0x81, 0xFF), _DIGIT)),
}


class NoRoundTripError(ValueError):
    """A key value that does not survive the conversion to Unicode and back: another value may have the same text.

    :param charset: character set of the key column; empty for an ENUM.
    :param code: the bytes of the value, in hex.
    """

    def __init__(self, charset: str, code: str = "") -> None:
        what = f"x'{code.lower()}' of {charset}" if charset else "no member of the ENUM, but shown as '', which is one"
        super().__init__(f"a key with no way back from Unicode ({what})")


class CharsetDecoders(Mapping[str, TextDecoder]):
    """Immutable mapping from each character set to its decoder.

    :param decoders: character set -> function from bytes to text, which raises ``UnicodeDecodeError``.
    :param of_keys: the decoders of keys where they differ: they also raise :class:`NoRoundTripError`.
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
    """Decode ucs2, in which a surrogate pair is not one character but two invalid ones."""
    text = data.decode("utf-16-be")
    if 2 * len(text) != len(data):
        raise UnicodeDecodeError("ucs2", data, 0, len(data), "surrogates")
    return text


#: The decoders that need no server.
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
    """Return decoders for all character sets in some tables.

    :param open_connection: opens a connection to the server, or returns an open one. It is called only if a table has a
        character set that is not an encoding of Unicode.
    :raises TerminalError: for an unknown character set.
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
    """Build a decoder of text and one of keys from the server's conversion of every character in a charset.

    :param table: a table that has the charset, for the error message.
    """
    single, one_way = _query_characters(connection, charset, (range(0x100),))
    if charset not in _BYTE_RANGES:
        known_sql = f"SELECT 1 FROM information_schema.character_sets WHERE character_set_name = '{charset}'"
        if not query_bytes(connection, f"{known_sql} AND maxlen = 1"):
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
    """Return a decoder of keys.

    :param one_way: characters that the conversion to Unicode and back changes.
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
    """Query the characters of a charset, and which of them the conversion to Unicode and back changes.

    :returns: (bytes -> text, bytes of the characters that are changed).
    """
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
        # For bytes that are not a character, MySQL returns NULL and MariaDB another character.
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
    """Yield the bytes of each character in a text."""
    at = 0
    while at < len(data):
        # Longest first: in eucjpms, MySQL also counts the first two of three bytes as a character.
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
    """Decode a character beyond U+FFFF, which gb18030 numbers from 0x90308130; return ``""`` if it is not one."""
    if len(four) < 4 or not 0x90 <= four[0] <= 0xE3:
        return ""
    number = ((four[0] - 0x90) * 10 + four[1] - 0x30) * 1260 + (four[2] - 0x81) * 10 + four[3] - 0x30
    return chr(0x10000 + number) if 0 <= number < 0x100000 else ""
