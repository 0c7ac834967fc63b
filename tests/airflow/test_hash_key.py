"""The secret key of hashed columns reaches the driver of each operator, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_cdc import CdcSnapshotOperator, CdcStreamOperator, CdcVerifyOperator
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION
from tests.system.test_secrets import leaks

KEY = f"k%/:@ é{secrets.token_hex(16)}"


class Ti(SimpleNamespace):
    """As much of a task instance as is asked."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, **_: Any) -> None:
        return None


@contextlib.contextmanager
def watched() -> Iterator[tuple[set[str], set[str]]]:
    """Command lines and environments of all other processes of the user: their names, and what is in them."""
    names, found, over = set[str](), set[str](), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    command = (folder / "cmdline").read_bytes()
                    if int(folder.name) == os.getpid() or not command:
                        continue
                    names.add(os.path.basename(command.split(b"\0")[0]).decode(errors="replace"))
                    found.update(leaks(f"the command line of {command[:80]!r}", command, KEY))
                    environment = (folder / "environ").read_bytes()
                    found.update(leaks(f"the environment of {command[:80]!r}", environment, KEY))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield names, found
    finally:
        over.set()
        thread.join()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_column_that_operators_hash(
    mysql_server: MySQLServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mysql_server.session(
        database, "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(60))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    policies = {rf"{database}\.t\.email": "hash"}
    rules: dict[str, Any] = {"hash_key_conn_id": HASH_CONNECTION, "columns": policies}
    cli = Cli(tmp_path, mysql_server, f"{database}.t", stream={"mode": "catch_up"}, transforms=rules)
    cli.env["AIRFLOW_CONN_PII_KEY"] = f"generic://:{quote(KEY, safe='')}@"
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    ti = Ti(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0, pushed={})
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(logical_date=datetime(2026, 1, 1), run_id="r", dag_id="d")}
    pipeline: dict[str, Any] = {"pipeline": str(cli.file), "task_id": "t"}
    with watched() as (names, found):
        results: list[Any] = [CdcSnapshotOperator(groups=0, **pipeline).execute(context)]
        mysql_server.session(database, "INSERT INTO t VALUES (3, 'c')", "UPDATE t SET email = 'x' WHERE id = 1")
        results.append(CdcStreamOperator(deferrable=False, assets=False, **pipeline).execute(context))
        results.append(CdcVerifyOperator(assets=False, **pipeline).execute(context))
    expected = {1: "x", 2: "b", 3: "c"}
    rows = cli.rows(database, "t")
    assert dict(zip(rows["id"].to_pylist(), rows["email"].to_pylist(), strict=True)) == {
        number: hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest() for number, text in expected.items()
    }
    assert results[1]["state"] == "caught_up" and results[2][0]["equal"]
    assert any("java" in name for name in names) and found == set()
    log = "".join(capfd.readouterr())
    assert log.count("Spark runs after") >= 2, "the log of both drivers"
    texts = {"the log": log, "XCom": json.dumps([results, ti.pushed], default=str, ensure_ascii=False)}
    assert not [leak for where, text in texts.items() for leak in leaks(where, text.encode(), KEY)]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or not leaks(str(path), path.read_bytes(), KEY)
