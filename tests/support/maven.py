"""Jars of Maven Central that are no packages of Spark; kept in the user's cache folder."""

from __future__ import annotations

import re
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path

from tests.support.packages import cache_folder, locked


@cache
def _repository_address() -> str:
    """The address of Maven Central, as Ivy has it, which comes with Spark."""
    (ivy,) = Path(str(files("pyspark"))).glob("jars/ivy-*.jar")
    with zipfile.ZipFile(ivy) as jar:
        constants = jar.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
    (address,) = set(re.findall(rb"https://[\w./-]+/maven2", constants))
    return str(address.decode())


def maven_jars(key: str, coordinates: Sequence[str]) -> Path:
    """Return the folder with jars, which are fetched the first time.

    :param key: name of the folder in the cache.
    :param coordinates: ``group:artifact:version`` or ``group:artifact:version:classifier``.
    """
    folder = cache_folder() / key
    with locked(key):
        if not folder.exists():
            print(f"Fetching {key} (once) ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
                made = Path(scratch, "jars")
                made.mkdir()
                with ThreadPoolExecutor(8) as pool:
                    for jar, data in pool.map(_fetch, coordinates):
                        (made / jar).write_bytes(data)
                made.rename(folder)
    return folder


def _fetch(coordinate: str) -> tuple[str, bytes]:
    group, artifact, version, *classifier = coordinate.split(":")
    jar = f"{'-'.join((artifact, version, *classifier))}.jar"
    url = f"{_repository_address()}/{group.replace('.', '/')}/{artifact}/{version}/{jar}"
    data = _read(url)
    expected = _read(f"{url}.sha1").decode().split()[0]
    assert sha1(data, usedforsecurity=False).hexdigest() == expected, f"{url} is damaged"
    return jar, data


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        data: bytes = answer.read()
        return data
