"""Spatial values of every kind: the snapshot, both decoders of the binlog and the server say the same."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from tests.support.binlog.reading import agree, binlog_place, capture, transactions
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare
from tests.support.servers import MySQLServer

KINDS = {
    "POINT": ["POINT(1 -0.5)", "POINT(-0.0 1e-300)", "POINT(89.5 79.5)"],
    "LINESTRING": ["LINESTRING(0 0, 1 1)", "LINESTRING(0 0, 1 1, 2 0.1, 0 0)"],
    "POLYGON": [
        "POLYGON((0 0, 0 3, 3 3, 0 0))",
        "POLYGON((0 0, 0 30, 30 30, 30 0, 0 0), (1 1, 1 2, 2 2, 1 1), (5 5, 5 6, 6 6, 5 5))",
    ],
    "MULTIPOINT": ["MULTIPOINT(0 0)", "MULTIPOINT(1 1, 2 2, 1 1)"],
    "MULTILINESTRING": ["MULTILINESTRING((0 0, 1 1))", "MULTILINESTRING((0 0, 1 1), (2 2, 3 3, 4 4))"],
    "MULTIPOLYGON": ["MULTIPOLYGON(((0 0, 0 3, 3 3, 0 0)), ((5 5, 5 6, 6 6, 5 5)))"],
    "GEOMETRYCOLLECTION": [
        "GEOMETRYCOLLECTION EMPTY",
        "GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))",
        "GEOMETRYCOLLECTION(GEOMETRYCOLLECTION(POINT(1 1)), MULTIPOINT(1 1, 2 2), POLYGON((0 0, 0 3, 3 3, 0 0)))",
    ],
}
SRIDS = (0, 4326, 3857)


def test_every_kind(server: MySQLServer, tmp_path: Path) -> None:
    """In a column of its own kind and in one for all kinds, with each reference system, and NULL."""
    mariadb = isinstance(server, MariaDBServer)
    name, anything = f"t_{secrets.token_hex(6)}", [text for texts in KINDS.values() for text in texts]
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(KINDS))
    fixed = "fixed POINT REF_SYSTEM_ID=4326 NOT NULL" if mariadb else "fixed POINT NOT NULL SRID 4326"

    def insert(first: int) -> list[str]:
        found = []
        for srid in SRIDS:
            for n, text in enumerate(anything):
                own = [texts[n % (len(texts) + 1) - 1] if n % (len(texts) + 1) else None for texts in KINDS.values()]
                values = [f"ST_GeomFromText('{v}', {srid})" if v else "NULL" for v in (*own, text)]
                point = "ST_GeomFromText('POINT(1 2)', 4326)"
                number = first + srid % 10 * 20 + n
                found.append(f"INSERT INTO t VALUES ({number}, {', '.join(values)}, {point}, {n})")
        return found

    server.execute(f"CREATE DATABASE {name}")
    try:
        server.session(
            name,
            f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, g GEOMETRY, {fixed}, n INT, SPATIAL INDEX (fixed))",
            "CREATE TABLE k (g GEOMETRY, n INT)",
            *insert(1),
            "INSERT INTO k SELECT g, n FROM t",
        )
        cli = Cli(tmp_path, server, rf"{name}\..*", name=name, snapshot={"chunk_rows": 10})
        cli.snapshot()
        start = binlog_place(server)
        server.session(
            name,
            *(["SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10"] if mariadb else []),
            *([] if mariadb else ["SET binlog_transaction_compression = ON"]),
            *insert(1001),
            "INSERT INTO k SELECT g, n FROM t WHERE id > 1000",
            "UPDATE t SET g = c0, c0 = NULL WHERE id % 3 = 0",
            "UPDATE t SET id = id + 5000 WHERE id % 7 = 0 AND n > 11",
            "DELETE FROM t WHERE id % 5 = 0",
            "UPDATE k SET g = ST_GeomFromText('GEOMETRYCOLLECTION EMPTY') WHERE n % 3 = 0",
            "DELETE FROM k WHERE n = 4",
            *(["SET GLOBAL log_bin_compress = OFF"] if mariadb else []),
        )
        cli.catch_up()
        with contextlib.closing(server.connect()) as connection:
            for table in ("t", "k"):
                difference = compare(connection, name, table, cli.sink / name / table)
                assert difference is None, difference
        assert cli.call("verify").code == 0
        captured = capture(server, name, "t", "k")
        events = [e for t in transactions(server, (start.file, start.position), captured) for e in t.rows]
        for event in events:
            agree(event)
        sink = cli.rows(name, "t")
        assert len(set(sink["g"].to_pylist())) > len(anything) and sink["c0"].null_count
    finally:
        server.execute(f"DROP DATABASE {name}")
