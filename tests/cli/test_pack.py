"""`airflow-cdc pack`: what the archive contains, that it runs elsewhere, and what is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from airflow_provider_cdc import __version__
from airflow_provider_cdc.spark.warm_up import MACHINE_CODE_MODULES
from airflow_provider_cdc.system.notices import NOTICE_PREFIX
from tests import ROOT
from tests.support.environments import link_packages, make_environment, needed_packages
from tests.support.processes import remove_folder, temporary_folder
from tests.support.s3 import S3

NOTICE = f"{NOTICE_PREFIX}compiling machine code, once per machine\n"
#: Loads all machine code, and prints how many functions were compiled.
PROGRAM = f"""
from importlib import import_module

from numba.core.dispatcher import Dispatcher

modules = [import_module("airflow_provider_cdc." + name) for name in {MACHINE_CODE_MODULES!r}]
functions = {{value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}}
assert len(functions) >= 13
print(sum(sum(function.stats.cache_misses.values()) for function in functions))
"""


def pack(python: Path, *target: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment that finds the package as an editable installation does."""
    command = [python, "-P", "-m", "airflow_provider_cdc", "pack", *target]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, cwd="/")


@dataclass
class Packed:
    """An environment, where it was packed, and what the command said."""

    python: Path
    out: Path
    said: str
    #: Packages that are too large to be packed for each test run; the test of drivers packs them, too.
    large: Path

    @property
    def site(self) -> Path:
        (found,) = self.python.parents[1].glob("lib/python*/site-packages")
        return found

    @property
    def archive(self) -> Path:
        (found,) = self.out.iterdir()
        return found


@pytest.fixture(scope="module")
def packed() -> Iterator[Packed]:
    folder = temporary_folder("cdc-pack-")
    python = make_environment(folder / "env", needed_packages("click", "rich"))
    large = folder / "large"
    large.mkdir()
    link_packages(large, needed_packages("numba", "pyarrow", "msgspec", "pyyaml", "zstandard"))
    packed = Packed(python, folder / "out", "", large)
    make_editable(packed.site)
    (folder / "env" / "pip.conf").write_text("[global]\nindex-url = https://user:token@pypi.example/simple\n")
    script = folder / "env" / "bin" / "airflow-cdc"
    script.write_text(f"#!{python}\nfrom airflow_provider_cdc.cli import main\nmain()\n")
    script.chmod(0o755)
    done = pack(python, packed.out, PYTHONPATH=str(large))
    assert done.returncode == 0, done.stderr
    packed.said = done.stdout
    yield packed
    remove_folder(folder)


def make_editable(site: Path) -> None:
    """Do what an editable installation of the package does."""
    (site / "_editable_impl_airflow_provider_cdc.pth").write_text(str(ROOT))
    info = site / f"airflow_provider_cdc-{__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: airflow-provider-cdc\nVersion: {__version__}\n")
    (info / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}, "url": ROOT.as_uri()}))


