"""The demos, small: they must prove what they say, and leave nothing behind, however they end."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests import ROOT
from tests.support import spark_iceberg
from tests.support.iceberg_place import CatalogPlace
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark

Process = subprocess.Popen[str]
#: Starts a demo: its module, then its options.
Start = Callable[..., Process]
CORE, AIRFLOW = "bench.demo", "bench.demo_airflow"
#: What the demo in Airflow shows, in this order. It fails if one of these does not happen.
STORY = (
    r"Page: +http\S+/plugin/cdc ",
    r"The plan: \d+ chunk groups, read by \d+ mapped tasks \(0-2: shop\.customer; ",
    r"\| shop\.snapshot \[.+\]: failed",
    r"says: 1 of [23] chunk groups failed: group \d+: table shop\.orders, column ordered_at .* correct the rows; ",
    r"Retry on the page: Task shop\.snapshot\[\d+\] .* are published and are not read again",
    r"is published; of the others \(.+\), none was read again",
    r"\| shop\.stream: deferred",
    r"ALTER TABLE shop\.orders ADD COLUMN note ",
    r"The copy of shop\.orders has the column note",
    r"EQUAL: every sink table is its source, row by row",
)
#: Every process that a demo starts inherits it.
MARK = f"CDC_DEMO_TEST={secrets.token_hex(8)}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a small demo whose temporary files lie in ``tmp_path``."""
    started: list[Process] = []

    def make(module: str, *arguments: str) -> Process:
        name, value = MARK.split("=")
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--customers", "20000", "--seconds", "5", "--rate", "30", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path), name: value, "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


def _until(process: Process, text: str) -> str:
    """What a demo says up to the line with a text; all of it if there is none."""
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


def _rest(process: Process) -> str:
    """What a demo says from there to its end."""
    assert process.stdout
    text = process.stdout.read()
    process.wait()
    return text


