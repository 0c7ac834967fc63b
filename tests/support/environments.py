"""Virtual environments with some of the packages of the tests' own, as links to them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed_packages(*requirements: str, leave_out: str = "apache-airflow") -> set[str]:
    """Return the names of packages and of all that they need, except those that begin with a word."""
    found, left = set[str](), [*requirements]
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if name.startswith(leave_out) or (name in found and not requirement.extras):
            continue
        found.add(name)
        for extra in ("", *requirement.extras):
            for text in distribution(name).requires or ():
                marker = Requirement(text).marker
                if marker is None or marker.evaluate({"extra": extra}):
                    left.append(text.partition(";")[0])
    return found


def make_environment(folder: Path, packages: set[str]) -> Path:
    """Make an environment with links to the files of packages, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    link_packages(Path(*folder.glob("lib/python*/site-packages")), packages)
    return folder / "bin" / "python"


def link_packages(folder: Path, packages: set[str]) -> None:
    """Make links to the files of packages in a folder."""
    own = Path(sysconfig.get_path("purelib"))
    for name in {top for package in packages for top in _top_names(package)}:
        os.symlink(own / name, folder / name)


def _top_names(package: str) -> Iterator[str]:
    for path in distribution(package).files or ():
        if path.parts[0] not in ("..", "__pycache__"):
            yield path.parts[0]
