"""Which table a row is decoded for."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap
from airflow_provider_cdc.mysql.binlog.events.wire_types import LONG, WireColumn
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.mysql.binlog.walk.change_buffers import ChangeBuffers
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS


def test_a_table_map_in_the_place_of_one_that_is_gone() -> None:
    """Those of another reading, that of an XA transaction's rows, go when it ends, and others get their memory."""
    state: Any = np.zeros(walk_state.STATE_SIZE, np.int64)
    tables = ChangeBuffers(state, UNICODE_DECODERS, count_only=False)
    schemas = [TableSchema("d", name, (Column("id", "int", "int", False),), ("id",)) for name in "ab"]
    places = set[int]()
    for n in range(200):
        schema = schemas[n % 3 == 0]
        table = TableMap(schema, (WireColumn(LONG),), {}, "here")
        places.add(id(table))
        assert tables[tables.slot_of(table)].table_map.schema is schema
        assert tables.slot_of(table) == tables.slot_of(table)
        del table
    assert len(places) < 100
