"""SQL text for names, key values and key ranges. The server decides every question of order or equality of keys.

Python never compares two string keys: collations (case, accents, padding) are the server's business, so bounds are
sent as literals in the column's own character set and collation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.plan import Chunk, Key, KeyValue
from airflow_provider_cdc.model.schema import (
    ADDRESS_TYPES,
    BINARY_TYPES,
    INTEGER_TYPES,
    ROUND_TRIP_CHARSETS,
    TEXT_TYPES,
    UTF8_CHARSETS,
    Column,
    TableSchema,
    unknown_type_error,
)
from airflow_provider_cdc.mysql.client.charsets import NoRoundTripError

#: Types whose canonical key value is a number. For an ENUM it is the index of the member, which is its sort order.
_NUMERIC_KEY_TYPES = INTEGER_TYPES | {"year", "enum"}
#: Keywords in front of literals.
_LITERAL_KEYWORDS = {"date": "DATE", "time": "TIME", "datetime": "TIMESTAMP", "timestamp": "TIMESTAMP"}
#: Collations whose Unicode mapping is smaller than that of their character set, each with a collation that has the full
#: mapping. The server shows characters that the smaller mapping lacks as question marks.
FULL_COLLATIONS = {"latin2_czech_cs": "latin2_bin"}


def quote_name(name: str) -> str:
    """Quote a name as an SQL identifier, whatever characters it contains."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Return text as an SQL literal that no character can break out of."""
    return f"_utf8mb4 x'{text.encode().hex()}'" if text else "''"


def row_literal(values: str) -> str:
    """Return a row of a VALUES statement, from its values as SQL."""
    # MySQL requires the keyword ROW here. MariaDB rejects it, and treats this as an ordinary comment.
    return f"/*!80000 ROW*/({values})"


def table_name(table: TableSchema) -> str:
    """Return the qualified name of a table as SQL."""
    return f"{quote_name(table.database)}.{quote_name(table.name)}"


def key_list(table: TableSchema, suffix: str = "") -> str:
    """Return the key columns as an SQL list, each followed by a suffix such as `` DESC``."""
    return ", ".join(quote_name(name) + suffix for name in table.key)


def round_trip_condition(column: Column) -> str | None:
    """Return the SQL condition that a key value survives the conversion to Unicode and back.

    Only then is it the only value with its text.

    :returns: ``None`` if every value of the column survives.
    """
    name = quote_name(column.name)
    if column.data_type == "enum":
        return f"{name} + 0 > 0" if "" in column.members else None  # 0, which is not a member, is shown as '' too
    if column.data_type not in TEXT_TYPES or column.charset in ROUND_TRIP_CHARSETS:
        return None
    back = f"CONVERT(CONVERT({name} USING utf8mb4) USING {column.charset})"
    same = f"CAST({back} AS BINARY) = CAST({name} AS BINARY)"
    # Only MariaDB accepts non-ASCII bytes in an ascii column, and only MariaDB executes the comment.
    return f"TRUE /*M!100000 AND {same} */" if column.charset == "ascii" else same


def copied_expression(table: TableSchema, column: Column) -> str:
    """Return the SQL expression for the copied value of a column.

    It is NULL for a key value that does not survive the conversion to Unicode and back.
    """
    condition = round_trip_condition(column) if column.name in table.key else None
    name = _convertible_expression(column)
    # MySQL sends an ENUM that is the result of IF with a different type.
    text = f"CAST({name} AS CHAR)" if column.data_type == "enum" else name
    return name if condition is None else f"IF({condition}, {text}, NULL)"


def _convertible_expression(column: Column) -> str:
    """Return the SQL expression that the server converts to Unicode with the full mapping of the character set."""
    whole = FULL_COLLATIONS.get(str(column.collation)) if column.data_type in TEXT_TYPES else None
    return f"{quote_name(column.name)} COLLATE {whole}" if whole else quote_name(column.name)


def no_round_trip_error(column: Column, code: str) -> NoRoundTripError:
    """Return the error for a key value that does not survive the conversion to Unicode and back.

    :param code: the bytes of the value, in hex.
    """
    return NoRoundTripError(str(column.charset) if column.data_type in TEXT_TYPES else "", code)


def canonical_expression(column: Column) -> str:
    """Return the SQL expression for a key column's canonical text (see :mod:`airflow_provider_cdc.model.plan`)."""
    name, condition = quote_name(column.name), round_trip_condition(column)
    if column.data_type in BINARY_TYPES:
        return f"LOWER(HEX({name}))"
    if column.data_type in TEXT_TYPES:
        utf8 = name if column.charset in UTF8_CHARSETS else f"CONVERT({_convertible_expression(column)} USING utf8mb4)"
        expression = f"LOWER(HEX({utf8}))"
    else:
        expression = f"CAST({name}{' + 0' if column.data_type == 'enum' else ''} AS CHAR)"
    return expression if condition is None else f"IF({condition}, {expression}, CONCAT('!', HEX({name})))"


def parse_canonical(column: Column, text: str) -> KeyValue:
    """Parse the canonical key value that :func:`canonical_expression` selects.

    :raises NoRoundTripError: if the value does not survive the conversion to Unicode and back.
    """
    if text.startswith("!"):
        raise no_round_trip_error(column, text[1:])
    if column.data_type in TEXT_TYPES:
        try:
            bytes.fromhex(text).decode()
        except UnicodeDecodeError:
            raise no_round_trip_error(column, text) from None
    return int(text) if column.data_type in _NUMERIC_KEY_TYPES else text


