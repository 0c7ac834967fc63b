"""Where a MySQL for the tests comes from: a URL, Docker, or the distribution's newest packages unpacked in the cache.

The packages come from the system's own mirror, checked with the system's own key, but from a newer suite. PostgreSQL,
where none is installed, is unpacked in the same way, from the system's own suite.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

IMAGE = "mysql:9"
MARIADB_IMAGE = "mariadb:11.4"
OTHER_WAYS = (
    "Other ways: start the Docker daemon, or name a server in CDC_TEST_MYSQL_URL=mysql://user:password@host:port."
)

#: The suite with the newest packages, by distribution.
NEWEST_SUITE = {"debian": "sid", "ubuntu": "devel"}


@dataclass(frozen=True)
class Packages:
    """A server that is unpacked and not installed.

    :param key: name of its folder in the cache.
    :param install: what apt is asked for.
    :param leave_out: packages that it depends on and can do without, or that must be the system's own: a pattern.
    :param newest: from the distribution's newest suite, not from the system's own.
    """

    key: str
    title: str
    megabytes: int
    install: tuple[str, ...]
    newest: bool
    leave_out: str = ""
    other_ways: str = ""


MYSQL = Packages(
    "mysql-packages", "MySQL", 80, ("mysql-server-core", "mysql-client-core", "mysql-server"), True, "", OTHER_WAYS
)
_SYSTEM = "libc6|libc-bin|perl.*|libperl.*|debconf|dpkg|tar|systemd.*|adduser|passwd|procps|psmisc|gawk|rsync|socat"
MARIADB = Packages(
    "mariadb-packages",
    "MariaDB",
    40,
    ("mariadb-server-core",),
    False,
    _SYSTEM,
    "Other ways: start the Docker daemon, install MariaDB (Debian, Ubuntu: apt-get install mariadb-server), or name a "
    "server in CDC_TEST_MARIADB_URL=mysql://user:password@host:port.",
)
# Newer than the system: with a loader and a C library of its own.
MARIADB_NEWEST = replace(MARIADB, key="mariadb-newest", newest=True, leave_out=_SYSTEM.removeprefix("libc6|libc-bin|"))
# Of the system's own suite, so that the system's loader and C library serve; the compiler of queries is not used.
POSTGRES = Packages(
    "postgres-packages",
    "PostgreSQL",
    70,
    ("postgresql",),
    False,
    "libc6|libc-bin|libllvm.*|perl.*|libperl.*|debconf|dpkg|tar",
    "Another way: install PostgreSQL (Debian, Ubuntu: apt-get install postgresql), or put its initdb into PATH.",
)
#: Nothing but its tool that checks rules is used, and that needs no library.
PROMETHEUS = Packages(
    "prometheus-packages",
    "Prometheus",
    20,
    ("prometheus",),
    False,
    "(?!prometheus$).*",
    "Another way: install Prometheus, so that promtool is in PATH.",
)


class ServerUnavailable(Exception):
    """No server can be had on this machine, or one did not start; the message says why and what to do."""


class NotOurs(ServerUnavailable, unittest.SkipTest):
    """The server was taken by URL, and the test needs one that it may configure or kill: pytest skips the test."""


def find_mysql() -> str | Path | None:
    """Find the first usable way to a server (see the module's text); downloads what is missing.

    :return: the URL of a running server, None for Docker, or the folder of the unpacked packages.
    :raise ServerUnavailable: when there is no way at all.
    """
    if url := os.environ.get("CDC_TEST_MYSQL_URL"):
        return url
    if docker_works():
        return None
    return unpacked_packages()


def find_mariadb() -> str | Path | None:
    """The same for MariaDB; an installed one comes before the packages: then the folder is ``/usr`` or its like.

    ``CDC_TEST_MARIADB=newest`` takes the newest packages whatever is installed.
    """
    if url := os.environ.get("CDC_TEST_MARIADB_URL"):
        return url
    if os.environ.get("CDC_TEST_MARIADB") == "newest":
        return unpacked_packages(MARIADB_NEWEST) / "usr"
    if docker_works(MARIADB_IMAGE):
        return None
    found = shutil.which("mariadbd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    return Path(found).resolve().parent.parent if found else unpacked_packages(MARIADB) / "usr"


def docker_works(image: str = IMAGE) -> bool:
    """Say whether the daemon answers (a client alone proves nothing) and the image is there or can be had."""
    if shutil.which("docker") is None:
        return False

    def ok(*args: str, timeout: float) -> bool:
        try:
            return subprocess.run(["docker", *args], capture_output=True, timeout=timeout).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    return ok("info", timeout=10) and (
        ok("image", "inspect", image, timeout=10) or ok("pull", "--quiet", image, timeout=600)
    )


def cache_folder() -> Path:
    """Return the private folder (mode 0700) that keeps the unpacked server between runs."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-cdc"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock between processes: two test runs must not download the same thing at once."""
    with open(cache_folder() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpacked_packages(packages: Packages = MYSQL) -> Path:
    """Return the folder with a server's files, downloading and unpacking them the first time (about 15 s).

    :raise ServerUnavailable: when this system has no apt or no usable package source.
    """
    root = cache_folder() / packages.key / "root"
    with locked(packages.key):
        if root.is_dir():
            return root
        root.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetch-") as work:
            size = f"(once, about {packages.megabytes} MB)"
            print(f"Fetching {packages.title} {size} ...", file=sys.stderr, flush=True)
            _download_and_unpack(Path(work), packages)
            (Path(work) / "root").rename(root)
    return root


def _download_and_unpack(work: Path, packages: Packages) -> None:
    """Unpack the server's packages into ``work/root`` with apt's own resolver and signatures, all state in `work`."""
    for folder in ("lists/partial", "cache/archives/partial", "root"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(package_source(packages))
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Default-Release": "",
        "APT::Install-Recommends": "0",
        "APT::Sandbox::User": "root",  # the private folder is closed to apt's own user
        "Debug::NoLocking": "1",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q"] + [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    try:
        for command in (["update"], ["install", "-y", "--download-only", *packages.install]):
            subprocess.run(
                [*apt, *command], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
            )
        for package in sorted((work / "cache/archives").glob("*.deb")):
            if not re.fullmatch(packages.leave_out, package.name.split("_")[0]):
                subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        tail = "\n".join((error.stdout + error.stderr).splitlines()[-8:])
        message = f"The {packages.title} packages could not be fetched:\n{tail}\n{packages.other_ways}"
        raise ServerUnavailable(message) from None


def newest_suite_source(etc: Path = Path("/etc")) -> str:
    """Return the one line of a sources list that names the newest suite on the system's own mirror.

    :param etc: where ``os-release`` and ``apt`` lie.
    :raise ServerUnavailable: on another system, or where no source of the distribution itself is configured.
    """
    return package_source(MYSQL, etc)


def package_source(packages: Packages, etc: Path = Path("/etc")) -> str:
    """Return the line for these packages: of the newest suite, or of the system's own; else as above."""
    release = etc / "os-release"
    pairs = re.findall(r'^(\w+)="?([^"\n]*)"?$', release.read_text() if release.exists() else "", re.M)
    system = dict(pairs)
    name, codename = system.get("ID", ""), system.get("VERSION_CODENAME", "sid")
    none, other_ways = f"No {packages.title} server", packages.other_ways
    if name not in NEWEST_SUITE:
        raise ServerUnavailable(f"{none}: this system ({name or 'unknown'}) is not Debian or Ubuntu.\n{other_ways}")
    for uri, suites, components, key in _sources(etc / "apt"):
        of_distribution = f"{name}-archive-keyring" in key or uri.rstrip("/").rsplit("/", 1)[-1] == name
        if of_distribution and "main" in components and codename in suites:
            key = key or f"/usr/share/keyrings/{name}-archive-keyring.gpg"
            options = f"[signed-by={key}] " if Path(key).exists() else ""
            return f"deb {options}{uri} {NEWEST_SUITE[name] if packages.newest else codename} main\n"
    raise ServerUnavailable(f"{none}: no package source of {name} {codename} in {etc}/apt.\n{other_ways}")


def _sources(apt: Path) -> list[tuple[str, list[str], list[str], str]]:
    """Read all configured sources: (address, suites, components, key file or "")."""
    found = []
    lists = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]
    for line in "\n".join(path.read_text() for path in lists if path.exists()).splitlines():
        if match := re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s+([^#]*)", line):
            options, uri, suite, components = match.groups()
            key = re.search(r"signed-by=(\S+)", options or "")
            found.append((uri, [suite], components.split(), key[1] if key else ""))
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
        for stanza in re.split(r"\n\s*\n", text):
            fields = {k.lower(): v.strip() for k, v in re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, re.M)}
            if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
                continue
            key = fields.get("signed-by", "").split("\n")[0]
            for uri in fields.get("uris", "").split():
                found.append((uri, fields.get("suites", "").split(), fields.get("components", "").split(), key))
    return found
