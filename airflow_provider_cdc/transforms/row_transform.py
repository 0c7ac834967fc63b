"""The row transform: a pure function from rows as they are read to rows as the copy has them.

Whatever a pipeline says about the columns and rows of a table happens here, once, for the snapshot, the stream,
re-snapshots, comparisons and explanations alike. Tasks apply it where rows have become Arrow, before anything is
written anywhere. docs/transforms.md has the semantics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.column_policy import NULL, ColumnPolicy
from airflow_provider_cdc.model.offset import POSITION_BITS, Timeline
from airflow_provider_cdc.model.schema import META_COLUMNS, OP_COLUMN, SEQ_COLUMN, Column, TableSchema
from airflow_provider_cdc.transforms.column_values import apply_policy
from airflow_provider_cdc.transforms.condition import Condition, parse_condition

#: Operations in changes: see :mod:`airflow_provider_cdc.model.changes`; ``b`` is the old image of an update.
_INSERT, _UPDATE, _DELETE, _BEFORE = "c", "u", "d", "b"


@dataclass(frozen=True)
class BinlogOrigin:
    """Where rows come from, for metadata columns.

    :param timeline: numbers the transactions of the server.
    :param gtids: GTIDs of transactions, by ``_cdc_seq``. Rows that were read have none.
    """

    timeline: Timeline
    gtids: Mapping[int, str] = field(default_factory=dict)

    def values(self, key: str, table: TableSchema, seqs: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return the values of one metadata column.

        :param key: one of :data:`~airflow_provider_cdc.model.schema.METADATA_COLUMNS`.
        :param seqs: ``_cdc_seq`` of the rows.
        """
        constants = {"database": table.database, "table": table.name, "server": self.timeline.server}
        if key in constants:
            return pa.repeat(constants[key], len(seqs))
        if key == "position":
            return pc.bit_wise_and(seqs, pa.scalar((1 << POSITION_BITS) - 1, pa.int64()))
        transactions, numbers = np.unique(seqs.to_numpy(), return_inverse=True)
        if key == "gtid":
            names = [self.gtids.get(int(seq)) or None for seq in transactions]
        else:
            names = [self.timeline.position(int(seq)).file for seq in transactions]
        return pa.array(names, pa.string()).take(pa.array(numbers))


