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
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba

from airflow_provider_cdc.system.cache_folders import is_trusted_folder, machine_code_folders, make_writable_folder
from airflow_provider_cdc.system.notices import write_notice
from airflow_provider_cdc.system.temp_dirs import temporary_folder

#: The caller keeps the arrays alive during a call, and the machine code creates none, so references need not be
#: counted; counting would cost several locked instructions per row image. Code that allocates memory does not compile.
NO_REFCOUNTS: Any = {"_nrt": False}

_config: Any = numba.config
_lock = threading.Lock()
#: Seconds after which a process compiles a function although another one is still at it.
_LOCK_SECONDS = 120.0
#: Cache folders of the functions that this process has loaded or compiled; ``None`` for those without one.
_used_folders: set[Path | None] = set()
#: Whether this process has said that it compiles.
_noticed = threading.Event()


def compiled(signature: str, *sources: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function to machine code, which runs without the GIL.

    :param signature: numba signature of the function.
    :param sources: paths of all files that contain the function and the code compiled into it.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        paths = [Path(source) for source in sources]
        folder = cache_folder(*paths)
        if folder is not None and not is_cached(function, folder):
            _copy_from_read_only_cache(function, folder, paths)
        _used_folders.add(folder)
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
    return next(filter(make_writable_folder, _candidate_folders(sources)), None)


def used_folders() -> set[Path | None]:
    """Return the cache folders of all functions that this process has; ``None`` is for functions without one."""
    return {*_used_folders}


def _candidate_folders(sources: Sequence[Path]) -> list[Path]:
    made_from = [
        *(source.read_bytes() for source in sources),
        numba.__version__,
        llvmlite.__version__,
        platform.python_version(),
    ]
    made_from += [llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()]
    name = hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]
    return [parent / name for parent in machine_code_folders()]


def _copy_from_read_only_cache(function: Callable[..., Any], folder: Path, sources: Sequence[Path]) -> None:
    """Copy the machine code of a function from a cache that this process cannot write to, such as that of an image.

    numba refuses to read a cache in such a folder.

    :param folder: the folder that is used instead.
    """
    for candidate in _candidate_folders(sources):
        if all(map(is_trusted_folder, (candidate.parent, candidate))) and not os.access(candidate, os.W_OK):
            # The index last: until it is there, numba does not look for the data.
            for path in sorted(candidate.glob(f"{_file_pattern(function)}[ci]"), key=lambda path: path.suffix):
                target = folder / path.parent.name / path.name
                with contextlib.suppress(OSError), temporary_folder(folder.parent) as private:
                    target.parent.mkdir(mode=0o700, exist_ok=True)
                    os.replace(shutil.copyfile(path, private / path.name), target)


def is_cached(function: Callable[..., Any], folder: Path | None) -> bool:
    """Return whether a cache folder has machine code of a function.

    :param folder: the function's :func:`cache_folder`.
    """
    return folder is not None and any(folder.glob(f"{_file_pattern(function)}i"))


def _file_pattern(function: Callable[..., Any]) -> str:
    """Return how numba names the cache files of a function; one more letter makes the suffix complete."""
    source_folder = os.path.dirname(os.path.abspath(function.__code__.co_filename))
    subfolder = f"*_{hashlib.sha1(source_folder.encode()).hexdigest()}"
    return f"{subfolder}/*.{function.__qualname__}-{function.__code__.co_firstlineno}.*.nb"


@contextlib.contextmanager
def _compile_turn(function: Callable[..., Any], folder: Path | None) -> Iterator[None]:
    """Let one process after the other compile a function that is not cached: the first does, the others load it."""
    with contextlib.ExitStack() as stack:
        if folder is not None and not is_cached(function, folder):
            stack.enter_context(_exclusive_lock(folder / "compiling.lock"))
        if not (_noticed.is_set() or is_cached(function, folder)):
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


@contextlib.contextmanager
def _numba_cache(folder: Path | None) -> Iterator[None]:
    """Set numba's cache folder while a function is decorated, which is when numba reads it."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder or "")
    try:
        yield
    finally:
        _config.CACHE_DIR = before
