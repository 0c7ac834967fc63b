"""What the project knows of a captured table: its columns, its key, and the Arrow type of every value.

The mapping is one law for both roads: a value read by the snapshot and the same value decoded from the binlog
have the same Arrow type and compare equal. Types that cannot be carried exactly yet are refused by name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.exceptions import NotReadyError

#: Charsets whose bytes are UTF-8 as they stand in the binlog and in the result set.
UTF8_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})

#: Columns that the project adds behind the source's own, in this order.
SEQ, OP, TS = "_cdc_seq", "_cdc_op", "_cdc_ts"
META_COLUMNS = (SEQ, OP, TS)

_SIGNED = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}
_UNSIGNED = {
    "tinyint": pa.int16(),
    "smallint": pa.int32(),
    "mediumint": pa.int32(),
    "int": pa.int64(),
    "bigint": pa.decimal128(20, 0),
}
INTEGER_TYPES = frozenset(_SIGNED)
TEXT_TYPES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BINARY_TYPES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
#: Types that may be part of a key. FLOAT and DOUBLE are not exact; ENUM sorts by index; the others cannot be compared.
KEY_TYPES = INTEGER_TYPES | {
    "decimal",
    "char",
    "varchar",
    "binary",
    "varbinary",
    "date",
    "datetime",
    "timestamp",
    "time",
    "year",
}


@dataclass(frozen=True)
class Column:
    """One column as ``information_schema.columns`` describes it.

    :param name: column name, as the server spells it.
    :param data_type: ``DATA_TYPE`` in lower case, such as ``int`` or ``varchar``.
    :param column_type: ``COLUMN_TYPE``, such as ``int unsigned``.
    :param nullable: whether NULL is allowed.
    :param length: characters for text, bytes for binary; ``None`` for other types.
    :param octets: the same length in bytes.
    :param charset: character set of a text or ENUM column.
    :param collation: collation of a text or ENUM column.
    :param precision: digits of a DECIMAL.
    :param scale: digits behind the point of a DECIMAL.
    :param fsp: fractional second digits (0 to 6) of TIME, DATETIME and TIMESTAMP.
    :param members: ENUM members in their order.
    """

    name: str
    data_type: str
    column_type: str
    nullable: bool
    length: int | None = None
    octets: int | None = None
    charset: str | None = None
    collation: str | None = None
    precision: int | None = None
    scale: int | None = None
    fsp: int = 0
    members: tuple[str, ...] = ()

    @property
    def unsigned(self) -> bool:
        """Whether the column is an unsigned integer or decimal."""
        return " unsigned" in self.column_type

    def refusal(self) -> str | None:
        """Why the column cannot be carried exactly, or ``None`` if it can."""
        kind = self.data_type
        if kind in TEXT_TYPES or kind == "enum":
            if self.charset not in UTF8_CHARSETS:
                return f"character set {self.charset} is not supported yet (utf8mb4, utf8mb3 and ascii are)"
            return None
        known = INTEGER_TYPES | BINARY_TYPES
        known |= {"decimal", "float", "double", "date", "datetime", "timestamp", "time", "year", "json"}
        return None if kind in known else f"type {self.column_type} is not supported yet"

    @property
    def arrow_type(self) -> pa.DataType:
        """Arrow type of the column's values.

        :raises NotReadyError: for a type that is not supported.
        """
        kind = self.data_type
        if kind in INTEGER_TYPES:
            return (_UNSIGNED if self.unsigned else _SIGNED)[kind]
        if kind == "decimal":
            precision, scale = self.precision or 10, self.scale or 0
            # Lakehouse decimals end at 38 digits; longer ones keep the server's own text.
            return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
        if kind in TEXT_TYPES or kind in {"enum", "json"}:
            return pa.string()
        if kind in BINARY_TYPES:
            return pa.binary()
        simple = {
            "float": pa.float32(),
            "double": pa.float64(),
            "date": pa.date32(),
            "datetime": pa.timestamp("us"),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "time": pa.int64(),  # microseconds, signed: Delta has no duration type
            "year": pa.int16(),
        }
        if kind not in simple:
            raise NotReadyError(f"column {self.name}: {self.refusal()}")
        return simple[kind]


@dataclass(frozen=True)
class TableSchema:
    """A captured table.

    :param database: database name.
    :param name: table name.
    :param columns: columns in ordinal order, invisible and generated ones included (row events carry them all).
    :param key: names of the columns of the primary key (or of the NOT NULL unique key that stands in), in key order.
    """

    database: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def id(self) -> tuple[str, str]:
        """(database, table): the identity used throughout."""
        return self.database, self.name

    @property
    def label(self) -> str:
        """Name for people: ``database.table``."""
        return f"{self.database}.{self.name}"

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The key's columns in key order."""
        by_name = {c.name: c for c in self.columns}
        return tuple(by_name[name] for name in self.key)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Arrow schema of the source columns alone."""
        return pa.schema([pa.field(c.name, c.arrow_type) for c in self.columns])

    @property
    def sink_schema(self) -> pa.Schema:
        """Arrow schema of a sink table: the source columns, then ``_cdc_seq``, ``_cdc_op``, ``_cdc_ts``."""
        schema = self.arrow_schema
        for field in (
            pa.field(SEQ, pa.int64()),
            pa.field(OP, pa.string()),
            pa.field(TS, pa.timestamp("us", tz="UTC")),
        ):
            schema = schema.append(field)
        return schema

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TableSchema:
        """Inverse of :meth:`to_json`."""
        columns = tuple(Column(**{**c, "members": tuple(c["members"])}) for c in value["columns"])
        return cls(value["database"], value["name"], columns, tuple(value["key"]))

    def fingerprint(self) -> str:
        """Hash of everything that decides how rows are read; equal fingerprints read alike."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]
