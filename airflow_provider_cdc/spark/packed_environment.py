"""The running Python environment, with the machine code of this package, as an archive that runs where it is unpacked.

A virtual environment finds its packages by the file ``pyvenv.cfg`` above its interpreter, wherever that is, and its
base Python by the path in that file. Scripts name their interpreter by its path, so their first line is replaced.
Bytecode is marked as valid whatever the times of the files are, because not everything that unpacks an archive keeps
them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import marshal
import os
import re
import sys
import sysconfig
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path, PurePosixPath
from typing import IO

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.system.cache_folders import PACKED_MACHINE_CODE

_PACKAGE = Path(__file__).resolve().parents[1]
#: What drivers need of the prefix. Anything else there may be private, such as a ``pip.conf`` with a token.
_ROOTS = ("bin", "lib", "lib64", "share")
#: Lines of ``pyvenv.cfg`` that Python needs; others name the folder in which the environment was made.
_SETTINGS = re.compile(r"^(?:home|version|version_info|include-system-site-packages) *=.*\n", re.MULTILINE)
#: The first lines of a script that name its interpreter; the second form is that of long paths.
_SHEBANG = re.compile(rb"#!(/\S+)[^\n]*\n|#!/bin/sh\n'''exec' \"?(/[^\"\n]+?)\"? \"\$0\" \"\$@\"\n' '''\n")
_RELOCATABLE_SHEBANG = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/python "$0" "$@"
' '''
"""
#: The time of all files, in seconds: that of the files in a reproducible wheel.
_TIME = 315_532_800
#: Bytecode that belongs to the source with the hash after this, and is used without a look at the source.
_UNCHECKED = (1).to_bytes(4, "little")
#: Most of the content is compressed already, or compresses well at any level.
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True)
class Member:
    """A member of the archive: a folder, unless it has a file, a content or a link.

    :param name: path in the archive.
    :param file: file with its content, if it is copied.
    :param content: its content otherwise.
    :param link: target of a symbolic link.
    :param bytecode_of: source whose bytecode it is.
    :param is_derived: whether its content follows from that of other members, and may differ from time to time.
    """

    name: str
    file: Path | None = None
    content: bytes | None = None
    link: str = ""
    bytecode_of: Path | None = None
    is_derived: bool = False

    @property
    def is_executable(self) -> bool:
        """Whether it may be executed."""
        return self.name.startswith("bin/") or (self.file is not None and bool(self.file.stat().st_mode & 0o100))


def base_python() -> Path:
    """Return the interpreter that the environment was made with, and that its nodes need."""
    return Path(os.path.realpath(sys.executable))


def list_environment() -> list[Member]:
    """Return the files and links of the environment that belong into the archive.

    :raises NotReadyError: if the environment would not run elsewhere.
    """
    prefix, site = Path(sys.prefix).resolve(), Path(sysconfig.get_path("purelib")).resolve()
    _require_virtual_environment(prefix)
    left_out = {*_development_links(prefix, site), prefix / PACKED_MACHINE_CODE, *prefix.glob("bin/[Aa]ctivate*")}
    found = [Member("pyvenv.cfg", content="".join(_SETTINGS.findall((prefix / "pyvenv.cfg").read_text())).encode())]
    for root in _ROOTS:
        found += _walk(prefix / root, root, prefix, left_out)
    if not _PACKAGE.is_relative_to(prefix):
        found += _walk(_PACKAGE, f"{site.relative_to(prefix).as_posix()}/{_PACKAGE.name}", prefix, set())
    return found


def with_machine_code(environment: Iterable[Member], machine_code: Iterable[Path]) -> list[Member]:
    """Return all members of the archive, in their order.

    :param environment: files and links of the environment.
    :param machine_code: folders with the machine code of this package.
    """
    found = [*environment]
    for folder in machine_code:
        for path in folder.glob("*.nb[ic]"):
            found.append(Member(f"{PACKED_MACHINE_CODE}/{folder.name}/{path.name}", path, is_derived=True))
    folders = {str(parent) for member in found for parent in PurePosixPath(member.name).parents} - {"."}
    return sorted([*found, *map(Member, folders)], key=lambda member: member.name)


def digest_of(members: Iterable[Member]) -> str:
    """Return a digest of everything that the members contain, except what is derived from the rest."""
    digest = hashlib.sha256()
    for member in members:
        digest.update(repr((member.name, member.link, member.is_executable)).encode())
        if not member.is_derived:
            with member.file.open("rb") if member.file else io.BytesIO(member.content or b"") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def write_archive(members: Iterable[Member], file: IO[bytes]) -> None:
    """Write the archive. The same content makes the same archive, whenever it is written and by whomever."""
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION_LEVEL, fileobj=file, mtime=0) as compressed,
        tarfile.open(mode="w|", fileobj=compressed, format=tarfile.GNU_FORMAT) as archive,
    ):
        for member in members:
            entry = tarfile.TarInfo(member.name)
            entry.mtime, entry.mode = _TIME, 0o755 if member.is_executable else 0o644
            content = _bytecode(member.bytecode_of, member.name) if member.bytecode_of else member.content
            if member.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, member.link
                archive.addfile(entry)
            elif member.file:
                with member.file.open("rb") as source:
                    entry.size = os.fstat(source.fileno()).st_size
                    archive.addfile(entry, source)
            elif content is not None:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            elif not member.bytecode_of:  # a folder, not a source that is no Python of this version
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)


