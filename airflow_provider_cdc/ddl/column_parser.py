"""A column's definition as a statement spells it, turned into what the catalog says of such a column."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.ddl.alter_parser import Cursor, NotFollowed, Server, Session
from airflow_provider_cdc.model.schema import BINARY_TYPES, GEOMETRY_TYPES, TEXT_TYPES, Column

#: Whole numbers: other names of each, and the digits that MariaDB shows, signed and unsigned.
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
#: Character sets whose shortest character has more than one byte.
_WIDE = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
#: Most bytes of a VARCHAR or VARBINARY; what is longer becomes TEXT or BLOB where the session is not strict.
_LONGEST = 65535
#: Character sets whose members may have more than ASCII: that of the catalog, as far as it goes.
_ANY_TEXT = frozenset({"utf8mb4", "utf8mb3"})
_TOO_LONG = 1024


@dataclass
class Defined:
    """A column's definition.

    :param column: what the catalog says of it, if it may be NULL.
    :param comment: what its comment says.
    :param nullability: what the statement says of NULL: that it may be, that it may not, or nothing.
    :param has_default: whether there is a default that is not NULL.
    """

    column: Column
    comment: str = ""
    nullability: bool | None = None
    has_default: bool = False


@dataclass
class _Type:
    kind: str
    column_type: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    fsp: int = 0
    members: tuple[str, ...] = ()
    charset: str | None = None
    collation: str | None = None


def read_column(
    cursor: Cursor, name: str, where: str, session: Session, server: Server, collation: str | None
) -> Defined:
    """Read a column's type and attributes, up to its place or the clause's end.

    :param name: the column's name, which was read before.
    :param where: clause and column, for messages.
    :param collation: the table's.
    :raises NotFollowed: for whatever is not sure.
    """
    parsed_type = _type(cursor, where, session, server)
    textual = parsed_type.kind in TEXT_TYPES or parsed_type.kind in ("enum", "set")
    charset = collate = None
    if parsed_type.charset is not None:  # of JSON on MariaDB, whatever the table has
        textual = False
    definition = Defined(Column(name, parsed_type.kind, parsed_type.column_type, True))
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
                raise NotFollowed(f"{where}: NULL is said twice")
            definition.nullability = null
        elif cursor.accept("DEFAULT"):
            definition.has_default = read_default(cursor, where)
        elif cursor.accept("ON", "UPDATE"):
            if not _now(cursor):
                cursor.fail(f"{where}, ON UPDATE")
        elif cursor.accept("COMMENT"):
            definition.comment = read_comment(cursor, where)
        elif textual and cursor.accept("COLLATE"):
            collate = cursor.expect_name(where).lower()
        elif cursor.accept("INVISIBLE") or (not server.mariadb and cursor.accept("VISIBLE")):
            pass
        else:
            cursor.fail(where)
    if textual:
        parsed_type.charset, parsed_type.collation = text_collation(where, session, server, collation, charset, collate)
    definition.column = _column(name, parsed_type, where, server)
    if (reason := definition.column.unsupported_reason()) is not None:
        raise NotFollowed(f"{where}: {reason}")
    return definition


def read_comment(cursor: Cursor, where: str) -> str:
    """A comment, if the catalog shows it as it stands."""
    text = cursor.expect_string(f"{where}, COMMENT")
    if len(text) > _TOO_LONG or any(c < " " and c not in "\t\n\r" for c in text):
        raise NotFollowed(f"{where}: its comment may be kept in another form")
    return text


def read_default(cursor: Cursor, where: str) -> bool:
    """Go past a default; whether it is another one than NULL."""
    if cursor.accept("NULL"):
        return False
    if cursor.at_string:
        cursor.expect_string(where)
    elif cursor.peek() == "(":
        cursor.skip_brackets(where)
    elif not (cursor.accept("TRUE") or cursor.accept("FALSE") or _now(cursor)):
        _ = cursor.accept("-") or cursor.accept("+")
        cursor.expect_number(f"{where}, DEFAULT")
        if cursor.accept("."):
            cursor.expect_number(f"{where}, DEFAULT")
    return True


def _now(cursor: Cursor) -> bool:
    if not cursor.accept_any("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"):
        return False
    if cursor.peek() == "(":
        cursor.skip_brackets("a default")
    return True


def text_collation(
    where: str, session: Session, server: Server, default: str | None, charset: str | None, collate: str | None
) -> tuple[str, str]:
    """Character set and collation of a text.

    :param default: collation where nothing is said.
    :param charset: what is said of the one.
    :param collate: what is said of the other.
    """
    if charset == "utf8" and not server.mariadb and charset not in server.default_collations:
        charset = "utf8mb3"
    if charset is not None and charset not in server.default_collations:
        raise NotFollowed(f"{where}: its character set is not known")
    if collate is None and charset is not None:
        collate = _default_collation(charset, where, session, server)
    elif collate is None:
        collate = default
    if collate is None:
        raise NotFollowed(f"{where}: the default collation of the table was not written down when it was planned")
    if collate not in server.charset_by_collation:
        raise NotFollowed(f"{where}: its collation is not known")
    of_collation = server.charset_by_collation[collate]
    if charset is not None and charset != of_collation:
        raise NotFollowed(f"{where}: its collation is not of its character set")
    if of_collation == "binary":
        raise NotFollowed(f"{where}: text of character set binary has another type")
    return of_collation, collate


def _default_collation(charset: str, where: str, session: Session, server: Server) -> str:
    """What the server takes where a character set comes without a collation: sessions may have a say in it."""
    if server.mariadb and server.version >= (11, 2):
        raise NotFollowed(f"{where}: which collation comes with its character set depends on character_set_collations")
    if not server.mariadb and charset == "utf8mb4":
        if session.utf8mb4_collation is None:
            raise NotFollowed(f"{where}: which collation comes with its character set is not known")
        return session.utf8mb4_collation
    return server.default_collations[charset]


def _type(cursor: Cursor, where: str, session: Session, server: Server) -> _Type:
    if not session.standard_types:
        raise NotFollowed(f"{where}: types have another meaning under its sql_mode")
    word = cursor.peek()
    cursor.at += 1
    lower = word.lower()
    if word in _INTEGERS:
        return _integer(cursor, _INTEGERS[word], where, server)
    if word in ("BOOL", "BOOLEAN"):
        return _Type("tinyint", "tinyint(1)")
    if word in _DECIMALS:
        digits = _brackets(cursor, where, 2)
        precision, scale = (*digits, 0)[:2] if digits else (10, 0)
        if not 1 <= precision <= 65 or scale > min(30, precision):
            raise NotFollowed(f"{where}: its digits are not understood")
        return _Type("decimal", f"decimal({precision},{scale}){_sign(cursor)}", precision=precision, scale=scale)
    if word in ("FLOAT", "DOUBLE", "REAL"):
        return _floating(cursor, word, where, session)
    if word in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        sizes = _brackets(cursor, where, 1)
        if not sizes and word.startswith("VAR"):
            raise NotFollowed(f"{where}: its length is not understood")
        length = sizes[0] if sizes else 1
        return _Type(lower, f"{lower}({length})", length)
    for suffix in ("text", "blob"):
        if lower.endswith(suffix) and lower.removesuffix(suffix) in _SIZES:
            if cursor.peek() == "(":
                raise NotFollowed(f"{where}: a length of {word} is not followed")
            return _Type(lower, lower)
    if word in ("ENUM", "SET"):
        return _members(cursor, lower, where)
    if word in ("DATETIME", "TIMESTAMP", "TIME"):
        if server.old_temporal_format:
            raise NotFollowed(f"{where}: dates and times get an old format under mysql56_temporal_format=OFF")
        digits = _brackets(cursor, where, 1)
        fsp = digits[0] if digits else 0
        if fsp > 6:
            raise NotFollowed(f"{where}: its digits are not understood")
        return _Type(lower, f"{lower}({fsp})" if fsp else lower, fsp=fsp)
    if word == "YEAR":
        if _brackets(cursor, where, 1) not in ([], [4]):
            raise NotFollowed(f"{where}: a YEAR without its century is not followed")
        return _Type(lower, "year(4)" if server.mariadb else "year")
    if word == "BIT":
        digits = _brackets(cursor, where, 1)
        bits = digits[0] if digits else 1
        if not 1 <= bits <= 64:
            raise NotFollowed(f"{where}: its bits are not understood")
        return _Type(lower, f"bit({bits})", precision=bits)
    if word == "JSON":
        if server.mariadb:
            return _Type("longtext", "longtext", charset="utf8mb4", collation="utf8mb4_bin")
        return _Type(lower, lower)
    if word == "DATE" or (word == "UUID" and server.mariadb):
        return _Type(lower, lower)
    if lower in GEOMETRY_TYPES and lower not in ("geomcollection", "geometrycollection"):
        return _Type(lower, lower)
    cursor.at -= 1
    raise NotFollowed(f"{where}: {word if word in ('SERIAL', 'LONG', 'NATIONAL') else 'its'} type is not followed")


def _brackets(cursor: Cursor, where: str, most: int) -> list[int]:
    """Numbers in brackets, if there are any."""
    if not cursor.accept("("):
        return []
    numbers = [cursor.expect_number(where)]
    while len(numbers) < most and cursor.accept(","):
        numbers.append(cursor.expect_number(where))
    cursor.expect(")", where)
    return numbers


def _sign(cursor: Cursor) -> str:
    """UNSIGNED and ZEROFILL as the catalog shows them: the latter comes with the former."""
    keywords = set[str]()
    while word := cursor.accept_any("SIGNED", "UNSIGNED", "ZEROFILL"):
        keywords.add(word)
    if "ZEROFILL" in keywords:
        return " unsigned zerofill"
    return " unsigned" if "UNSIGNED" in keywords else ""


def _integer(cursor: Cursor, kind: str, where: str, server: Server) -> _Type:
    digits = _brackets(cursor, where, 1)
    sign = _sign(cursor)
    if digits and not 1 <= digits[0] <= 255:
        raise NotFollowed(f"{where}: its digits are not understood")
    width = digits[0] if digits else _DIGITS[kind][bool(sign)]
    # MySQL keeps them where they are seen, and for what may be a BOOLEAN.
    shows = server.mariadb or sign.endswith("zerofill") or (kind == "tinyint" and digits == [1] and not sign)
    return _Type(kind, f"{kind}({width}){sign}" if shows else f"{kind}{sign}")


def _floating(cursor: Cursor, word: str, where: str, session: Session) -> _Type:
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    kind = "float" if word == "FLOAT" or (word == "REAL" and session.real_as_float) else "double"
    digits, shown = _brackets(cursor, where, 2), ""
    if len(digits) == 1:
        if word != "FLOAT" or digits[0] > 53:
            raise NotFollowed(f"{where}: its digits are not understood")
        kind = "float" if digits[0] <= 24 else "double"
    elif digits:
        if not 1 <= digits[0] <= 255 or digits[1] > min(30, digits[0]):
            raise NotFollowed(f"{where}: its digits are not understood")
        shown = f"({digits[0]},{digits[1]})"
    return _Type(kind, f"{kind}{shown}{_sign(cursor)}")


def _members(cursor: Cursor, kind: str, where: str) -> _Type:
    cursor.expect("(", where)
    members = [cursor.expect_string(where)]
    while cursor.accept(","):
        members.append(cursor.expect_string(where))
    cursor.expect(")", where)
    members = [m.rstrip(" ") for m in members]
    if len({m.casefold() for m in members}) < len(members):
        raise NotFollowed(f"{where}: two of its members are alike")
    if any(c < " " or c == "?" for m in members for c in m) or (kind == "set" and any("," in m for m in members)):
        raise NotFollowed(f"{where}: a member has a character that the catalog may show in another form")
    if len(members) > (64 if kind == "set" else 65535) or max(map(len, members)) > 255:
        raise NotFollowed(f"{where}: its members are too many or too long")
    shown = ",".join("'{}'".format(m.replace("\\", "\\\\").replace("'", "''")) for m in members)
    longest = max(map(len, members)) if kind == "enum" else sum(map(len, members)) + len(members) - 1
    return _Type(kind, f"{kind}({shown})", longest, members=tuple(members))


def _column(name: str, parsed_type: _Type, where: str, server: Server) -> Column:
    """What the catalog says of it."""
    length = octets = parsed_type.length
    if parsed_type.charset is not None:
        width = server.max_char_bytes[parsed_type.charset]
        if parsed_type.kind in ("char", "varchar", "enum", "set"):
            octets = (length or 0) * width
        elif parsed_type.kind in TEXT_TYPES:
            octets = _SIZES[parsed_type.kind.removesuffix("text")]
            length = octets // _WIDE.get(parsed_type.charset, 1)
    elif parsed_type.kind in BINARY_TYPES and parsed_type.kind.endswith("blob"):
        length = octets = _SIZES[parsed_type.kind.removesuffix("blob")]
    if (parsed_type.kind in ("char", "binary") and (length or 0) > 255) or (
        parsed_type.kind in ("varchar", "varbinary") and (octets or 0) > _LONGEST
    ):
        raise NotFollowed(f"{where}: it is too long for its type")
    if parsed_type.charset not in _ANY_TEXT and not all(m.isascii() for m in parsed_type.members):
        raise NotFollowed(f"{where}: a member has a character that its character set may not have")
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
