"""Parse a column definition in a statement into the form that the catalog would show."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed, ServerTraits, StatementSession, TokenCursor
from airflow_provider_cdc.model.schema import BINARY_TYPES, GEOMETRY_TYPES, TEXT_TYPES, Column

#: Integer types by their names, and the display widths that MariaDB shows, signed and unsigned.
_INTEGERS = {
    **dict.fromkeys(("TINYINT", "INT1"), "tinyint"),
    **dict.fromkeys(("SMALLINT", "INT2"), "smallint"),
    **dict.fromkeys(("MEDIUMINT", "INT3", "MIDDLEINT"), "mediumint"),
    **dict.fromkeys(("INT", "INTEGER", "INT4"), "int"),
    **dict.fromkeys(("BIGINT", "INT8"), "bigint"),
}
_DIGITS = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
_SIZES = {"tiny": 0xFF, "": 0xFFFF, "medium": 0xFFFFFF, "long": 0xFFFFFFFF}
_DECIMALS = frozenset({"DECIMAL", "DEC", "NUMERIC", "FIXED"})
#: Bytes of the shortest character, for character sets where it is more than one.
_MIN_CHAR_BYTES = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
#: Most bytes of a VARCHAR or VARBINARY; longer ones become TEXT or BLOB if the session is not strict.
_MAX_VARCHAR_BYTES = 65535
#: Character sets in which ENUM and SET members may be non-ASCII: the catalog shows them unchanged.
_UNICODE_CHARSETS = frozenset({"utf8mb4", "utf8mb3"})
_MAX_COMMENT = 1024


@dataclass(frozen=True)
class DefaultLiteral:
    """A default other than NULL.

    :param text: its text, without quotes; ``None`` if it is an expression.
    :param is_quoted: whether it is a string.
    """

    text: str | None = None
    is_quoted: bool = False


@dataclass
class ColumnDefinition:
    """A column's definition in a statement.

    :param column: the column as the catalog would show it, if it may be NULL.
    :param comment: the column's comment.
    :param nullability: whether the statement says NULL (``True``), NOT NULL (``False``) or neither (``None``).
    :param default: the default; ``None`` if there is none other than NULL.
    """

    column: Column
    comment: str = ""
    nullability: bool | None = None
    default: DefaultLiteral | None = None


@dataclass
class _ParsedType:
    kind: str
    column_type: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    fsp: int = 0
    members: tuple[str, ...] = ()
    charset: str | None = None
    collation: str | None = None


def parse_column(
    cursor: TokenCursor, name: str, where: str, session: StatementSession, server: ServerTraits, collation: str | None
) -> ColumnDefinition:
    """Parse a column's type and attributes, up to its position (FIRST, AFTER) or the end of the clause.

    :param name: the column's name, which was parsed before.
    :param where: clause and column, for messages.
    :param collation: collation of the table.
    :raises DdlNotFollowed: for anything uncertain.
    """
    parsed_type = _parse_type(cursor, where, session, server)
    textual = parsed_type.kind in TEXT_TYPES or parsed_type.kind in ("enum", "set")
    charset = collate = None
    if parsed_type.charset is not None:  # JSON on MariaDB, whatever the collation of the table
        textual = False
    definition = ColumnDefinition(Column(name, parsed_type.kind, parsed_type.column_type, True))
    if textual and (cursor.accept("CHARSET") or cursor.accept("CHARACTER", "SET")):
        charset = cursor.expect_name(where).lower()
    while not cursor.at_end and cursor.peek() not in {",", ")", "FIRST", "AFTER"}:
        if cursor.accept("NOT", "NULL"):
            null: bool | None = False
        elif cursor.accept("NULL"):
            null = True
        else:
            null = None
        if null is not None:
            if definition.nullability is not None:
                raise DdlNotFollowed(f"{where}: NULL is given twice")
            definition.nullability = null
        elif cursor.accept("DEFAULT"):
            definition.default = parse_default(cursor, where)
        elif cursor.accept("ON", "UPDATE"):
            if not _accept_now(cursor):
                cursor.fail(f"{where}, ON UPDATE")
        elif cursor.accept("COMMENT"):
            definition.comment = parse_comment(cursor, where)
        elif textual and cursor.accept("COLLATE"):
            collate = cursor.expect_name(where).lower()
        elif cursor.accept("INVISIBLE") or (not server.mariadb and cursor.accept("VISIBLE")):
            pass
        else:
            cursor.fail(where)
    if textual:
        parsed_type.charset, parsed_type.collation = resolve_collation(
            where, session, server, collation, charset, collate
        )
    definition.column = _to_catalog_column(name, parsed_type, where, server)
    if (reason := definition.column.unsupported_reason()) is not None:
        raise DdlNotFollowed(f"{where}: {reason}")
    return definition


def parse_comment(cursor: TokenCursor, where: str) -> str:
    """Parse a comment that the catalog shows unchanged.

    :raises DdlNotFollowed: if the catalog may show it in another form.
    """
    text = cursor.expect_string(f"{where}, COMMENT")
    if len(text) > _MAX_COMMENT or any(c < " " and c not in "\t\n\r" for c in text):
        raise DdlNotFollowed(f"{where}: its comment may be stored in another form")
    return text


def parse_default(cursor: TokenCursor, where: str) -> DefaultLiteral | None:
    """Consume a default, and return it; ``None`` for NULL."""
    if cursor.accept("NULL"):
        return None
    if cursor.at_string:
        return DefaultLiteral(cursor.expect_string(where), is_quoted=True)
    if cursor.peek() == "(":
        cursor.skip_brackets(where)
        return DefaultLiteral()
    if word := cursor.accept_any("TRUE", "FALSE"):
        return DefaultLiteral("1" if word == "TRUE" else "0")
    if _accept_now(cursor):
        return DefaultLiteral()
    text = "-" if cursor.accept("-") else ""
    _ = text or cursor.accept("+")
    text += cursor.peek()
    cursor.expect_number(f"{where}, DEFAULT")
    if cursor.accept("."):
        text += f".{cursor.peek()}"
        cursor.expect_number(f"{where}, DEFAULT")
    return DefaultLiteral(text)


def _accept_now(cursor: TokenCursor) -> bool:
    if not cursor.accept_any("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"):
        return False
    if cursor.peek() == "(":
        cursor.skip_brackets("a default")
    return True


def resolve_collation(
    where: str,
    session: StatementSession,
    server: ServerTraits,
    default: str | None,
    charset: str | None,
    collate: str | None,
) -> tuple[str, str]:
    """Return the character set and collation of a text column or of a table.

    :param default: collation if none is given.
    :param charset: the given character set, if any.
    :param collate: the given collation, if any.
    :raises DdlNotFollowed: if they are unknown or contradict each other.
    """
    if charset == "utf8" and not server.mariadb and charset not in server.default_collations:
        charset = "utf8mb3"
    if charset is not None and charset not in server.default_collations:
        raise DdlNotFollowed(f"{where}: its character set is not known")
    if collate is None and charset is not None:
        collate = _default_collation(charset, where, session, server)
    elif collate is None:
        collate = default or ""
    if collate not in server.charset_by_collation:
        raise DdlNotFollowed(f"{where}: its collation is not known")
    of_collation = server.charset_by_collation[collate]
    if charset is not None and charset != of_collation:
        raise DdlNotFollowed(f"{where}: its collation does not belong to its character set")
    if of_collation == "binary":
        raise DdlNotFollowed(f"{where}: text of character set binary has another type")
    return of_collation, collate


def _default_collation(charset: str, where: str, session: StatementSession, server: ServerTraits) -> str:
    """Return the default collation of a character set, which may depend on the session."""
    if server.mariadb and server.version >= (11, 2):
        raise DdlNotFollowed(f"{where}: the default collation of its character set depends on character_set_collations")
    if not server.mariadb and charset == "utf8mb4":
        if session.utf8mb4_collation is None:
            raise DdlNotFollowed(f"{where}: the default collation of its character set is not known")
        return session.utf8mb4_collation
    return server.default_collations[charset]


def _parse_type(cursor: TokenCursor, where: str, session: StatementSession, server: ServerTraits) -> _ParsedType:
    if not session.standard_types:
        raise DdlNotFollowed(f"{where}: types have another meaning under its sql_mode")
    word = cursor.peek()
    cursor.at += 1
    lower = word.lower()
    if word in _INTEGERS:
        return _parse_integer_type(cursor, _INTEGERS[word], where, server)
    if word in ("BOOL", "BOOLEAN"):
        return _ParsedType("tinyint", "tinyint(1)")
    if word in _DECIMALS:
        digits = _parse_numbers(cursor, where, 2)
        precision, scale = (*digits, 0)[:2] if digits else (10, 0)
        if not 1 <= precision <= 65 or scale > min(30, precision):
            raise DdlNotFollowed(f"{where}: its digits are not understood")
        return _ParsedType(
            "decimal", f"decimal({precision},{scale}){_parse_sign(cursor)}", precision=precision, scale=scale
        )
    if word in ("FLOAT", "DOUBLE", "REAL"):
        return _parse_float_type(cursor, word, where, session)
    if word in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        sizes = _parse_numbers(cursor, where, 1)
        if not sizes and word.startswith("VAR"):
            raise DdlNotFollowed(f"{where}: its length is not understood")
        length = sizes[0] if sizes else 1
        return _ParsedType(lower, f"{lower}({length})", length)
    for suffix in ("text", "blob"):
        if lower.endswith(suffix) and lower.removesuffix(suffix) in _SIZES:
            if cursor.peek() == "(":
                raise DdlNotFollowed(f"{where}: a length of {word} is not followed")
            return _ParsedType(lower, lower)
    if word in ("ENUM", "SET"):
        return _parse_members(cursor, lower, where)
    if word in ("DATETIME", "TIMESTAMP", "TIME"):
        if server.old_temporal_format:
            raise DdlNotFollowed(f"{where}: dates and times get an old format under mysql56_temporal_format=OFF")
        digits = _parse_numbers(cursor, where, 1)
        fsp = digits[0] if digits else 0
        if fsp > 6:
            raise DdlNotFollowed(f"{where}: its digits are not understood")
        return _ParsedType(lower, f"{lower}({fsp})" if fsp else lower, fsp=fsp)
    if word == "YEAR":
        if _parse_numbers(cursor, where, 1) not in ([], [4]):
            raise DdlNotFollowed(f"{where}: a YEAR without its century is not followed")
        return _ParsedType(lower, "year(4)" if server.mariadb else "year")
    if word == "BIT":
        digits = _parse_numbers(cursor, where, 1)
        bits = digits[0] if digits else 1
        if not 1 <= bits <= 64:
            raise DdlNotFollowed(f"{where}: its bits are not understood")
        return _ParsedType(lower, f"bit({bits})", precision=bits)
    if word == "JSON":
        if server.mariadb:
            return _ParsedType("longtext", "longtext", charset="utf8mb4", collation="utf8mb4_bin")
        return _ParsedType(lower, lower)
    if word == "DATE" or (word == "UUID" and server.mariadb):
        return _ParsedType(lower, lower)
    if lower in GEOMETRY_TYPES and lower not in ("geomcollection", "geometrycollection"):
        return _ParsedType(lower, lower)
    cursor.at -= 1
    raise DdlNotFollowed(f"{where}: {word if word in ('SERIAL', 'LONG', 'NATIONAL') else 'its'} type is not followed")


def _parse_numbers(cursor: TokenCursor, where: str, most: int) -> list[int]:
    """Parse numbers in parentheses, if there are any."""
    if not cursor.accept("("):
        return []
    numbers = [cursor.expect_number(where)]
    while len(numbers) < most and cursor.accept(","):
        numbers.append(cursor.expect_number(where))
    cursor.expect(")", where)
    return numbers


def _parse_sign(cursor: TokenCursor) -> str:
    """Parse UNSIGNED and ZEROFILL, and return them as the catalog shows them; ZEROFILL implies UNSIGNED."""
    keywords = set[str]()
    while word := cursor.accept_any("SIGNED", "UNSIGNED", "ZEROFILL"):
        keywords.add(word)
    if "ZEROFILL" in keywords:
        return " unsigned zerofill"
    return " unsigned" if "UNSIGNED" in keywords else ""


def _parse_integer_type(cursor: TokenCursor, kind: str, where: str, server: ServerTraits) -> _ParsedType:
    digits = _parse_numbers(cursor, where, 1)
    sign = _parse_sign(cursor)
    if digits and not 1 <= digits[0] <= 255:
        raise DdlNotFollowed(f"{where}: its digits are not understood")
    width = digits[0] if digits else _DIGITS[kind][bool(sign)]
    # MySQL keeps the width only with ZEROFILL, and for tinyint(1), which may be a BOOLEAN.
    shows = server.mariadb or sign.endswith("zerofill") or (kind == "tinyint" and digits == [1] and not sign)
    return _ParsedType(kind, f"{kind}({width}){sign}" if shows else f"{kind}{sign}")


def _parse_float_type(cursor: TokenCursor, word: str, where: str, session: StatementSession) -> _ParsedType:
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    kind = "float" if word == "FLOAT" or (word == "REAL" and session.real_as_float) else "double"
    digits, shown = _parse_numbers(cursor, where, 2), ""
    if len(digits) == 1:
        if word != "FLOAT" or digits[0] > 53:
            raise DdlNotFollowed(f"{where}: its digits are not understood")
        kind = "float" if digits[0] <= 24 else "double"
    elif digits:
        if not 1 <= digits[0] <= 255 or digits[1] > min(30, digits[0]):
            raise DdlNotFollowed(f"{where}: its digits are not understood")
        shown = f"({digits[0]},{digits[1]})"
    return _ParsedType(kind, f"{kind}{shown}{_parse_sign(cursor)}")


def _parse_members(cursor: TokenCursor, kind: str, where: str) -> _ParsedType:
    cursor.expect("(", where)
    members = [cursor.expect_string(where)]
    while cursor.accept(","):
        members.append(cursor.expect_string(where))
    cursor.expect(")", where)
    members = [m.rstrip(" ") for m in members]
    if len({m.casefold() for m in members}) < len(members):
        raise DdlNotFollowed(f"{where}: two of its members are alike")
    if any(c < " " or c == "?" for m in members for c in m) or (kind == "set" and any("," in m for m in members)):
        raise DdlNotFollowed(f"{where}: a member has a character that the catalog may show in another form")
    if len(members) > (64 if kind == "set" else 65535) or max(map(len, members)) > 255:
        raise DdlNotFollowed(f"{where}: its members are too many or too long")
    shown = ",".join("'{}'".format(m.replace("\\", "\\\\").replace("'", "''")) for m in members)
    longest = max(map(len, members)) if kind == "enum" else sum(map(len, members)) + len(members) - 1
    return _ParsedType(kind, f"{kind}({shown})", longest, members=tuple(members))


def _to_catalog_column(name: str, parsed_type: _ParsedType, where: str, server: ServerTraits) -> Column:
    """Return the column as the catalog would show it."""
    length = octets = parsed_type.length
    if parsed_type.charset is not None:
        width = server.max_char_bytes[parsed_type.charset]
        if parsed_type.kind in ("char", "varchar", "enum", "set"):
            octets = (length or 0) * width
        elif parsed_type.kind in TEXT_TYPES:
            octets = _SIZES[parsed_type.kind.removesuffix("text")]
            length = octets // _MIN_CHAR_BYTES.get(parsed_type.charset, 1)
    elif parsed_type.kind in BINARY_TYPES and parsed_type.kind.endswith("blob"):
        length = octets = _SIZES[parsed_type.kind.removesuffix("blob")]
    if (parsed_type.kind in ("char", "binary") and (length or 0) > 255) or (
        parsed_type.kind in ("varchar", "varbinary") and (octets or 0) > _MAX_VARCHAR_BYTES
    ):
        raise DdlNotFollowed(f"{where}: it is too long for its type")
    if parsed_type.charset not in _UNICODE_CHARSETS and not all(m.isascii() for m in parsed_type.members):
        raise DdlNotFollowed(f"{where}: a member has a character that its character set may not have")
    return Column(
        name=name,
        data_type=parsed_type.kind,
        column_type=parsed_type.column_type,
        nullable=True,
        length=length,
        octets=octets,
        charset=parsed_type.charset,
        collation=parsed_type.collation,
        precision=parsed_type.precision,
        scale=parsed_type.scale,
        fsp=parsed_type.fsp,
        members=parsed_type.members,
    )
