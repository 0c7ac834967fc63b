"""JSON from the binlog against the server's own text of it."""

from __future__ import annotations

import contextlib
import json
import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.mysql.binlog.kernels import json_kernel as json_kernel
from airflow_provider_cdc.mysql.binlog.kernels.json_kernel import json_texts
from airflow_provider_cdc.mysql.binlog.plain.jsonb import format_double, json_text
from tests.support.binlog import row_decoder as rows_module
from tests.support.binlog.reading import capture, changes, here, transactions
from tests.support.servers import MySQLServer

#: SQL expressions of documents that hold more than JSON's own types.
EXPRESSIONS = [
    "CAST(NULL AS JSON)",
    "CAST('null' AS JSON)",
    "CAST('true' AS JSON)",
    "CAST(1.5 AS JSON)",
    "CAST(-12345678901234567890.123456789 AS JSON)",
    "JSON_ARRAY(0.00, -0.10, 99999999999999999999999999999999999.5, CAST(1 AS DECIMAL(65,30)))",
    "CAST(CAST('2015-01-15' AS DATE) AS JSON)",
    "CAST(CAST('0001-01-01' AS DATE) AS JSON)",
    "CAST(CAST('2015-01-15 23:24:25' AS DATETIME) AS JSON)",
    "CAST(CAST('9999-12-31 23:59:59.999999' AS DATETIME(6)) AS JSON)",
    "CAST(TIMESTAMP'2015-01-15 23:24:25.12' AS JSON)",
    "JSON_ARRAY(CAST('23:24:25.12' AS TIME(3)), CAST('-838:59:59' AS TIME), CAST('-00:00:00.1' AS TIME(1)))",
    "CAST(CAST('100:00:00' AS TIME) AS JSON)",
    "CAST(x'cafebabe' AS JSON)",
    "CAST(x'' AS JSON)",
    "CAST(REPEAT(x'00ff', 300) AS JSON)",
    "CAST(b'101' AS JSON)",
    "JSON_ARRAY(CAST(2019 AS YEAR))",
    "JSON_ARRAY(ST_AsText(ST_GeomFromText('POINT(1 1)')), ST_GeomFromText('POINT(1 2)'))",
    "JSON_ARRAY(18446744073709551615, -9223372036854775808, 32767, 32768, -32769, 65535, 65536, 4294967296)",
    r"JSON_ARRAY('\0\Z\b\n\r\t', 'a\"b\\c/d', '\x7f', 'ü€😀')",
    "JSON_OBJECT('', 1, 'b', 2, 'aa', 3, 'ab', 4, 'ü', 5)",
    "JSON_ARRAY(REPEAT('x', 127), REPEAT('x', 128), REPEAT('x', 16383), REPEAT('x', 16384), REPEAT('x', 65535))",
    "JSON_OBJECT(REPEAT('k', 60000), JSON_ARRAY(1, 70000, -5, true, null), 'b', REPEAT('y', 70000))",
    "JSON_ARRAY()",
    "JSON_OBJECT()",
    "JSON_ARRAY(1e15, 1e16, 123456789012345.6e0, 1e-14, 1e-15, 2171054222569591.8e0, -0e0, 5e-324, 1e308, 3e0)",
]


def test_documents_of_every_type(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, j JSON)")
    captured = capture(mysql_server, database, "t")
    deep = "[" * 99 + "]" * 99
    start = here(mysql_server)
    for i, expression in enumerate([*EXPRESSIONS, f"'{deep}'"]):
        mysql_server.execute(f"INSERT INTO {database}.t VALUES ({i}, {expression})")
    large = json.dumps([{"id": i, "text": "x" * (i % 50), "f": i / 7} for i in range(5000)])
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1000, %s)", [large])
    ours = [after for _, after in changes(transactions(mysql_server, start, captured)) if after is not None]
    theirs = mysql_server.execute(f"SELECT a, CAST(j AS CHAR) FROM {database}.t ORDER BY a")
    assert len(ours) == len(theirs) == len(EXPRESSIONS) + 2
    for mine, its in zip(ours, theirs, strict=True):
        assert mine == its