@pytest.fixture(scope="module")
def unpacked(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive as a node unpacks it, in a folder ``env``, but without the times of the files."""
    folder = tmp_path_factory.mktemp("node") / "env"
    folder.mkdir()
    (folder.parent / "large").symlink_to(packed.large)
    subprocess.run(["tar", "-xzf", packed.archive, "--touch"], cwd=folder, check=True)
    return folder


def run_there(unpacked: Path, cache: Path, *command: str, **variables: str) -> tuple[str, str]:
    """Run the unpacked environment with an empty folder for caches, by a relative path as YARN does."""
    env = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(cache), "TMPDIR": str(cache), **variables}
    env["PYTHONPATH"] = str(unpacked.parent / "large")
    cache.mkdir(exist_ok=True)
    done = subprocess.run(command, cwd=unpacked.parent, env=env, capture_output=True, text=True)
    return done.stdout, done.stderr


def test_it_runs_elsewhere_without_compiling(packed: Packed, unpacked: Path, tmp_path: Path) -> None:
    """Its packages, this one included, are its own; neither machine code nor bytecode is compiled or written."""
    origin = "import airflow_provider_cdc, click, sys; print(airflow_provider_cdc.__file__, click.__file__, *sys.path)"
    out, err = run_there(unpacked, tmp_path / "cache", "./env/bin/python", "-Pc", origin)
    first, second, *path = out.split()
    assert err == "" and first.startswith(f"{unpacked}/lib/") and second.startswith(f"{unpacked}/lib/")
    assert str(ROOT) not in path and str(packed.site) not in path
    before = {*unpacked.rglob("*")}
    run = ("./env/bin/python", "-vPc", PROGRAM)
    out, err = run_there(unpacked, tmp_path / "cache", *run)
    assert out == "0\n" and NOTICE not in err
    modules = [line for line in err.splitlines() if str(unpacked) in line and line.startswith("# code object from ")]
    assert len(modules) > 20 and all(line.endswith(".pyc'") for line in modules)
    assert {*unpacked.rglob("*")} - before == set() and not [*(tmp_path / "cache").iterdir()]


def test_a_script_runs_elsewhere(unpacked: Path, tmp_path: Path) -> None:
    assert (
        run_there(unpacked, tmp_path, "./env/bin/airflow-cdc", "--version")[0]
        == f"airflow-cdc, version {__version__}\n"
    )


def test_another_processor_compiles_and_says_so(unpacked: Path, tmp_path: Path) -> None:
    """Into a folder that it may write to, once."""
    program = "from airflow_provider_cdc.native import murmur3"
    cache = tmp_path / "cache"
    for expected in (NOTICE, ""):
        said = run_there(unpacked, cache, "./env/bin/python", "-Pc", program, NUMBA_CPU_NAME="generic")
        assert said == ("", expected)
    assert [*cache.rglob("*.nbi")]


def test_machine_code_that_others_can_change_is_not_used(unpacked: Path, tmp_path: Path) -> None:
    program = "from airflow_provider_cdc.native import murmur3"
    folders = [path for path in (unpacked / "share/airflow-provider-cdc").iterdir() if [*path.glob("murmur3*")]]
    assert len(folders) == 1
    folders[0].chmod(0o777)
    try:
        assert run_there(unpacked, tmp_path, "./env/bin/python", "-Pc", program)[1] == NOTICE
    finally:
        folders[0].chmod(0o755)


def test_machine_code_of_the_one_who_unpacked_is_used(unpacked: Path, tmp_path: Path) -> None:
    """A node's manager unpacks public archives, and drivers run as other users."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    node, manager, someone = tmp_path / "env", 65533, 65532
    shutil.copytree(unpacked, node, symlinks=True)
    (tmp_path / "large").symlink_to(unpacked.parent / "large")
    subprocess.run(["chown", "-R", str(manager), node], check=True)
    program = "from airflow_provider_cdc.native import murmur3"
    assert run_there(node, tmp_path / "cache", "./env/bin/python", "-Pc", program) == ("", "")
    subprocess.run(["chown", "-R", str(someone), node / "share"], check=True)
    assert run_there(node, tmp_path / "cache", "./env/bin/python", "-Pc", program) == ("", NOTICE)


def test_the_archive(packed: Packed) -> None:
    """It contains only the environment and the machine code, owned by root; the base Python is a link."""
    with tarfile.open(packed.archive) as archive:
        members = archive.getmembers()
        settings = archive.extractfile("pyvenv.cfg")
        assert settings is not None and "command" not in settings.read().decode()
    names = [member.name for member in members]
    assert names == sorted(set(names))
    assert {name.partition("/")[0] for name in names} <= {"bin", "lib", "lib64", "share", "pyvenv.cfg"}
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, 315_532_800)}
    assert not [member.name for member in members if member.mode & 0o022]
    base = os.path.realpath(sys.executable)
    assert {member.linkname for member in members if member.issym() and os.path.isabs(member.linkname)} == {base}
    assert not [name for name in names if name.endswith((".pth", "direct_url.json", "activate", "pip.conf"))]
    sources = {name for name in names if name.endswith(".py") and "/airflow_provider_cdc/" in name}
    bytecode = {
        f"{os.path.dirname(name)}/__pycache__/{Path(name).stem}.{sys.implementation.cache_tag}.pyc" for name in sources
    }
    assert len(sources) > 100 and bytecode <= set(names)
    assert len([name for name in names if name.endswith(".nbi")]) == 13


def test_what_is_said(packed: Packed) -> None:
    """Size, base Python, and settings for the pipeline."""
    archive, base, processor, *lines = packed.said.splitlines()
    assert archive == f"archive: {packed.archive}, {packed.archive.stat().st_size / 1_000_000:.1f} MB"
    assert (
        os.path.realpath(sys.executable) in base and "every node" in base and processor.startswith("machine code: for")
    )
    assert yaml.safe_load("\n".join(lines))["spark"]["conf"] == {
        "spark.yarn.dist.archives": f"{packed.archive.as_uri()}#env",
        "spark.pyspark.python": "./env/bin/python",
    }