@dataclass(frozen=True)
class RowTransform:
    """Turns rows of a table into rows of its copy.

    :param table: the captured table.
    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    """

    table: TableSchema
    hash_key: bytes | None = field(default=None, repr=False)

    @cached_property
    def condition(self) -> Condition | None:
        """The condition that rows must satisfy to be in the copy; ``None`` for all rows."""
        return None if self.table.condition is None else _parse_condition_of(self.table)

    @cached_property
    def _policies(self) -> dict[str, ColumnPolicy]:
        return {policy.column: policy for policy in self.table.policies}

    @cached_property
    def _has_same_columns(self) -> bool:
        table = self.table
        is_extended = table.retained or table.metadata or table.shared
        return not (table.policies or is_extended) and table.read_columns == table.copied_columns

    def rows(self, rows: pa.Table, origin: BinlogOrigin | None = None) -> pa.Table:
        """Return the rows of the copy, in the sink's schema.

        :param rows: rows in the table's ``row_schema``, each as it is at some moment: rows of a snapshot, or images of
            rows in the binlog. Those that do not satisfy the condition are left out.
        :param origin: where they come from; without it, metadata columns are NULL.
        """
        if self.condition is not None:
            satisfied = self.condition.mask(rows)
            if not pc.all(satisfied, min_count=0).as_py():  # the server has left out most of the others
                rows = rows.filter(satisfied)
        return self.convert_columns(rows, origin)

    def changes(
        self, changes: pa.Table, origin: BinlogOrigin | None = None, *, with_before_images: bool = False
    ) -> pa.Table:
        """Return what changes do to the copy, in the sink's schema.

        A row that no longer satisfies the condition is deleted from the copy. In a table without a key, changes are
        images of rows, as for :meth:`rows`.

        :param changes: changes in the table's ``row_schema``, in binlog order.
        :param origin: as for :meth:`rows`.
        :param with_before_images: whether each update follows its old image, which has the operation ``b``. A table
            with a condition whose deleted rows stay in the copy needs this: the last image that satisfied the
            condition stays.
        """
        if self.condition is None and not with_before_images:
            return self.convert_columns(changes, origin)
        operations, satisfied = changes[OP_COLUMN], np.ones(changes.num_rows, bool)
        if self.condition is not None:
            satisfied = _to_numpy(self.condition.mask(changes))
        insert, update, before = (_to_numpy(pc.equal(operations, one)) for one in (_INSERT, _UPDATE, _BEFORE))
        deletes, upserts = ~(insert | update | before), (insert | update) & satisfied
        if not self.table.key:
            deletes = (deletes | before) & satisfied
        elif self.table.full_before_images:
            is_last_image = np.append(~satisfied[1:], False)[: len(satisfied)]
            if with_before_images:
                is_last_image |= self._changes_key(changes)
            deletes = (deletes | (before & is_last_image)) & satisfied
        else:  # A delete needs the key only. An insert that fails concerns no row of the copy.
            deletes |= update & ~satisfied
            if with_before_images:
                deletes |= before & self._changes_key(changes)
        if (deletes & (update | before)).any():
            changes = changes.set_column(
                changes.schema.get_field_index(OP_COLUMN),
                changes.schema.field(OP_COLUMN),
                pc.if_else(pa.array(deletes), pa.scalar(_DELETE), operations),
            )
        remaining = deletes | upserts
        return self.convert_columns(changes if remaining.all() else changes.filter(pa.array(remaining)), origin)

    def _changes_key(self, changes: pa.Table) -> Any:
        """Return a mask of the rows that are not followed by an update with the same key.

        If a key changes, the new image may be missing: its chunk was read later than that of the old key, and includes
        it.
        """
        count = changes.num_rows
        if count < 2:
            return np.ones(count, bool)
        keys, following = changes.select(list(self.table.key)), changes[OP_COLUMN].slice(1)
        first, second = keys.slice(0, count - 1), keys.slice(1)
        different = [_to_numpy(pc.not_equal(first[name], second[name])) for name in keys.column_names]
        different.append(_to_numpy(pc.not_equal(following, _UPDATE)))
        return np.append(np.logical_or.reduce(different), True)

    def copy_keys(self, keys: pa.Table) -> pa.Table:
        """Return the keys that rows have in the copy.

        :param keys: the key columns of rows of the source.
        """
        columns = [
            apply_policy(keys[c.name], c, self._policies[c.name], self.hash_key)
            if c.name in self._policies
            else keys[c.name]
            for c in self.table.key_columns
        ]
        return pa.table(columns, names=list(self.table.copy.key))

    def convert_columns(self, rows: pa.Table, origin: BinlogOrigin | None = None) -> pa.Table:
        """Return rows in the sink's schema, one for each row, whether it satisfies the condition or not.

        :param origin: as for :meth:`rows`.
        """
        if self._has_same_columns:
            return rows
        table = self.table
        columns = [self._copied_values(rows, column) for column in table.copied_columns]
        columns += [pa.nulls(rows.num_rows, column.arrow_type) for column in table.retained]
        columns += [pa.repeat(pa.scalar(table.label, added.type), rows.num_rows) for added in table.shared_fields]
        for key, added in zip(table.metadata, table.metadata_fields, strict=True):
            values = pa.nulls(rows.num_rows) if origin is None else origin.values(key, table, rows[SEQ_COLUMN])
            columns.append(values.cast(added.type))
        columns += [rows[name] for name in META_COLUMNS]
        return pa.Table.from_arrays(columns, schema=table.sink_schema)

    def _copied_values(self, rows: pa.Table, column: Column) -> pa.ChunkedArray | pa.Array:
        policy = self._policies.get(column.name)
        if policy is None:
            return rows[column.name]
        if policy.action == NULL:  # it may not have been read
            return pa.nulls(rows.num_rows, column.arrow_type)
        return apply_policy(rows[column.name], column, policy, self.hash_key)


@lru_cache(maxsize=256)
def _parse_condition_of(table: TableSchema) -> Condition:
    """Parse a table's condition: once, although each chunk has a transform of its own."""
    return parse_condition(str(table.condition), table)


def _to_numpy(mask: Any) -> Any:
    return mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy()
