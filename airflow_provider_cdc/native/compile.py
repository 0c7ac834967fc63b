"""Machine code made from Python by numba, and where it is kept between runs.

Making it takes seconds, so it is kept on disk. The folder's name says what the code was made from (source, compiler,
Python, processor): what an older version left there can never be taken for it, and processes that compile at the same
time write the same. What is read back is executed, so a folder that others may write to is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba

#: The caller holds the arrays for as long as a call lasts, and the machine code makes none, so references need not be
#: counted: each count is a locked instruction, several for every row image. What would need memory does not compile.
NO_REFCOUNTS: Any = {"_nrt": False}

_config: Any = numba.config
_lock = threading.Lock()


def compiled(signature: str, *sources: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that turns a function into machine code which runs without Python's lock.

    :param signature: numba signature of the function.
    :param sources: paths of all files that hold the function and what is compiled into it.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        folder = cache_folder(*map(Path, sources))
        with _lock, _numba_cache(folder):
            machine_code: Callable[..., Any] = numba.njit(
                signature, nogil=True, cache=folder is not None, **NO_REFCOUNTS
            )(function)
        return machine_code

    return decorate


def cache_folder(*sources: Path) -> Path | None:
    """Folder for the machine code of source files; ``None`` if there is no place that is safe and can be written to.

    The first of ``NUMBA_CACHE_DIR``, the user's cache folder, and the folder for temporary files.
    """
    made_from = [
        *(source.read_bytes() for source in sources),
        numba.__version__,
        llvmlite.__version__,
        platform.python_version(),
    ]
    made_from += [llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()]
    name = hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]
    for parent in _cache_parents():
        folder = parent / name
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_only_ours(parent) and _is_only_ours(folder):
                with tempfile.TemporaryFile(dir=folder):
                    return folder
        except OSError:
            continue
    return None


def _cache_parents() -> Iterator[Path]:
    if _config.CACHE_DIR:
        yield Path(_config.CACHE_DIR) / "airflow-provider-cdc"
    with contextlib.suppress(RuntimeError):  # a user without a home
        named = os.environ.get("XDG_CACHE_HOME", "")
        cache = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
        yield cache / "airflow-provider-cdc" / "machine-code"
    yield Path(tempfile.gettempdir()) / f"airflow-provider-cdc-{os.geteuid()}"


def _is_only_ours(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


@contextlib.contextmanager
def _numba_cache(folder: Path | None) -> Iterator[None]:
    """Numba decides where to keep a function's code while it is being decorated."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder or "")
    try:
        yield
    finally:
        _config.CACHE_DIR = before
