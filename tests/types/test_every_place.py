"""Every type is known in every place that has to know of it; an unknown one is refused by name, not taken for bytes.

How to add a type is in docs/architecture.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pymysql.constants import FIELD_TYPE

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.schema import (
    BINARY_TYPES,
    GEOMETRY_TYPES,
    KEY_TYPES,
    MEMBER_TYPES,
    SUPPORTED_TYPES,
    TEXT_TYPES,
    Column,
    TableSchema,
)
from airflow_provider_cdc.mysql.binlog.events import table_map, wire_types
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap
from airflow_provider_cdc.mysql.binlog.events.wire_types import WireColumn
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import ChangeBuffer
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS
from airflow_provider_cdc.mysql.client.key_sql import canonical_expression, key_literal, parse_canonical
from airflow_provider_cdc.mysql.keys.ranges import parse_key_value
from airflow_provider_cdc.mysql.resultset.columns import kind_and_scale
from tests import ROOT
from tests.support.binlog.row_decoder import _value_readers

#: Type codes of result sets; MariaDB sends its own types as text, and a vector as bytes.
CODES = {
    "tinyint": FIELD_TYPE.TINY,
    "smallint": FIELD_TYPE.SHORT,
    "mediumint": FIELD_TYPE.INT24,
    "int": FIELD_TYPE.LONG,
    "bigint": FIELD_TYPE.LONGLONG,
    "year": FIELD_TYPE.YEAR,
    "bit": FIELD_TYPE.BIT,
    "decimal": FIELD_TYPE.NEWDECIMAL,
    "float": FIELD_TYPE.FLOAT,
    "double": FIELD_TYPE.DOUBLE,
    "date": FIELD_TYPE.DATE,
    "datetime": FIELD_TYPE.DATETIME,
    "timestamp": FIELD_TYPE.TIMESTAMP,
    "time": FIELD_TYPE.TIME,
    "json": FIELD_TYPE.JSON,
    "vector": 242,
    **dict.fromkeys(GEOMETRY_TYPES, FIELD_TYPE.GEOMETRY),
    **dict.fromkeys(TEXT_TYPES | BINARY_TYPES | MEMBER_TYPES | {"uuid", "inet4", "inet6"}, FIELD_TYPE.STRING),
}
#: Keys as the plan writes them.
KEYS = {
    **dict.fromkeys(("decimal",), "1.50"),
    "date": "2001-02-03",
    "time": "01:02:03",
    "datetime": "2001-02-03 04:05:06",
    "timestamp": "2001-02-03 04:05:06",
    "uuid": "00000000-0000-0000-0000-000000000001",
    "inet4": "10.0.0.1",
    "inet6": "::1",
    **dict.fromkeys(TEXT_TYPES | BINARY_TYPES, "61"),
}
UNSIGNED, BINARY = 32, 63


def column(kind: str) -> Column:
    is_text = kind in TEXT_TYPES or kind in MEMBER_TYPES
    return Column(
        "c",
        kind,
        f"{kind} unsigned" if kind == "year" else kind,
        nullable=True,
        octets=40,
        charset="utf8mb4" if is_text else None,
        collation="utf8mb4_bin" if is_text else None,
        precision=9,
        scale=2,
        members=("a", "b") if kind in MEMBER_TYPES else (),
    )


def map_of(found: Column, wire: WireColumn) -> TableMap:
    return TableMap(TableSchema("d", "t", (found,), ()), (wire,), {}, "binlog.000001:4")


def in_binlog(kind: str) -> TableMap:
    found = column(kind)
    return map_of(found, table_map._expected_layout(found, mariadb_vector=False))


def in_result_set(kind: str) -> bool:
    found = column(kind)
    is_bytes = pa.types.is_binary(found.arrow_type) or pa.types.is_list(found.arrow_type)
    flags = UNSIGNED if kind == "year" else 0
    return kind_and_scale(CODES[kind], flags, BINARY if is_bytes else 255, 2, found.arrow_type) is not None


def as_key(kind: str) -> bool:
    found = column(kind)
    value = parse_canonical(found, str(KEYS.get(kind, 1)))
    return bool(canonical_expression(found)) and str(KEYS.get(kind, 1)).split(".")[0] in key_literal(found, value)


def in_the_page(kind: str) -> bool:
    """Which types there are, and what becomes of them."""
    page = (ROOT / "docs" / "types.md").read_text().lower()
    families = ((TEXT_TYPES, "text"), (BINARY_TYPES, "blob"), (GEOMETRY_TYPES, "spatial"))
    wanted = next((word for family, word in families if kind in family and kind.endswith(word)), kind)
    if kind in GEOMETRY_TYPES:
        wanted = "spatial"
    return re.search(rf"\b{wanted}", page) is not None


#: Each place that has to know of a type: what it says of one that it knows is true.
PLACES: dict[str, Callable[[str], Any]] = {
    "model/schema.py, arrow_type": lambda kind: column(kind).arrow_type,
    "model/schema.py, refusal": lambda kind: column(kind).unsupported_reason() is None,
    "mysql/binlog/events/table_map.py, _expected_layout": lambda kind: (
        table_map._expected_layout(column(kind), False).type
    ),
    "tests/support/binlog/row_decoder.py, _value_readers": lambda kind: (
        len(_value_readers(in_binlog(kind), UNICODE_DECODERS)) == 1
    ),
    "mysql/binlog/walk/column_plan.py, plan_column": lambda kind: ChangeBuffer(in_binlog(kind), UNICODE_DECODERS),
    "mysql/resultset/columns.py, kind_and_scale": in_result_set,
    "docs/types.md": in_the_page,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", sorted(SUPPORTED_TYPES))
def test_every_type_is_known(kind: str, place: str) -> None:
    assert PLACES[place](kind), f"{kind} is not known in {place}"


@pytest.mark.parametrize("kind", sorted(KEY_TYPES))
def test_every_type_of_a_key(kind: str) -> None:
    assert kind in SUPPORTED_TYPES and as_key(kind)
    written = "a" if kind == "enum" else str(KEYS.get(kind, 1))
    if kind not in TEXT_TYPES | BINARY_TYPES:
        assert parse_key_value(column(kind), written) in (
            parse_canonical(column(kind), str(KEYS.get(kind, 1))),
            f"{written}.000000",
        )


def test_a_type_that_is_not_known_is_refused_by_name() -> None:
    """Not taken for bytes with a length in front."""
    kind, wire = "hologram", WireColumn(wire_types.BLOB, 4)
    assert "hologram" in str(column(kind).unsupported_reason())
    places: list[Callable[[], Any]] = [
        lambda: column(kind).arrow_type,
        lambda: _value_readers(map_of(column(kind), wire), UNICODE_DECODERS),
        lambda: ChangeBuffer(map_of(column(kind), wire), UNICODE_DECODERS),
        lambda: ChangeBuffer(map_of(column(kind), wire), UNICODE_DECODERS, count_only=True),
        lambda: key_literal(column(kind), "1"),
    ]
    for place in places:
        with pytest.raises(CdcError, match="hologram"):
            place()


def test_every_type_code_of_the_binlog() -> None:
    """A code has a layout, or rows of the table stop the stream: nothing lies in between."""
    groups = (table_map._ONE_BYTE_META, table_map._TWO_BYTE_META, table_map._NO_META)
    known = frozenset[int]().union(*groups)
    assert len(known) == sum(map(len, groups))
    assert set(table_map._WIRE_TYPES.values()) | set(table_map.OLD_TEMPORAL_TYPES.values()) <= known
    # What is left of those that the protocol has: types that no server of today writes, and those of a result set.
    names = {code: name for name, code in vars(FIELD_TYPE).items() if isinstance(code, int)}
    assert {names[code] for code in names if code not in known} == {
        "DECIMAL",
        "NULL",
        "TINY_BLOB",
        "MEDIUM_BLOB",
        "LONG_BLOB",
    }
    schema = TableSchema("d", "t", (column("int"),), ())
    for code in set(range(256)) - known:
        with pytest.raises(CdcError, match=rf"unknown type {code} in the binlog"):
            list(table_map._parse_wire_columns(bytes([code]), memoryview(bytes(4)), schema, "here"))
