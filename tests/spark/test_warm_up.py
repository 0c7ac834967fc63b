"""`airflow-cdc warm-up`: what it leaves in the cache, and what a session makes of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_cdc.spark.class_archive import find_class_archive, new_class_archive
from airflow_provider_cdc.spark.warm_up import MACHINE_CODE_MODULES
from airflow_provider_cdc.spark.worker_daemon import WORKER_MODULES
from tests import ROOT

PACKAGE = ROOT / "airflow_provider_cdc"
#: Prints the options of the session's JVM and the archives that it has mapped, and runs a job.
SESSION = """
import sys
from pathlib import Path
from airflow_provider_cdc.spark.session import start_session

conf = dict(pair.split(" ", 1) for pair in sys.argv[2:])
spark = start_session("warm", "local[1]", conf, short_lived=sys.argv[1] == "short")
assert spark.sparkContext.parallelize(range(3), 2).map(lambda number: number + 1).collect() == [1, 2, 3]
java = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}")
print(*java.joinpath("cmdline").read_text().split(chr(0)))
print(*sorted({line.split()[-1] for line in java.joinpath("maps").read_text().splitlines() if line.endswith(".jsa")}))
spark.stop()
"""


def test_a_warm_up_compiles_all_machine_code() -> None:
    """Each module with a compiled function; the workers' process loads some of them beforehand."""
    modules = set()
    for path in PACKAGE.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if any(isinstance(function, ast.Name) and function.id == "compiled" for function in calls):
            modules.add(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    assert modules == set(MACHINE_CODE_MODULES) and modules > set(WORKER_MODULES)


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_sessions_use_what_a_warm_up_has_made(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for name in ("NUMBA_CACHE_DIR", "SPARK_SUBMIT_OPTS"):  # the latter has the archive of the tests
        env.pop(name, None)

    def run(*command: str) -> tuple[list[str], str]:
        done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, cwd=ROOT, check=True)
        return done.stdout.splitlines(), done.stderr

    def session(lifetime: str, *settings: str) -> tuple[str, str]:
        (options, archives), said = run("-c", SESSION, lifetime, *settings)
        assert said == ""
        return options, archives

    (machine_code, java_classes), said = run("-m", "airflow_provider_cdc", "warm-up")
    assert "starting Java" in said and "archiving Java classes" in said
    folder, archive = (Path(line.partition(": ")[2].rpartition(", ")[0]) for line in (machine_code, java_classes))
    assert folder == tmp_path / "airflow-provider-cdc" / "machine-code" and len(list(folder.rglob("*.nbi"))) == 13
    assert archive.stat().st_mode & 0o777 == 0o444 and [*archive.parent.iterdir()] == [archive]
    assert run("-m", "airflow_provider_cdc", "warm-up") == ([machine_code, java_classes], "")

    # The user's own options come later, so they win.
    options, archives = session("short", "spark.driver.defaultJavaOptions -XX:TieredStopAtLevel=3")
    assert str(archive) in archives and options.index("TieredStopAtLevel=3") > options.index("TieredStopAtLevel=1")
    options, archives = session("long")
    assert str(archive) in archives and "TieredStopAtLevel" not in options
    # Java starts without an archive that does not fit, and says nothing.
    options, archives = session("short", f"spark.driver.extraClassPath {tmp_path}")
    assert str(archive) in options and str(archive) not in archives
    archive.chmod(0o644)
    archive.write_bytes(b"nonsense")
    options, archives = session("short")
    assert str(archive) in options and str(archive) not in archives


def test_an_archive_is_for_one_runtime_and_no_one_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    homes = [tmp_path / name for name in ("java", "other")]
    for home in homes:
        home.mkdir()
        (home / "release").write_text("JAVA_VERSION=17")
    archive = new_class_archive(str(homes[0]))
    assert archive is not None and find_class_archive(str(homes[0])) is None
    archive.touch()
    assert [find_class_archive(str(home)) for home in homes] == [archive, None]
    (homes[0] / "release").write_text("JAVA_VERSION=17.0.1")
    assert find_class_archive(str(homes[0])) is None
    (homes[0] / "release").unlink()
    archive = new_class_archive(str(homes[0]))
    assert archive is not None
    archive.touch()
    assert find_class_archive(str(homes[0])) == archive
    archive.parent.chmod(0o777)
    assert find_class_archive(str(homes[0])) is None
