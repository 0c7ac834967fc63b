"""Captured tables: their columns, their key, and the Arrow type of every value.

The snapshot and the stream share one type mapping: a value read by a SELECT and the same value decoded from the binlog
have the same Arrow type and compare equal. Types that cannot be copied exactly are rejected by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cached_property

import pyarrow as pa

from airflow_provider_cdc.model.column_policy import (
    HASH,
    METADATA_COLUMNS,
    NULL,
    SOURCE_COLUMN,
    ColumnPolicy,
    copy_column,
)
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.json_record import JsonRecord

#: Charsets whose bytes in the binlog and in result sets are UTF-8.
UTF8_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
#: Charsets whose text survives a round trip through Unicode unchanged, on every server.
ROUND_TRIP_CHARSETS = frozenset(
    {"utf8mb4", "utf8mb3", "utf8", "utf16", "utf16le", "utf32"}
    | {"latin1", "latin2", "latin5", "latin7", "cp850", "cp852", "cp866", "koi8r", "koi8u", "keybcs2"}
    | {"macce", "macroman"}
)

#: Suffix of the type of a column that row events have and the catalog does not.
HIDDEN_SUFFIX = "/* hidden */"

#: Columns that the project adds after those of the source, in this order.
SEQ_COLUMN, OP_COLUMN, TS_COLUMN = "_cdc_seq", "_cdc_op", "_cdc_ts"
META_COLUMNS = (SEQ_COLUMN, OP_COLUMN, TS_COLUMN)
#: All columns that are no values of the source.
PROJECT_COLUMNS = frozenset({*META_COLUMNS, *METADATA_COLUMNS.values(), SOURCE_COLUMN})
#: Follows them in tables that keep deleted rows: whether a row is deleted in the source.
DELETED_COLUMN = "_cdc_deleted"

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
#: Types whose value is one or several members of a list.
MEMBER_TYPES = frozenset({"enum", "set"})
GEOMETRY_TYPES = frozenset(
    {"point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometry", "geomcollection", "geometrycollection"}
)
#: Types of MariaDB that are bytes in the binlog and text everywhere else, with the number of bytes.
ADDRESS_TYPES = {"uuid": 16, "inet6": 16, "inet4": 4}
#: All types that can be copied, as ``information_schema`` names them. tests/types/test_every_place.py checks that each
#: place that depends on types knows all of them.
SUPPORTED_TYPES = (
    INTEGER_TYPES
    | TEXT_TYPES
    | BINARY_TYPES
    | MEMBER_TYPES
    | GEOMETRY_TYPES
    | ADDRESS_TYPES.keys()
    | {"decimal", "float", "double", "bit", "date", "datetime", "timestamp", "time", "year", "json", "vector"}
)
#: Types that may be part of a key. FLOAT and DOUBLE are not exact; the others cannot be compared.
KEY_TYPES = (
    INTEGER_TYPES
    | ADDRESS_TYPES.keys()
    | {"decimal", "char", "varchar", "binary", "varbinary", "enum"}
    | {"date", "datetime", "timestamp", "time", "year"}
)


class Column(JsonRecord, frozen=True):
    """One column as ``information_schema.columns`` describes it.

    :param name: column name, in the server's spelling.
    :param data_type: ``DATA_TYPE`` in lower case, such as ``int`` or ``varchar``.
    :param column_type: ``COLUMN_TYPE``, such as ``int unsigned``.
    :param nullable: whether NULL is allowed.
    :param length: characters for text, bytes for binary; ``None`` for other types.
    :param octets: the same length in bytes.
    :param charset: character set of a text, ENUM or SET column.
    :param collation: collation of a text, ENUM or SET column.
    :param precision: digits of a DECIMAL, bits of a BIT.
    :param scale: digits after the decimal point of a DECIMAL.
    :param fsp: fractional second digits (0 to 6) of TIME, DATETIME and TIMESTAMP.
    :param members: ENUM or SET members in their order.
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
    def is_unsigned(self) -> bool:
        """Whether the column is an unsigned integer or decimal."""
        return " unsigned" in self.column_type

    @property
    def is_compressed(self) -> bool:
        """Whether MariaDB stores and logs the column's values compressed."""
        return " COMPRESSED*/" in self.column_type

    @property
    def is_hidden(self) -> bool:
        """Whether the column occurs in row events only."""
        return self.column_type.endswith(HIDDEN_SUFFIX)

    @property
    def has_old_temporal_format(self) -> bool:
        """Whether MariaDB stores the date or time in its format from before MySQL 5.6."""
        return "/* mariadb-5.3 */" in self.column_type

    @property
    def is_two_digit_year(self) -> bool:
        """Whether it is a YEAR that the server shows without the century."""
        return self.column_type.startswith("year(2)")

    def unsupported_reason(self) -> str | None:
        """Return why the column cannot be copied exactly; ``None`` if it can."""
        if self.data_type == "vector" and (self.charset is not None or self.collation is not None):
            return f"type {self.column_type} is not supported yet"
        return None if self.data_type in SUPPORTED_TYPES else f"type {self.column_type} is not supported yet"

    @property
    def arrow_type(self) -> pa.DataType:
        """Arrow type of the column's values.

        :raises NotReadyError: for a type that is not supported.
        """
        kind = self.data_type
        if kind in INTEGER_TYPES:
            return (_UNSIGNED if self.is_unsigned else _SIGNED)[kind]
        if kind == "decimal":
            precision, scale = self.precision or 10, self.scale or 0
            # Lakehouse decimals have at most 38 digits; longer ones stay as the server's text.
            return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
        if kind in TEXT_TYPES or kind in MEMBER_TYPES or kind in ADDRESS_TYPES or kind == "json":
            return pa.string()
        if kind in BINARY_TYPES or kind in GEOMETRY_TYPES or kind == "bit":
            return pa.binary()
        simple = {
            "float": pa.float32(),
            "double": pa.float64(),
            "date": pa.date32(),
            "datetime": pa.timestamp("us"),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "time": pa.int64(),  # microseconds, signed: Delta has no duration type
            "year": pa.int16(),
            "vector": pa.list_(pa.float32()),
        }
        if kind not in simple:
            raise unknown_type_error(self)
        return simple[kind]


