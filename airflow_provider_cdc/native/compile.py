"""Machine code compiled from Python by numba, and its cache.

Compiling takes seconds, so machine code is cached on disk. The name of the cache folder depends on everything that the
code was compiled from (source, compiler, Python, processor), so code of an older version is never used, and processes
that compile at the same time write the same code. Cached code is executed, so a folder that others can write to is
never used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba

from airflow_provider_cdc.system.notices import write_notice

#: The caller keeps the arrays alive during a call, and the machine code creates none, so references need not be
#: counted; counting would cost several locked instructions per row image. Code that allocates memory does not compile.
NO_REFCOUNTS: Any = {"_nrt": False}

_config: Any = numba.config
_lock = threading.Lock()
#: Seconds after which a process compiles a function although another one is still at it.
_LOCK_SECONDS = 120.0
#: Whether this process has said that it compiles.
_noticed = threading.Event()


def compiled(signature: str, *sources: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function to machine code, which runs without the GIL.

    :param signature: numba signature of the function.
    :param sources: paths of all files that contain the function and the code compiled into it.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        folder = cache_folder(*map(Path, sources))
        with _lock, _numba_cache(folder), _compile_turn(function, folder):
            machine_code: Callable[..., Any] = numba.njit(
                signature, nogil=True, cache=folder is not None, **NO_REFCOUNTS
            )(function)
        return machine_code

    return decorate


def cache_folder(*sources: Path) -> Path | None:
    """Return the cache folder for source files; ``None`` if there is none that is safe and writable.

    Candidates, in this order, are ``NUMBA_CACHE_DIR``, the user's cache folder, and the folder for temporary files.
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


def is_cached(function: Callable[..., Any], folder: Path | None) -> bool:
    """Return whether a cache folder has machine code of a function.

    :param folder: the function's :func:`cache_folder`.
    """
    source_folder = os.path.dirname(os.path.abspath(function.__code__.co_filename))
    subfolder = f"*_{hashlib.sha1(source_folder.encode()).hexdigest()}"  # as numba names it, and the index
    index = f"*.{function.__qualname__}-{function.__code__.co_firstlineno}.*.nbi"
    return folder is not None and any(folder.glob(f"{subfolder}/{index}"))


@contextlib.contextmanager
def _compile_turn(function: Callable[..., Any], folder: Path | None) -> Iterator[None]:
    """Let one process after the other compile a function that is not cached: the first does, the others load it."""
    if is_cached(function, folder):
        yield
        return
    with contextlib.nullcontext() if folder is None else _exclusive_lock(folder / "compiling.lock"):
        if not (_noticed.is_set() or is_cached(function, folder)):  # another process may have compiled it meanwhile
            _noticed.set()
            write_notice("compiling machine code" + ("" if folder is None else ", once per machine"))
        yield


@contextlib.contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Wait for a lock, but not for ever: without it, several processes do the same work, which does no harm."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("w") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:  # a file system without locks
                break
        yield


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
    """Set numba's cache folder while a function is decorated, which is when numba reads it."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder or "")
    try:
        yield
    finally:
        _config.CACHE_DIR = before
