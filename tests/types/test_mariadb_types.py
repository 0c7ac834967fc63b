"""UUID, INET and COMPRESSED columns: the snapshot, both decoders of the binlog and the server say the same."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_cdc.mysql.binlog.plain.mariadb_values import decompress_column
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog.reading import agree, capture, transactions
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer

DEFINITION = """CREATE TABLE d.t (
    id INT PRIMARY KEY, u UUID, i6 INET6, i4 INET4,
    word VARCHAR(60) COMPRESSED, words VARCHAR(900) COMPRESSED, bytes VARBINARY(300) COMPRESSED,
    tiny TINYTEXT COMPRESSED, western MEDIUMTEXT COMPRESSED CHARACTER SET latin1,
    wide TEXT COMPRESSED CHARACTER SET ucs2, data LONGBLOB COMPRESSED
) CHARSET utf8mb4"""


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDBServer]:
    with MariaDBServer() as found:
        yield found


def row(draw: random.Random, number: int) -> list[object]:
    """Values as the server takes them; addresses with many zeros, texts that pay to be compressed and that do not."""

    def zeros(size: int) -> bytes:
        parts = [draw.choice((b"\0\0", b"\0\0", b"\0\1", b"\xff\xff", draw.randbytes(2))) for _ in range(size // 2)]
        return b"".join(parts)

    def text(most: int, letters: str) -> str:
        return "".join(draw.choice(letters[: draw.choice((1, 3, 99))]) for _ in range(draw.choice((0, 1, 40, most))))

    raw = zeros(16).hex()
    groups = [raw[i : i + 4] for i in range(0, 32, 4)]
    i6 = draw.choice((":".join(groups), f"::{groups[6]}:{groups[7]}", f"::ffff:{groups[6]}:{groups[7]}"))
    u = f"{draw.getrandbits(128):032x}" if draw.random() < 0.7 else zeros(16).hex()
    # Not every version and variant is valid; the server keeps the bytes of some in another order.
    uuid = f"{u[:8]}-{u[8:12]}-{draw.choice('01234567')}{u[13:16]}-{draw.choice('89ab')}{u[17:20]}-{u[20:]}"
    values: list[object] = [uuid, i6, ".".join(map(str, zeros(4)))]
    values += [text(60, "aé日x"), text(900, "bü語y"), draw.randbytes(draw.choice((0, 1, 300))), text(60, "cä")]
    values += [text(9000, "dß"), text(5000, "eя日"), draw.choice((b"", b"\0" * 70_000, draw.randbytes(1000)))]
    return [number, *(None if draw.random() < 0.1 else value for value in values)]


@pytest.mark.parametrize("wrap", ["OFF", "ON"])
def test_snapshot_stream_and_server_agree(server: MariaDBServer, tmp_path: Path, wrap: str) -> None:
    draw = random.Random(wrap)
    server.execute(f"SET GLOBAL column_compression_zlib_wrap = {wrap}")
    server.execute("CREATE OR REPLACE DATABASE d")
    server.execute(DEFINITION)
    fields = 11

    def write(first: int, count: int) -> None:
        with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            marks = ", ".join(["%s"] * fields)
            cursor.executemany(f"REPLACE INTO d.t VALUES ({marks})", [row(draw, first + i) for i in range(count)])

    write(0, 200)
    cli = Cli(tmp_path, server, "d.t", user=server.create_cdc_user(), snapshot={"chunk_rows": 50})
    file, position, *_ = server.execute("SHOW MASTER STATUS")[0]
    cli.snapshot()
    write(150, 200)
    server.execute("UPDATE d.t SET bytes = word, i6 = '1:0:2:3:4:5:6:7' WHERE id % 7 = 0")
    server.execute("DELETE FROM d.t WHERE id % 11 = 0")
    cli.catch_up()
    names = ["u", "i6", "i4", "word", "words", "bytes", "tiny", "western", "wide", "data"]
    asked = ", ".join(f"CAST({n} AS CHAR)" if n in ("u", "i6", "i4") else n for n in names)
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, {asked} FROM d.t ORDER BY id")
        said = [tuple(v) for v in cursor.fetchall()]
    found = cli.rows("d", "t").sort_by("id").to_pylist()
    assert len(said) > 250
    assert [tuple(r[n] for n in ("id", *names)) for r in found] == said
    assert any(t[2] and "::" in t[2] and "." in t[2] for t in said), "an address that is printed as an IPv4 one"
    assert cli.call("verify").code == 0
    captured = capture(server, "d", "t")
    texts = load_decoders(lambda: closing(connect(server.connect_args())), captured.values())
    events = [e for t in transactions(server, (file, int(position)), captured) for e in t.rows]
    assert len(events) > 2
    for event in events:
        agree(event, texts)


def test_what_a_compressed_value_may_not_be() -> None:
    deflate = zlib.compressobj(wbits=-15)
    packed = deflate.compress(b"x" * 300) + deflate.flush()
    good = b"\x8a" + (300).to_bytes(2, "big") + packed
    assert (
        decompress_column(good) == b"x" * 300
        and decompress_column(b"") == b""
        and decompress_column(b"\0abc") == b"abc"
    )
    longer, shorter = b"\x8a\x01\x2d" + packed, b"\x8a\x01\x2b" + packed
    for bad in (
        b"\x10a",
        b"\x88" + packed,
        b"\x8d" + packed,
        good[:-1],
        good + b"x",
        longer,
        shorter,
        b"\x82" + good[1:],
    ):
        with pytest.raises(ValueError, match="compression|Error"):
            decompress_column(bad)