def test_the_same_content_is_not_written_twice(packed: Packed, tmp_path: Path) -> None:
    before = packed.archive.stat().st_mtime_ns
    done = pack(packed.python, packed.out, PYTHONPATH=str(packed.large))
    assert f"archive: {packed.archive} is already there\n" in done.stdout and done.returncode == 0
    assert packed.archive.stat().st_mtime_ns == before


@pytest.fixture
def tiny(tmp_path: Path) -> Packed:
    """An environment with nothing in it; the command gets all packages from elsewhere."""
    venv.create(tmp_path / "env", symlinks=True)
    return Packed(tmp_path / "env" / "bin" / "python", tmp_path / "out", "", tmp_path)


def pack_tiny(tiny: Packed, target: str | Path, *, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    if limit is None:
        return pack(tiny.python, target, PYTHONPATH=path)
    command = ["bash", "-c", f'trap "" XFSZ; ulimit -f {limit}; exec "$@"', "-"]
    command += map(str, (tiny.python, "-P", "-m", "airflow_provider_cdc", "pack", target))
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd="/")


def test_two_archives_of_the_same_are_the_same(tiny: Packed, tmp_path: Path) -> None:
    """Whatever the times of the files are; a change makes another name, and a named file is replaced."""
    module = tiny.site / "module.py"
    module.write_text("x = 1\n")
    archives = list[Path]()
    for number in range(2):
        os.utime(module, (number * 1000, number * 1000))
        assert pack_tiny(tiny, tmp_path / str(number)).returncode == 0
        archives += (tmp_path / str(number)).iterdir()
    assert archives[0].name == archives[1].name and archives[0].read_bytes() == archives[1].read_bytes()
    module.write_text("x = 2\n")
    assert pack_tiny(tiny, tmp_path / "0").returncode == 0 and len([*(tmp_path / "0").iterdir()]) == 2
    named = tmp_path / "named.tar.gz"
    shutil.copy(archives[0], named)
    assert pack_tiny(tiny, named).returncode == 0
    with tarfile.open(named) as archive:
        found = archive.extractfile(str(module.relative_to(tiny.python.parents[1])))
        assert found is not None and found.read().decode() == "x = 2\n"


def test_into_an_object_store(tiny: Packed, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.options.items():
        monkeypatch.setenv(name.upper(), value)
    done = pack_tiny(tiny, f"s3://{s3.bucket}/cdc")
    assert done.returncode == 0, done.stderr
    (name,) = [key for key in s3.keys() if key.startswith("cdc/")]  # noqa: SIM118
    assert f"s3a://{s3.bucket}/{name}#env" in done.stdout
    with tarfile.open(fileobj=io.BytesIO(s3.content(name))) as archive:
        assert "bin/python" in archive.getnames()


def test_a_full_disk_is_one_line_and_leaves_nothing(tiny: Packed, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the error of the system is another one, the way is the same."""
    done = pack_tiny(tiny, tmp_path / "out", limit=100)
    assert done.returncode in (2, 3) and done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr and not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize("case", ["editable", "linked", "system packages", "conda", "hdfs", "a file"])
def test_what_is_refused(tiny: Packed, tmp_path: Path, case: str) -> None:
    """With exit code 2, one line, and what to do about it."""
    target, words = tmp_path / "out", "Install them without --editable"
    prefix = tiny.python.parents[1]
    if case == "editable":
        info = tiny.site / "other-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: other\nVersion: 1\n")
        (info / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///src/other"}')
    elif case == "linked":
        (tiny.site / "other.pth").write_text(f"{tmp_path}\n")
    elif case == "system packages":
        settings = prefix / "pyvenv.cfg"
        settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
        words = "without --system-site-packages"
    elif case == "conda":
        (prefix / "conda-meta").mkdir()
        words = "conda-pack"
    elif case == "hdfs":
        target, words = Path("hdfs://namenode/cdc"), "hdfs dfs -put"
    else:
        target.write_text("")
        words = "Name a folder that this user can write to"
    done = pack_tiny(tiny, str(target).replace("hdfs:/n", "hdfs://n"))
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: ")
    assert words in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_a_python_without_a_virtual_environment_is_refused(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    done = pack(Path(os.path.realpath(sys.executable)), tmp_path, PYTHONPATH=path)
    assert done.returncode == 2 and "is in no virtual environment. Make one (python -m venv FOLDER)" in done.stderr
