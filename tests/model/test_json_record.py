"""Values as JSON: what is read is what was written, or it is refused with what, where and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.json_record import JsonRecord, parse_json
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.model.plan_history import STORED_AMENDMENT, Suspension
from airflow_provider_cdc.model.schema import Column, TableSchema

OFFSET = Offset("server", "binlog.000003", 77, "u:1-5")


def test_defaults_are_left_out() -> None:
    assert OFFSET.to_json() == {
        "server": "server",
        "file": "binlog.000003",
        "position": 77,
        "gtid_set": "u:1-5",
        "xa": [],
    }
    assert Position("binlog.000003", 77).to_json() == ["binlog.000003", 77]


MANY_THREADS = """
import sys
import threading
from airflow_provider_cdc.model.json_record import JsonRecord, parse_json

sys.setswitchinterval(1e-6)
for number in range(300):
    class Inner(JsonRecord, frozen=True):
        a: "int"
        b: "tuple[str, ...]" = ()

    class Outer(JsonRecord, frozen=True):
        inner: "tuple[Inner, ...]"
        names: "dict[str, Inner]"
        text: "str | None" = None

    barrier = threading.Barrier(8)

    def parse():
        barrier.wait()
        for _ in range(3):
            parse_json({"inner": [{"a": 1}], "names": {"x": {"a": 2}}}, Outer)

    threads = [threading.Thread(target=parse) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_parse_the_first_value_of_a_type_at_the_same_time() -> None:
    """msgspec itself crashes then: it reads the fields of a type while another thread is still finding them."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", MANY_THREADS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("record_type", [Column, Offset, Position])
def test_the_json_of_equal_values_is_equal(record_type: type[JsonRecord]) -> None:
    """Fingerprints and ends of batches are compared as JSON. A default is left out if it is the same object."""
    defaults = [field.default for field in msgspec.structs.fields(record_type) if not field.required]
    assert all(any(default is one for one in (None, False, 0, "", ())) for default in defaults)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({**OFFSET.to_json(), "more": 1}, "Object contains unknown field `more`"),
        ({**OFFSET.to_json(), "position": "77"}, "Expected `int`, got `str` - at `$.position`"),
        ({"server": "s"}, "Object missing required field `file`"),
        (["s"], "Expected `object`, got `array`"),
        (b"{", "Expecting property name enclosed in double quotes"),
        (b"\xff", "invalid start byte"),
    ],
)
def test_what_cannot_be_read(value: Any, said: str) -> None:
    with pytest.raises(TerminalError) as caught:
        parse_json(value, Offset, "/lake/point.json")
    assert caught.value.message.startswith("the Offset in /lake/point.json cannot be read: ")
    assert said in caught.value.message and "newer version" in caught.value.remedy


def test_an_amendment_of_a_kind_that_is_not_known() -> None:
    with pytest.raises(TerminalError, match="Invalid value 'moved' - at `\\$.amendment`"):
        parse_json({"amendment": "moved", "table": 1}, STORED_AMENDMENT, "here")


def test_names_with_lone_surrogates() -> None:
    """Bytes of a name that could not be decoded."""
    step = Suspension(0, 0, 7, "binlog.000003:77", "now", "DdlError", "column a\udc80", "")
    assert parse_json(json.dumps(step.to_json()).encode(), STORED_AMENDMENT) == step


def test_what_is_derived_is_not_carried_over() -> None:
    table = TableSchema("d", "t", (Column("a", "int", "int", False),), ("a",))
    assert [c.name for c in table.copied_columns] == ["a"]
    wider = table.replace(columns=(*table.columns, Column("b", "int", "int", True)))
    assert [c.name for c in wider.copied_columns] == ["a", "b"] and wider != table
    commented = table.replace(comments=(("a", "the number"),))
    assert commented == table and hash(commented) == hash(table) and commented.fingerprint() == table.fingerprint()
