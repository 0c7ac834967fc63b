"""Every character of every character set of the server: snapshot, stream and the server agree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare
from tests.support.servers import MySQLServer

#: One character of each of many scripts: a charset has at least one of them, which then is a member of ENUM and SET.
LETTERS = "éжя日한Ωאฟა€Աب"
#: Characters a row.
WIDTH = 128


def characters() -> list[str]:
    """All of Unicode's first plane in rows, and the corners of the others; without surrogates."""
    planes = [chr(c) for c in range(0x10000) if not 0xD800 <= c < 0xE000]
    planes += [chr(p * 0x10000 + c) for p in range(1, 17) for c in (0, 1, 0x7FFF, 0x8000, 0xFFFD)]
    return ["".join(planes[i : i + WIDTH]) for i in range(0, len(planes), WIDTH)]


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database("d") as name:
        yield name


def test_every_character_of_every_charset(server: MySQLServer, database: str, tmp_path: Path) -> None:
    charsets = [
        str(row[0]) for row in server.execute("SELECT character_set_name FROM information_schema.character_sets")
    ]
    charsets.remove("binary")
    assert len(charsets) > 35
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for charset in charsets:
            letters = "".join(LETTERS)
            cursor.execute(
                f"SELECT CONVERT(CONVERT(_utf8mb4 x'{letters.encode().hex()}' USING {charset}) USING utf8mb4)"
            )
            own = next((c for c in cursor.fetchone()[0] if c in letters), "z")
            members = f"('a', '{own}', 'x{own}y') CHARACTER SET {charset}"
            cursor.execute(
                f"CREATE TABLE `{charset}` (id INT PRIMARY KEY, v TEXT CHARACTER SET {charset}, "
                f"c CHAR(9) CHARACTER SET {charset}, e ENUM{members}, s SET{members})"
            )

        def fill(first: int) -> None:
            for charset in charsets:
                listed = [f"CONVERT(_utf8mb4 x'{row.encode().hex()}' USING {charset})" for row in characters()]
                # Single bytes, and pairs: those that are no character become NULL or another one. (MariaDB keeps all
                # bytes in ascii, and shows question marks: the snapshot shows them too, the stream stops.)
                listed += [
                    f"CONVERT(x'{byte:02x}' USING {charset})" for byte in range(128 if charset == "ascii" else 256)
                ]
                listed += [
                    f"CONVERT(x'{byte:02x}{trail}' USING {charset})"
                    for byte in range(128, 256)
                    for trail in ("40", "a1", "fe")
                    if charset != "ascii"
                    and not (charset.startswith(("ucs", "utf")) and 0xD8 <= byte < 0xE0)  # surrogates
                ]
                values = ", ".join(
                    f"({first + n}, {text}, LEFT({text}, 5), {n % 3 + 1}, {n % 8})" for n, text in enumerate(listed)
                )
                cursor.execute(f"INSERT INTO `{charset}` VALUES {values}")

        cli = Cli(tmp_path, server, r"d\..*")
        fill(0)
        cli.snapshot()
        fill(100_000)
        cli.catch_up()
        for charset in charsets:
            difference = compare(connection, "d", charset, cli.sink / "d" / charset)
            assert difference is None, difference
            rows = cli.rows("d", charset).sort_by("id")
            half = rows.num_rows // 2
            assert set(rows["_cdc_op"].to_pylist()[:half]) == {"r"} and set(rows["_cdc_op"].to_pylist()[half:]) == {"c"}
            for name in ("v", "c", "e", "s"):
                assert rows[name].slice(0, half).equals(rows[name].slice(half)), (charset, name)
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_collations_with_a_smaller_table(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Of one collation the server shows codes as question marks that its character set has: here they stay."""
    kinds = "VARCHAR(9)", "CHAR(9)", "TINYTEXT", "TEXT", "LONGTEXT"
    columns = ", ".join(f"`{kind}` {kind} COLLATE latin2_czech_cs" for kind in kinds)
    server.execute(f"CREATE TABLE d.t (k VARCHAR(9) COLLATE latin2_czech_cs PRIMARY KEY, n INT, {columns})")
    codes = ("3F", "41", "7F", "80", "9F", "A5", "FE")

    def fill(first: str) -> None:
        for code in codes:
            texts = f", _latin2 x'{code}'" * len(kinds)
            server.execute(f"INSERT INTO d.t VALUES (_latin2 x'{first}{code}', 0{texts})")

    shown = "SELECT HEX(CONVERT(CONVERT(x'80' USING latin2) COLLATE latin2_czech_cs USING utf8mb4))"
    assert server.execute(shown)[0][0] == "3F"
    cli = Cli(tmp_path, server, r"d\.t", snapshot={"chunk_rows": 2})
    fill("41")
    cli.snapshot()
    server.execute("UPDATE d.t SET n = 1 WHERE k IN (_latin2 x'417F', _latin2 x'4180')")
    fill("42")
    cli.catch_up()
    expected = {
        (bytes.fromhex(first + code).decode("iso8859_2"), first == "41" and code in ("7F", "80"))
        for first in ("41", "42")
        for code in codes
    }
    rows = cli.rows("d", "t").to_pylist()
    assert len(rows) == len(expected) and {(row["k"], row["n"] == 1) for row in rows} == expected
    assert all(row[kind] == row["k"][1:] for row in rows for kind in kinds)
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_no_other_collation_has_a_smaller_table(server: MySQLServer) -> None:
    name = "full_collation_name" if isinstance(server, MariaDBServer) else "collation_name"
    known = server.execute(
        f"SELECT {name}, character_set_name FROM information_schema.collation_character_set_applicability "
        "WHERE character_set_name IN (SELECT character_set_name FROM information_schema.character_sets "
        "WHERE character_set_name NOT LIKE 'u%' AND character_set_name <> 'binary')"
    )
    assert len(known) > 50
    every = " UNION ALL ".join(f"SELECT x'{byte:02x}' AS b" for byte in range(256))
    other = set()
    for collation, charset in known:
        shown = f"CONVERT(b USING {charset})"
        differ = f"HEX(CONVERT({shown} USING utf8mb4)) <> HEX(CONVERT({shown} COLLATE {collation} USING utf8mb4))"
        if server.execute(f"SELECT COUNT(*) FROM ({every}) AS l WHERE {differ}")[0][0]:
            other.add(collation)
    assert other == {"latin2_czech_cs"}


def test_text_that_is_none_stops(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Half a surrogate, which servers take as ucs2, has no counterpart: it never becomes another character."""
    server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT CHARACTER SET ucs2)")
    cli = Cli(tmp_path, server, r"d\.t")
    cli.snapshot()
    for number, half in enumerate(("D800", "DC40", "DBFE")):
        server.execute(f"INSERT INTO d.t VALUES ({number}, CONVERT(x'{half}' USING ucs2))")
    assert server.execute("SELECT COUNT(v) FROM d.t")[0][0] > 0
    for stage in (cli.catch_up, Cli(tmp_path / "2", server, r"d\.t", name="p2").snapshot):
        with pytest.raises(TerminalError, match="text") as caught:
            stage()
        assert "d.t" in caught.value.message