def test_doubles(mysql_server: MySQLServer) -> None:
    chance = random.Random(20)
    values = [5e-324, 1e15, 1e16, 1e-14, 1e-15, 1e22, 1e23, -0.0, 0.1, 9007199254740993.0, 2171054222569591.8]
    for _ in range(1500):
        values.append(struct.unpack("<d", chance.randbytes(8))[0])
        values.append(chance.uniform(-1e3, 1e3) * 10.0 ** chance.randint(-30, 30))
        values.append(round(chance.uniform(-1e6, 1e6), chance.randint(0, 6)) * 10.0 ** chance.randint(-18, 18))
    values = [value for value in values if abs(value) < 1e309 and value == value]
    with contextlib.closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        for at in range(0, len(values), 500):
            part = values[at : at + 500]
            cursor.execute("SELECT " + ", ".join(f"CAST(JSON_ARRAY({value!r} + 0e0) AS CHAR)" for value in part))
            said = cursor.fetchone()
            assert said is not None
            for value, text in zip(part, said, strict=True):
                # The sum turns -0 into 0.
                assert f"[{format_double(value + 0.0)}]" == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back(value: float) -> None:
    assert float(format_double(value)) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_hostile_documents(data: bytes) -> None:
    alike(data)


def alike(*documents: bytes | None) -> list[str | None]:
    """What the machine code says, which is what the plain code says: the same texts or an error."""
    try:
        expected = [None if d is None else json_text(d) for d in documents]
    except ValueError as error:
        with pytest.raises(type(error)):
            json_texts(pa.array(documents, pa.binary()))
        return []
    found = json_texts(pa.array(documents, pa.binary()))
    found.validate(full=True)
    assert found.to_pylist() == expected
    return expected


def test_machine_code_prints_what_documents_are_made_of(
    mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents as the server stores them; cut off and changed at every place; beside others and NULL."""
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, j JSON)")
    captured = capture(mysql_server, database, "t")
    plain = [
        r'{"id": 17, "name": "Zo\u00eb \"Q\" \\ \u0001\t", "price": 12.5, "tags": ["a", "", "ü€😀"], "ok": true}',
        "[0, -1, 32767, -32768, 32768, 65535, 65536, -2147483648, 4294967295, 4294967296, 18446744073709551615]",
        "[-9223372036854775808, 0.1, -0.00123, 1e3, 123456.789, 99999999999999.5, 0.0, 3e0, false, {}, []]",
        json.dumps({str(i): {"n": i, "deep": [[i]]} for i in range(40)}),
        json.dumps(["x" * 200, "y" * 20000, {"k" * 300: "z" * 70000}, 70000, -70000, True, None]),
        "[" * 99 + "]" * 99,
        "7",
        "null",
    ]
    start = here(mysql_server)
    for i, text in enumerate(plain):
        mysql_server.execute(f"INSERT INTO {database}.t VALUES ({i}, %s)", [text])
    stored: list[bytes] = []

    def keep(data: bytes) -> str:
        stored.append(bytes(data))
        return json_text(data)

    monkeypatch.setattr(rows_module, "json_text", keep)
    changes(transactions(mysql_server, start, captured))
    stored = list(dict.fromkeys(stored))
    assert len(stored) == len(plain)
    with monkeypatch.context() as patch:
        patch.setattr(json_kernel, "json_text", None)  # none of them is left to the plain code
        printed = json_texts(pa.array(stored, pa.binary())).to_pylist()
    assert printed == [json_text(document) for document in stored]
    alike(*stored, None, b"", b"\x0f\xfc\x08" + bytes(8), None, *stored)
    chance = random.Random(5)
    for document in stored:
        for at in range(min(len(document), 400)):
            alike(document[:at])
            changed = bytearray(document)
            changed[at] = chance.randrange(256)
            alike(bytes(changed))


def test_doubles_of_machine_code() -> None:
    chance = random.Random(21)
    values = [0.0, -0.0, 5e-324, 1e-5, 9.999e-6, 999999999999999.0, 1e15, 0.3, 1 / 3, 2.5, 1e14 + 0.5, 123456789.125]
    for _ in range(5000):
        values.append(struct.unpack("<d", chance.randbytes(8))[0])
        values.append(round(chance.uniform(-1e6, 1e6), chance.randint(0, 9)))
        values.append(float(f"{chance.randrange(10**15)}e-{chance.randint(0, 22)}"))
    documents = [b"\x0b" + struct.pack("<d", value) for value in values if abs(value) < 1e309 and value == value]
    alike(*documents)


def test_damage_is_seen() -> None:
    document = bytes.fromhex("0202001e00050100000a00010014000b0001000b0c00610000000000000440")
    assert json_text(document) == '[1, {"a": 2.5}]'
    for size in range(1, len(document)):
        with pytest.raises(ValueError, match="damaged"):
            json_text(document[:size])
