"""An archive of the Java classes that Spark loads when it starts (class data sharing, CDS).

With it, a JVM maps the classes into memory instead of reading, checking and linking each of them again. Java ignores an
archive that was not made by the same runtime from the same files, and starts without it. The name of the file also
depends on both, so an outdated archive is not even tried.
"""

from __future__ import annotations

import hashlib
import os
from importlib import util
from pathlib import Path

from airflow_provider_cdc.system.cache_folders import cache_folders, is_trusted_folder, make_writable_folder

_KIND = "java-classes"


def find_class_archive(java_home: str) -> Path | None:
    """Return the archive for a Java runtime and the installed Spark; ``None`` if there is none that is safe to use.

    :param java_home: home folder of the runtime.
    """
    for folder in cache_folders(_KIND):
        archive = folder / _archive_name(java_home)
        if is_trusted_folder(folder) and archive.is_file() and not archive.is_symlink() and os.access(archive, os.R_OK):
            return archive
    return None


def new_class_archive(java_home: str) -> Path | None:
    """Return the path at which the archive is to be made; ``None`` if no cache folder is writable and safe."""
    folder = next(filter(make_writable_folder, cache_folders(_KIND)), None)
    return None if folder is None else folder / _archive_name(java_home)


def _archive_name(java_home: str) -> str:
    """Return a file name that depends on the Java runtime and on all of Spark's files."""
    home = Path(java_home).resolve()
    made_from: list[object] = [str(home)]
    spec = util.find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin is not None else home
    for path in [home / "release", *sorted(jars.glob("*.jar"))]:
        try:
            status = path.stat()
        except OSError:
            continue
        made_from.append((str(path), status.st_size, status.st_mtime_ns))
    return f"{hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]}.jsa"
