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
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
from numba.core.caching import UserProvidedCacheLocator

from airflow_provider_cdc.system.cache_folders import (
    is_trusted_folder,
    machine_code_folders,
    make_writable_folder,
    package_owner,
    packed_machine_code_folder,
)
from airflow_provider_cdc.system.notices import write_notice

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
        folder = cache_folder(*map(Path, sources), function=function)
        _used_folders.add(folder)
        with _lock, _numba_cache(folder), _compile_turn(function, folder):
            machine_code: Callable[..., Any] = numba.njit(
                signature, nogil=True, cache=folder is not None, **NO_REFCOUNTS
            )(function)
        return machine_code

    return decorate


def cache_folder(*sources: Path, function: Callable[..., Any] | None = None) -> Path | None:
    """Return the cache folder for source files; ``None`` if there is none that is safe and writable.

    Candidates, in this order, are ``NUMBA_CACHE_DIR``, the user's cache folder, and the folder for temporary files.

    :param function: function whose machine code is needed: a folder that has it need not be writable, and that which
        came with this Python environment precedes all others.
    """
    name = _folder_name(sources)
    packed = packed_machine_code_folder() / name
    if function is not None and is_cached(function, packed) and _is_safe_to_read(packed, package_owner()):
        return packed
    for folder in (parent / name for parent in machine_code_folders()):
        if function is not None and is_cached(function, folder) and _is_safe_to_read(folder):
            return folder
        if make_writable_folder(folder):
            return folder
    return None


def used_folders() -> set[Path | None]:
    """Return the cache folders of all functions that this process has; ``None`` is for functions without one."""
    return {*_used_folders}


def _folder_name(sources: Sequence[Path]) -> str:
    """Return a name that depends on everything that machine code is made from."""
    made_from = [
        *(source.read_bytes() for source in sources),
        numba.__version__,
        llvmlite.__version__,
        platform.python_version(),
        *target_processor(),
    ]
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]


def target_processor() -> tuple[str, str]:
    """Return name and features of the processor that code is compiled for: this one, or that of numba's settings."""
    name, features = _config.CPU_NAME, _config.CPU_FEATURES
    return (
        llvmlite.binding.get_host_cpu_name() if name is None else name,
        llvmlite.binding.get_host_cpu_features().flatten() if features is None else features,
    )


def _is_safe_to_read(folder: Path, *owners: int) -> bool:
    return all(is_trusted_folder(path, *owners) for path in (folder.parent, folder))


def is_cached(function: Callable[..., Any], folder: Path | None) -> bool:
    """Return whether a cache folder has machine code of a function.

    :param folder: the function's :func:`cache_folder`.
    """
    # How numba names the files. It writes the index first, and reads the data only then.
    pattern = f"*.{function.__qualname__}-{function.__code__.co_firstlineno}.*.nb"
    return folder is not None and all(any(folder.glob(f"{pattern}{letter}")) for letter in "ic")


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


class FolderLocator(UserProvidedCacheLocator):
    """Keeps machine code right in the cache folder, wherever the source files are.

    numba's own locators use a folder for each path of the sources, and would find nothing in an archive that is
    unpacked elsewhere. They also refuse a folder that is not writable.
    """

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]  # numba has no type information
        self._cache_path = _config.CACHE_DIR

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> FolderLocator:
        """Return the locator of a function."""
        return cls(py_func, py_file)


@contextlib.contextmanager
def _numba_cache(folder: Path | None) -> Iterator[None]:
    """Set numba's cache folder while a function is decorated, which is when numba reads it."""
    before = _config.CACHE_DIR, _config.CACHE_LOCATOR_CLASSES
    _config.CACHE_DIR = str(folder or "")
    _config.CACHE_LOCATOR_CLASSES = f"{__name__}.{FolderLocator.__name__}"
    try:
        yield
    finally:
        _config.CACHE_DIR, _config.CACHE_LOCATOR_CLASSES = before