def key_literal(column: Column, value: KeyValue) -> str:
    """Return a key value as an SQL literal that compares exactly as the column does."""
    kind = column.data_type
    if kind in _NUMERIC_KEY_TYPES:
        return str(int(value))
    if kind in TEXT_TYPES:
        if column.charset in UTF8_CHARSETS:
            text = f"_{column.charset} x'{value}'" if value else f"_{column.charset} ''"
        else:  # the server's own conversion, not Python's
            text = f"CONVERT(_utf8mb4 x'{value}' USING {column.charset})"
        return f"{text} COLLATE {column.collation}"
    if kind in BINARY_TYPES:
        return f"x'{value}'" if value else "_binary ''"
    if kind in ADDRESS_TYPES:
        return f"CAST('{value}' AS {kind})"
    if kind == "decimal":
        return f"CAST('{value}' AS DECIMAL({column.precision},{column.scale}))"
    if kind in _LITERAL_KEYWORDS:
        return f"{_LITERAL_KEYWORDS[kind]}'{value}'"
    raise unknown_type_error(column)


def key_value_from_arrow(column: Column, value: Any) -> KeyValue:
    """Return the canonical key value for the Python value of an Arrow scalar."""
    kind = column.data_type
    if kind in INTEGER_TYPES or kind == "year":
        return int(value)
    if kind == "enum":
        return column.members.index(value) + 1 if value or "" in column.members else 0  # 0: not a member, shown as ''
    if kind in TEXT_TYPES:
        return str(value.encode().hex())
    if kind in BINARY_TYPES:
        return str(value.hex())
    if kind == "time":
        return format_time(int(value))
    if kind in {"datetime", "timestamp"}:
        return str(value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds"))
    return str(value)


def format_time(micros: int) -> str:
    """Format a TIME, given in microseconds, as the server prints it."""
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


def keys_of(table: TableSchema, data: pa.Table) -> list[Key]:
    """Return the canonical keys of the rows of an Arrow table."""
    columns = [
        [key_value_from_arrow(column, value) for value in data[column.name].to_pylist()] for column in table.key_columns
    ]
    return list(zip(*columns, strict=True))


def compare_key(table: TableSchema, key: Key, operator: str) -> str:
    """Return an SQL condition that compares a row's key with ``key``.

    The condition is in expanded form, because the range optimizer does not use (a, b) > (x, y).

    :param key: a key or the leading values of one; only the columns of these values are compared. Every row matches an
        empty key.
    :param operator: ``<``, ``<=``, ``>`` or ``>=``.
    """
    if not key:
        return "TRUE"
    columns = table.key_columns[: len(key)]
    same: list[str] = []
    alternatives = []
    for i, (column, value) in enumerate(zip(columns, key, strict=True)):
        strict = operator if i == len(columns) - 1 else operator[0]
        alternatives.append(" AND ".join([*same, _compare_column(column, strict, value)]))
        same.append(f"{quote_name(column.name)} = {key_literal(column, value)}")
    return alternatives[0] if len(alternatives) == 1 else "(" + " OR ".join(f"({a})" for a in alternatives) + ")"


def _compare_column(column: Column, operator: str, value: KeyValue) -> str:
    if column.data_type != "enum":
        return f"{quote_name(column.name)} {operator} {key_literal(column, value)}"
    # The server looks up a member by its index, but not the members above or below one. Index 0 is not a member.
    holds = {"<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}[operator]
    none = len(column.members) + 1  # the index of no member
    members = [i for i in range(none) if holds(i, int(value))]
    # At least two: a single one would make this an equality, and the server would sort all rows that it finds.
    members += [none, none + 1][: max(0, 2 - len(members))]
    return f"{quote_name(column.name)} IN ({', '.join(map(str, members))})"


def chunk_condition(table: TableSchema, chunk: Chunk) -> str:
    """Return the SQL condition that a row belongs to a chunk."""
    end = compare_key(table, chunk.upper, "<=" if chunk.includes_upper else "<")
    return f"{compare_key(table, chunk.lower, '>=')} AND {end}"


def count_passed_bounds(table: TableSchema, keys: Iterable[Key], bounds: Iterable[tuple[Key, bool]]) -> str:
    """Return a statement that counts, for each key, the bounds that it has passed.

    The statement compares values, as :func:`chunk_condition` and the index do, because a server sorts keys in some
    collations in a different order.

    :param keys: keys, numbered from 0 in this order.
    :param bounds: (bound, whether a key equal to it has not passed it yet). A bound may be the leading values of a
        key; a key that begins with them is equal to it.
    :returns: SQL that selects key numbers and counts.
    """
    names = [f"c{i}" for i in range(len(table.key))]
    condition = "NOT b.past"
    for name in reversed(names):
        condition = f"b.{name} < k.{name} OR ((b.{name} = k.{name} OR b.{name} IS NULL) AND ({condition}))"
    value_rows = (
        ", ".join(row_literal(", ".join([*_literals(table, key), str(int(number))])) for key, number in of)
        for of in (((key, n) for n, key in enumerate(keys)), bounds)
    )
    columns = ", ".join(names)
    return (
        f"WITH k ({columns}, no) AS (VALUES {next(value_rows)}), b ({columns}, past) AS (VALUES {next(value_rows)}) "
        f"SELECT no, COALESCE(SUM({condition}), 0) FROM k CROSS JOIN b GROUP BY no"
    )


def _literals(table: TableSchema, key: Key) -> list[str]:
    """Return the values of a key, or its leading ones, as SQL, with NULL for the missing ones."""
    return [*map(key_literal, table.key_columns, key), *["NULL"] * (len(table.key) - len(key))]
