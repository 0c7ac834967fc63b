"""The codes of events are those of the servers, each of them once."""

from __future__ import annotations

from pymysqlreplication.constants import BINLOG

from airflow_provider_cdc.mysql.binlog.events import event_types

CODES = {name: code for name, code in vars(event_types).items() if isinstance(code, int)}


def test_no_code_stands_twice() -> None:
    assert len(CODES) == len(set(CODES.values())) > 40


def test_they_are_those_that_others_know() -> None:
    """The library has longer names: WRITE_ROWS_EVENT_V2, MARIADB_ANNOTATE_ROWS_EVENT."""
    theirs = {code: name for name, code in vars(BINLOG).items() if "_EVENT" in name and not name.startswith("INTVAR_I")}
    shared = {name: theirs[code] for name, code in CODES.items() if code in theirs}
    assert len(shared) > 30
    for name, known_as in shared.items():
        assert set(name.split("_")) <= set(known_as.split("_")), (name, known_as)


def test_a_type_is_read_or_passed_over() -> None:
    """What carries no rows is not also one of those that are read."""
    passed = set(event_types.SKIPPED_EVENTS) | event_types.BETWEEN_TRANSACTIONS | event_types.HEARTBEATS
    read = (
        event_types.TRANSACTION_STARTS
        | event_types.ROWS_EVENTS_V1
        | set(event_types.UNCOMPRESSED_TYPES)
        | set(event_types.UNCOMPRESSED_TYPES.values())
    )
    assert not passed & read and not set(event_types.SKIPPED_EVENTS) & event_types.BETWEEN_TRANSACTIONS
