"""The tools with which people alter large tables online: gh-ost, and pt-online-schema-change of the Percona toolkit.

gh-ost is built once, with Go, into the cache; the toolkit comes from the system's own packages and is not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.packages import Packages, ServerUnavailable, cache_folder, locked, unpacked_packages
from tests.support.servers import MySQLServer

GH_OST = "v1.1.8"
_MODULE = f"module tools\n\ngo 1.23\n\nrequire github.com/github/gh-ost {GH_OST}\n"
_TOOLKIT = Packages(
    "percona-toolkit",
    "the Percona toolkit",
    20,
    ("percona-toolkit", "gdb-minimal"),
    False,
    "lib(?!dbi-perl|dbd-mysql|mariadb|term).*|perl.*|gdb.*|debconf|dpkg|tar|util-linux.*|fdisk|gcc.*|mysql-common|zlib.*",
    "Another way: put pt-online-schema-change into PATH.",
)


def gh_ost() -> Path:
    """The program, built first where it is neither in PATH nor in the cache.

    :raise ServerUnavailable: where it cannot be built.
    """
    if found := shutil.which("gh-ost"):
        return Path(found)
    program = cache_folder() / f"gh-ost-{GH_OST}" / "gh-ost"
    with locked("gh-ost"):
        if not program.exists():
            if shutil.which("go") is None:
                raise ServerUnavailable("gh-ost is built with Go: install that, or put a gh-ost into PATH")
            print("Building gh-ost (once, about four minutes) ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                # A module of its own, since the one of gh-ost names a folder that is not part of it.
                Path(folder, "go.mod").write_text(_MODULE)
                command = ["go", "build", "-mod=mod", "-o", str(program), "github.com/github/gh-ost/go/cmd/gh-ost"]
                run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if run.returncode:
                raise ServerUnavailable(f"gh-ost could not be built:\n{run.stderr[-2000:]}")
    return program


def alter_by_gh_ost(server: MySQLServer, table: str, change: str, *options: str) -> None:
    """Alter a table of database ``d`` as people do on a server without replicas."""
    with tempfile.TemporaryDirectory() as folder:
        _run(
            gh_ost(),
            *(
                f"--host={server.host}",
                f"--port={server.port}",
                f"--user={server.user}",
                f"--password={server.password}",
            ),
            *(
                "--database=d",
                f"--table={table}",
                f"--alter={change}",
                "--allow-on-master",
                "--execute",
                "--assume-rbr",
            ),
            *("--ok-to-drop-table", "--skip-port-validation", "--heartbeat-interval-millis=100", "--chunk-size=100"),
            *("--initially-drop-ghost-table", "--initially-drop-old-table", "--initially-drop-socket-file"),
            *(f"--serve-socket-file={folder}/socket", "--default-retries=600", *options),
        )


def alter_by_pt_osc(server: MySQLServer, table: str, change: str, *options: str) -> None:
    """The same by ``pt-online-schema-change``."""
    environment = dict(os.environ)
    program = shutil.which("pt-online-schema-change")
    if program is None:
        root = unpacked_packages(_TOOLKIT)
        program = str(root / "usr/bin/pt-online-schema-change")
        libraries = [str(folder) for folder in root.glob("usr/lib/*-linux-gnu*")]
        perl = [str(folder) for folder in (*root.glob("usr/lib/*/perl5/*"), root / "usr/share/perl5")]
        plugins = next(map(str, root.glob("usr/lib/*/libmariadb3/plugin")), "")
        environment |= {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PERL5LIB": ":".join(perl),
            "MARIADB_PLUGIN_DIR": plugins,
        }
    _run(
        "perl",
        program,
        *(
            "--execute",
            "--no-version-check",
            "--recursion-method=none",
            "--chunk-size=100",
            "--alter",
            change,
            *options,
        ),
        f"h={server.host},P={server.port},u={server.user},p={server.password},D=d,t={table}",
        env=environment,
    )


#: By name: (server, table, what follows ALTER TABLE, further options).
TOOLS: dict[str, Callable[..., None]] = {"gh-ost": alter_by_gh_ost, "pt-online-schema-change": alter_by_pt_osc}


def _run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    run = subprocess.run([*command], capture_output=True, text=True, timeout=300, env=env)
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
