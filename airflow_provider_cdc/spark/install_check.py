"""Refuse a mixed installation of pyspark and pyspark-client, or another Spark, before it fails in confusing ways.

Both distributions contain the package ``pyspark``, and Airflow's Spark provider installs the client. If they have the
same version, their files are identical; otherwise, the one installed last has overwritten a part of the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

from airflow_provider_cdc.model.errors import NotReadyError


def check_spark_install(
    version_of: Callable[[str], str] = metadata.version, package_folder: Callable[[], Path | None] | None = None
) -> str:
    """Check that pyspark is installed and not mixed with another version, and return its version. Does not import it.

    :param version_of: returns the version of an installed distribution, or raises ``PackageNotFoundError``.
    :param package_folder: returns the folder of the package ``pyspark``; by default where Python would import it from.
    :raise NotReadyError: if pyspark is missing, or its files and the client's are of different versions.
    """
    versions: dict[str, str] = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            versions[name] = version_of(name)
        except metadata.PackageNotFoundError:
            continue
    if "pyspark" not in versions:
        raise NotReadyError("pyspark is not installed", "Install it: pip install 'pyspark>=4.0,<4.4'")
    version, client = versions["pyspark"], versions.get("pyspark-client")
    remedy = f"Reinstall it: pip install --force-reinstall --no-deps 'pyspark=={version}'"
    if client is not None:  # every client version has a pyspark of the same version, but not vice versa
        remedy = (
            "Install the same version of both: pip uninstall -y pyspark pyspark-client && "
            f"pip install 'pyspark=={client}' 'pyspark-client=={client}'"
        )
    if client not in (None, version):
        raise NotReadyError(f"pyspark {version} and pyspark-client {client} are installed over each other", remedy)
    files_version = _version_of_files((package_folder or _package_folder)())
    if files_version != version:
        raise NotReadyError(f"pyspark {version} is installed, but its files are those of {files_version}", remedy)
    return version


def check_spark_home(version: str, environ: Mapping[str, str] = os.environ) -> None:
    """Check that ``SPARK_HOME``, whose programs pyspark starts instead of its own, is the same Spark.

    :param version: version of pyspark.
    :raise NotReadyError: if it is another one. A folder that does not tell its version is not refused.
    """
    home = environ.get("SPARK_HOME")
    found = _version_of_spark(Path(home)) if home else None
    if found is not None and _minor_version(found) != _minor_version(version):
        raise NotReadyError(
            f"SPARK_HOME is {home}, which is Spark {found}, and pyspark is {version}",
            f"Install pyspark {found} if the cluster has that Spark; else unset SPARK_HOME for the Airflow workers (in "
            "the driver's image, if drivers run in pods)",
        )


def _minor_version(version: str) -> str:
    """Return the part of a version that decides whether pyspark and Spark work together, such as ``3.5``."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else version


def _version_of_spark(home: Path) -> str | None:
    """Return the version of Spark in a folder, such as ``3.5.1``; ``None`` if it is unknown."""
    with suppress(OSError):
        for jar in (home / "jars").glob("spark-core_*.jar"):
            return jar.stem.partition("spark-core_")[2].partition("-")[2]
    with suppress(OSError, UnicodeDecodeError):
        if match := re.match(r"Spark (\S+)", (home / "RELEASE").read_text()):
            return match[1]
    return None


def _package_folder() -> Path | None:
    spec = util.find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _version_of_files(folder: Path | None) -> str:
    """Return ``pyspark.__version__``, read from its file."""
    try:
        text = (folder / "version.py").read_text() if folder is not None else ""
    except OSError:
        text = ""
    match = re.search(r"""__version__(?:\s*:\s*str)?\s*=\s*["']([^"']+)""", text)
    return match[1] if match else "no known version"
