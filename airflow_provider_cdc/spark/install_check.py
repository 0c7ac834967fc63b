"""Refuse a mixed installation of pyspark and pyspark-client before it fails in ways nobody understands.

Both distributions bring the same package ``pyspark``, and Airflow's Spark provider installs the client. Of one version
they agree file by file; of two versions, whichever was installed last has overwritten a part of the other.
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
    """Check that pyspark is installed, unmixed, and return its version. Imports nothing of it.

    :param version_of: gives the version of an installed distribution, or raises ``PackageNotFoundError``.
    :param package_folder: gives the folder of the package ``pyspark``; default: where Python would import it from.
    :raise NotReadyError: when pyspark is missing, or its files and the client's are of different versions.
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
    remedy = f"Install it anew: pip install --force-reinstall --no-deps 'pyspark=={version}'"
    if client is not None:  # each client has a pyspark of its version, but not the other way round
        remedy = (
            "Install both of one version: pip uninstall -y pyspark pyspark-client && "
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
    """Return what ``pyspark.__version__`` would say, read from its file."""
    try:
        text = (folder / "version.py").read_text() if folder is not None else ""
    except OSError:
        text = ""
    match = re.search(r"""__version__(?:\s*:\s*str)?\s*=\s*["']([^"']+)""", text)
    return match[1] if match else "no known version"