def _require_virtual_environment(prefix: Path) -> None:
    if (prefix / "conda-meta").is_dir():
        raise NotReadyError(
            f"{prefix} is a conda environment",
            f"Run NUMBA_CACHE_DIR={prefix}/share airflow-cdc warm-up, then pack it with conda-pack",
        )
    if sys.prefix == sys.base_prefix:
        remedy = "Make one (python -m venv FOLDER), install this package there, and run FOLDER/bin/airflow-cdc pack"
        raise NotReadyError(f"{sys.executable} is in no virtual environment", remedy)
    if re.search(r"^include-system-site-packages *= *true", (prefix / "pyvenv.cfg").read_text(), re.M | re.I):
        remedy = "Make one without --system-site-packages, and install this package there"
        raise NotReadyError(f"{prefix} also uses packages outside of it", remedy)


def _development_links(prefix: Path, site: Path) -> Iterator[Path]:
    """Yield the files by which an editable installation of this package is found: its files are copied instead.

    :raises NotReadyError: if there is an editable installation of another package.
    """
    others = set[str]()
    for path in site.glob("*.pth"):
        for line in path.read_text().splitlines():
            folder = (site / line.strip()).resolve()
            if not line.startswith(("#", "import ", "import\t")) and folder.is_dir() and folder != site:
                if (folder / _PACKAGE.name / "__init__.py").exists():
                    yield path
                elif not folder.is_relative_to(prefix):
                    others.add(path.name)
    for package in distributions(path=[str(site)]):
        how = json.loads(package.read_text("direct_url.json") or "{}")
        if how.get("dir_info", {}).get("editable") and package.name != "airflow-provider-cdc":
            others.add(package.name)
    if others:
        raise NotReadyError(
            f"packages are installed as links to folders outside of {prefix}: {', '.join(sorted(others))}",
            "Install them without --editable",
        )
    if not _PACKAGE.is_relative_to(prefix):
        yield site / _PACKAGE.name
        yield from site.glob(f"{_PACKAGE.name}-*.dist-info/direct_url.json")


def _walk(path: Path, name: str, prefix: Path, left_out: set[Path]) -> Iterator[Member]:
    """Yield the files of a folder, and bytecode of sources. Only links to other files of the prefix stay links."""
    if path in left_out or path.name == "__pycache__":
        return
    if path.is_symlink():
        target = Path(os.path.normpath(path.parent / os.readlink(path)))
        if target.is_relative_to(prefix) and target.exists():
            yield Member(name, link=os.path.relpath(target, path.parent))
            return
        if name.startswith("bin/") and path.resolve() == base_python():
            yield Member(name, link=str(base_python()))
            return
    if path.is_dir():
        for entry in os.listdir(path):
            yield from _walk(path / entry, f"{name}/{entry}", prefix, left_out)
    elif path.is_file():
        yield Member(name, content=script) if (script := _script(path, name, prefix)) else Member(name, path)
        if name.startswith("lib/") and name.endswith(".py"):
            folder, _, module = name.rpartition("/")
            bytecode = f"{folder}/__pycache__/{Path(cache_from_source(module)).name}"
            yield Member(bytecode, bytecode_of=path, is_derived=True)


def _script(path: Path, name: str, prefix: Path) -> bytes | None:
    """Return a script of the environment's interpreter in a form that runs wherever it is; ``None`` for other files."""
    if not name.startswith("bin/") or (shebang := _SHEBANG.match(data := path.read_bytes())) is None:
        return None
    interpreter = Path(os.fsdecode(shebang[1] or shebang[2]))
    if not (interpreter.name.startswith("python") and interpreter.parent.resolve() == prefix / "bin"):
        return None
    return _RELOCATABLE_SHEBANG + data[shebang.end() :]


def _bytecode(source: Path, name: str) -> bytes | None:
    """Return the bytecode of a source, compiled now unless there is some; ``None`` if it does not compile.

    :param name: name in the archive.
    """
    data, status = source.read_bytes(), source.stat()
    head = MAGIC_NUMBER + _UNCHECKED + source_hash(data)
    times = b"".join(number.to_bytes(4, "little") for number in (0, int(status.st_mtime) & 0xFFFFFFFF, len(data)))
    with suppress(OSError):
        existing = Path(cache_from_source(str(source))).read_bytes()
        if existing.startswith((head, MAGIC_NUMBER + times)):
            return head + existing[16:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(data, name, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):
        return None
    return head + marshal.dumps(code)
