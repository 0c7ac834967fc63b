"""Refuse a mixed installation of pyspark and pyspark-client before it fails in confusing ways.

Both distributions contain the package ``pyspark``, and Airflow's Spark provider installs the client. If they have the
same version, their files are identical; otherwise, the one installed last has overwritten a part of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