def unknown_type_error(column: Column) -> NotReadyError:
    """Make the error for code that does not know the type of a column."""
    return NotReadyError(
        f"column {column.name}: {column.unsupported_reason() or f'type {column.column_type} is not known here'}",
        "Exclude the table in source.exclude",
    )


class TableSchema(JsonRecord, frozen=True, dict=True):
    """A captured table, with what its copy has of it. :meth:`fingerprint` covers the fields of the definition.

    :attr:`copy` describes the table in the sink in the same form.

    :param database: database name.
    :param name: table name.
    :param columns: columns in ordinal order, including invisible and generated ones (row events carry them all), and
        hidden ones that only row events have.
    :param key: names of the columns of the primary key (or of the NOT NULL unique key used instead), in key order;
        empty for a table without a usable key, whose rows are compared by all of their values and counted.
    :param excluded: names of the columns that the pipeline does not copy; never a key column.
    :param policies: policies of the columns whose values or names the copy does not have as they are, in ordinal order.
    :param condition: SQL condition that a row must satisfy to be in the copy; ``None`` if all rows are copied.
    :param condition_columns: names of the columns that the condition reads, which may be excluded.
    :param metadata: keys of :data:`METADATA_COLUMNS`: columns of the copy about the last change of each row.
    :param shared: how rows are identified if several tables are copied into one:
        :data:`~airflow_provider_cdc.model.column_policy.KEY_WITH_SOURCE` or ``UNIQUE_KEY``; empty if the copy has the
        rows of this table alone.
    :param zero_dates: how an invalid date such as 0000-00-00 is handled: ``error`` or ``null``. A setting of the
        pipeline, not part of the definition; a stored value does not count.
    :param full_before_images: whether updates and deletes must have full before images; otherwise the key suffices, if
        there is one. A setting of the reader, not part of the definition; a stored value does not count.
    :param key_index: name of the index that is the key; ``None`` if there is none. Not part of the definition.
    :param comments: comments of columns by name, for columns that have one. Not part of the definition, and not
        compared; neither are the fields that follow.
    :param collation: collation of columns that are added without one; not part of the definition.
    :param auto_excluded: excluded columns that were added later and left out according to ``stream.schema_changes``.
        Not part of the definition.
    :param retained: columns that were removed from the source and are kept in the copy, NULL in each row that is
        written. Not part of the definition.
    :param removed: names of columns that were removed from both, but may still be in files of the copy. Not part of the
        definition.
    """

    database: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    zero_dates: str = "error"
    full_before_images: bool = False
    key_index: str | None = None
    comments: tuple[tuple[str, str], ...] = ()
    collation: str | None = None
    auto_excluded: tuple[str, ...] = ()
    retained: tuple[Column, ...] = ()
    removed: tuple[str, ...] = ()
    policies: tuple[ColumnPolicy, ...] = ()
    condition: str | None = None
    condition_columns: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    shared: str = ""

    @property
    def id(self) -> tuple[str, str]:
        """(database, table): the identity used throughout."""
        return self.database, self.name

    @property
    def label(self) -> str:
        """Human-readable name: ``database.table``."""
        return f"{self.database}.{self.name}"

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The key's columns in key order."""
        by_name = {c.name: c for c in self.columns}
        return tuple(by_name[name] for name in self.key)

    @cached_property
    def integer_key_column(self) -> str | None:
        """Name of the key column if the key is a single integer; such keys are compared without the server."""
        columns = self.key_columns
        return columns[0].name if len(columns) == 1 and columns[0].data_type in INTEGER_TYPES else None

    @cached_property
    def copied_columns(self) -> tuple[Column, ...]:
        """The columns that are copied, as they are in the source, in ordinal order."""
        return tuple(c for c in self.columns if c.name not in self.excluded)

    @cached_property
    def read_columns(self) -> tuple[Column, ...]:
        """The columns that are read, in ordinal order.

        These are the ones whose values the copy has, and those that the condition needs.
        """
        unread = {*self.excluded, *(policy.column for policy in self.policies if policy.action == NULL)}
        unread.difference_update(self.condition_columns)
        return tuple(c for c in self.columns if c.name not in unread) or self.copied_columns

    @cached_property
    def required_after_image(self) -> frozenset[str]:
        """Names of the columns that an after image must contain."""
        return frozenset(c.name for c in self.read_columns)

    @cached_property
    def required_before_image(self) -> frozenset[str]:
        """Names of the columns that a before image must contain."""
        return frozenset(self.key) if self.key and not self.full_before_images else self.required_after_image

    @cached_property
    def null_date_columns(self) -> frozenset[str]:
        """Names of the columns in which an invalid date becomes NULL; never key columns."""
        return frozenset(c.name for c in self.columns) - {*self.key} if self.zero_dates == "null" else frozenset()

    def with_zero_dates(self, policy: str) -> TableSchema:
        """Return the same table with another ``zero_dates`` policy."""
        return self.replace(zero_dates=policy)

    @cached_property
    def column_schema(self) -> pa.Schema:
        """Arrow schema of the columns that are read."""
        return pa.schema([pa.field(c.name, c.arrow_type) for c in self.read_columns])

    @cached_property
    def row_schema(self) -> pa.Schema:
        """Arrow schema of rows and changes as they are read: the columns that are read, then those of the project."""
        return _with_meta_fields(self.column_schema)

    def select_columns(self, copies: Callable[[str], bool]) -> TableSchema:
        """Return the same table, of which only some columns are copied; key columns always are.

        :param copies: whether a column of this name is copied.
        """
        is_excluded = (c.is_hidden or (c.name not in self.key and not copies(c.name)) for c in self.columns)
        return self.replace(
            excluded=tuple(c.name for c, excluded in zip(self.columns, is_excluded, strict=True) if excluded)
        )

    def with_rules_of(self, other: TableSchema) -> TableSchema:
        """Return the same table, of which the copy has what it has of another definition of this table."""
        table = self.select_columns(lambda name: name not in other.excluded)
        return table.replace(
            policies=other.policies,
            condition=other.condition,
            condition_columns=other.condition_columns,
            metadata=other.metadata,
            shared=other.shared,
        )

    # ------------------------------------------------------------ the copy

    @cached_property
    def copy(self) -> TableSchema:
        """The table as the sink has it: no column is excluded, no policy is left. The copy of a copy is the same."""
        if not self.policies:
            return self if self.condition is None else self.replace(condition=None, condition_columns=())
        policies = {policy.column: policy for policy in self.policies}
        names = {policy.column: policy.copy_name for policy in self.policies}
        return self.replace(
            columns=tuple(copy_column(c, policies[c.name]) if c.name in policies else c for c in self.copied_columns),
            key=tuple(names.get(name, name) for name in self.key),
            excluded=(),
            auto_excluded=(),
            comments=tuple((names.get(name, name), comment) for name, comment in self.comments),
            policies=(),
            condition=None,
            condition_columns=(),
        )

    def copy_name(self, name: str) -> str:
        """Return the name that a copied column has in the copy.

        :param name: its name in the source.
        """
        return next((policy.copy_name for policy in self.policies if policy.column == name), name)

    def source_keys(self, rows: pa.Table) -> pa.Table:
        """Return the keys of rows of the copy, under the names of the source's key columns.

        The keys must not be hashed.

        :param rows: rows with the key columns of the copy.
        """
        return rows.select(list(self.copy.key)).rename_columns(list(self.key))

    @property
    def has_hashed_key(self) -> bool:
        """Whether the copy's keys are hashes, from which no key of the source can be told."""
        return any(policy.action == HASH and policy.column in self.key for policy in self.policies)

    @cached_property
    def sink_columns(self) -> tuple[Column, ...]:
        """The columns of the copy, followed by those that it retains."""
        return (*self.copy.copied_columns, *self.retained)

    @cached_property
    def sink_schema(self) -> pa.Schema:
        """Arrow schema of a sink table.

        The columns of the copy, ``_cdc_source`` if it is shared, metadata, ``_cdc_seq``, ``_cdc_op``, ``_cdc_ts``.
        """
        fields = [pa.field(c.name, c.arrow_type) for c in self.sink_columns]
        return _with_meta_fields(pa.schema([*fields, *self.shared_fields, *self.metadata_fields]))

    @property
    def metadata_fields(self) -> list[pa.Field]:
        """Fields of the columns about the last change of each row."""
        types = {"position": pa.int64()}
        return [pa.field(METADATA_COLUMNS[key], types.get(key, pa.string())) for key in self.metadata]

    @property
    def shared_fields(self) -> list[pa.Field]:
        """The field of the source table, if the copy has the rows of several tables."""
        return [pa.field(SOURCE_COLUMN, pa.string())] if self.shared else []

    @cached_property
    def _compared_fields(self) -> tuple[object, ...]:
        names = (self.database, self.name, self.key, self.excluded, self.key_index)
        rules = (self.policies, self.condition, self.metadata, self.shared)
        return (*names, *rules, self.columns, self.zero_dates, self.full_before_images)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableSchema) and self._compared_fields == other._compared_fields

    def __hash__(self) -> int:
        return hash(self._compared_fields)

    def fingerprint(self) -> str:
        """Return a hash of everything that determines how rows are read."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        definition = TableSchema(
            self.database,
            self.name,
            self.columns,
            self.key,
            self.excluded,
            policies=self.policies,
            condition=self.condition,
            condition_columns=self.condition_columns,
            metadata=self.metadata,
            shared=self.shared,
        ).to_json()
        return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def _with_meta_fields(schema: pa.Schema) -> pa.Schema:
    for added in (
        pa.field(SEQ_COLUMN, pa.int64()),
        pa.field(OP_COLUMN, pa.string()),
        pa.field(TS_COLUMN, pa.timestamp("us", tz="UTC")),
    ):
        schema = schema.append(added)
    return schema