def _left() -> list[str]:
    """Command lines of living processes that a demo of this test has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if MARK.encode() in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
    return found


def _assert_story(said: str) -> None:
    at = 0
    for step in STORY:
        found = re.compile(step).search(said, at)
        assert found, f"{step!r} is not there, or not in this place:\n{said}"
        at = found.end()


def _nothing_left(tmp_path: Path) -> None:
    assert _left() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    # The one in Airflow proves the same on its way to where it stays, below.
    ("module", "sink"),
    [
        pytest.param(CORE, "folder", marks=pytest.mark.long),
        pytest.param(CORE, "iceberg", marks=pytest.mark.long),
        pytest.param(AIRFLOW, "folder", marks=[pytest.mark.airflow, pytest.mark.long]),
        pytest.param(AIRFLOW, "iceberg", marks=[pytest.mark.airflow, pytest.mark.long]),
    ],
)
def test_it_ends_equal_and_leaves_nothing(start: Start, tmp_path: Path, module: str, sink: str) -> None:
    process = start(module, "--sink", sink)
    text, _ = process.communicate()
    assert process.returncode == 0, text
    assert "EQUAL: " in text.splitlines()[-1]
    assert "snapshot rows" in text and "changes applied" in text and "p95" in text
    assert "The copy of shop.orders has the column note" in text
    assert len(re.findall(r"the same rows read by Polars .+, DuckDB ", text)) == 4
    if sink == "iceberg":
        spark = len(re.findall(r"the same rows read by .+, Spark \S+ with Iceberg ", text))
        assert spark == 4 if spark_iceberg.is_at_hand() else "Spark with Iceberg does not read the copy" in text
        assert "As long as the catalog runs, with STAY=1" in text
    if module == AIRFLOW:
        _assert_story(text)
    _nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("module", "before", "number"),
    [
        (CORE, "planned", signal.SIGINT),  # within the snapshot
        pytest.param(CORE, "follows the writers", signal.SIGTERM, marks=pytest.mark.long),
        # While the stream's driver starts: no bookkeeping knows of it yet.
        pytest.param(AIRFLOW, "shop.stream: running", signal.SIGINT, marks=[pytest.mark.airflow, pytest.mark.long]),
        pytest.param(AIRFLOW, "Starting Airflow", signal.SIGINT, marks=[pytest.mark.airflow, pytest.mark.long]),
        pytest.param(AIRFLOW, "snapshot [", signal.SIGHUP, marks=[pytest.mark.airflow, pytest.mark.long]),
        pytest.param(AIRFLOW, "follows the writers", signal.SIGTERM, marks=[pytest.mark.airflow, pytest.mark.long]),
    ],
)
def test_interrupted_it_leaves_nothing(
    start: Start, tmp_path: Path, module: str, before: str, number: signal.Signals
) -> None:
    process = start(module, "--seconds", "600")
    said = _until(process, before)
    if before == "shop.stream: running":
        wait_for("the stream's driver", lambda: any("airflow_provider_cdc.driver.main" in line for line in _left()))
    assert len(_left()) > (1 if before == "Starting Airflow" else 4), said
    process.send_signal(number)
    rest = _rest(process)
    assert process.returncode == 128 + number, said + rest
    assert "Interrupted" in rest and "Traceback" not in rest
    _nothing_left(tmp_path)


@pytest.mark.airflow
@pytest.mark.long
def test_it_stays_until_interrupted(start: Start, tmp_path: Path) -> None:
    """The address and the login that are shown work, and nothing else does; the comparison is made once more."""
    process = start(AIRFLOW, "--stay")
    said = _until(process, "EQUAL: ")
    said += _until(process, "Login:")
    assert said.count("Login:") == 2, said
    (page, name, password) = re.findall(r"Airflow: (http\S+)[^|]+?Login:\s+(\S+), password (\S+)", said)[-1]
    address = page[: page.index("/dags/")]
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as http:
        assert http.get(page).status_code == 200
        assert http.get("/auth/token").status_code == 403
        assert http.post("/auth/token", json={"username": name, "password": password[::-1]}).status_code == 401
        assert http.get("/api/v2/dags").status_code == 401
        token = http.post("/auth/token", json={"username": name, "password": password}).json()["access_token"]
        found = http.get("/api/v2/dags", headers={"Authorization": f"Bearer {token}"}).json()["dags"]
    assert [f"{address}/dags/{dag['dag_id']}" for dag in found] == [page]
    said += _until(process, "| stream: ")
    process.send_signal(signal.SIGINT)
    rest = _rest(process)
    assert process.returncode == 0, said + rest
    assert "EQUAL: " in said and "EQUAL: " in rest.splitlines()[-1]
    assert rest.count("rows, all equal") == 4
    _nothing_left(tmp_path)


@pytest.mark.long
def test_the_core_stays_until_interrupted(start: Start, tmp_path: Path) -> None:
    """The copy can be read meanwhile, through the catalog that is shown."""
    process = start(CORE, "--stay", "--sink", "iceberg")
    said = _until(process, "until you press Ctrl-C")
    (address,) = re.findall(r"ENDPOINT '(http\S+?)'", said)
    table = CatalogPlace(address, "shop/customer").load()
    assert table is not None and table.scan().count() > 1_000  # the writers delete many
    assert f"spark.sql.catalog.ice.uri={address} -e 'SELECT * FROM ice.shop.customer LIMIT 5'" in said
    process.send_signal(signal.SIGINT)
    rest = _rest(process)
    assert process.returncode == 0, said + rest
    assert "EQUAL: " in said and "EQUAL: " in rest.splitlines()[-1]
    assert rest.count("rows, all equal") == 4
    _nothing_left(tmp_path)


@pytest.mark.parametrize(("target", "module"), [("demo", AIRFLOW), ("demo-core", CORE)])
@pytest.mark.parametrize(("words", "stays"), [([], False), (["STAY=0"], False), (["STAY=1"], True)])
def test_make_hands_over_that_it_stays(target: str, module: str, words: list[str], stays: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("STAY", "MAKEFLAGS")}
    text = subprocess.check_output(["make", "-n", target, *words], cwd=ROOT, text=True, env=environment)
    (command,) = [line for line in text.splitlines() if f"-m {module}" in line]
    assert command.rstrip().endswith("--stay") == stays


def test_a_pipeline_that_fails_fails_the_demo(start: Start, tmp_path: Path) -> None:
    process = start(CORE)
    said = _until(process, "stream epoch 1 begins")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            ours = MARK.encode() in (path.parent / "environ").read_bytes()
            if ours and b"\0airflow_provider_cdc\0run\0" in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    rest = _rest(process)
    assert process.returncode == 1, said + rest
    assert "FAILED: airflow-cdc run ended with exit code -9" in rest
    _nothing_left(tmp_path)


def test_a_folder_that_exists_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    process = start(CORE, "--out", str(tmp_path / "mine"))
    text, _ = process.communicate()
    assert process.returncode == 2
    assert "File exists" in text and "Traceback" not in text
