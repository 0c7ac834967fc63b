"""Real MariaDB servers for the tests, with the face of :class:`~tests.support.servers.MySQLServer`.

Where a server comes from, the first that is usable: ``CDC_TEST_MARIADB_URL``; Docker; an installed ``mariadbd``, run
with a data folder and a port of its own; the system's own packages, unpacked into the cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.support.packages import (
    MARIADB_IMAGE,
    MARIADB_NEWEST,
    ServerUnavailable,
    cache_folder,
    find_mariadb,
    locked,
    unpacked_packages,
)
from tests.support.servers import MySQLServer

#: What a new data folder is made with, in this order: ``mysql_`` became ``mariadb_`` in version 11.
_SCRIPTS = (
    "m*_system_tables.sql",
    "m*_performance_tables.sql",
    "m*_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "m*_sys_schema.sql",
)


class MariaDBServer(MySQLServer):
    """A MariaDB server of one's own; parameters as :class:`~tests.support.servers.MySQLServer`."""

    title = "MariaDB"
    url_variable = "CDC_TEST_MARIADB_URL"
    image = MARIADB_IMAGE
    defaults: ClassVar[dict[str, str]] = {
        "server_id": "1",
        "log_bin": "binlog",
        "binlog_format": "ROW",
        "binlog_row_metadata": "FULL",
        "character_set_server": "utf8mb4",
        "sync_binlog": "1",
        "innodb_flush_log_at_trx_commit": "1",
        "innodb_buffer_pool_size": "256M",
        "max_connections": "200",
        "skip_name_resolve": "ON",
    }

    @staticmethod
    def find() -> str | Path | None:
        """See the module's text."""
        return find_mariadb()

    def make_data(self, root: Path, data: Path) -> None:
        """Make the data folder of a new server."""
        shutil.copytree(_template(root), data, symlinks=True)

    def command(self, root: Path, data: Path) -> list[str]:
        """The command that starts the server, without its variables."""
        return _mariadbd(root, data)

    def create_cdc_user(
        self,
        name: str = "cdc",
        password: str | None = None,
        databases: Sequence[str] | str = "*",
        xa: bool = True,
    ) -> dict[str, str]:
        """Create a user with exactly the grants that the project asks for; MariaDB shows XA to everybody."""
        return super().create_cdc_user(name, password, databases, xa=False)


class NewestMariaDBServer(MariaDBServer):
    """The newest packaged MariaDB, whatever the other tests run with."""

    title = "newest MariaDB"

    @staticmethod
    def find() -> str | Path | None:
        """Only the packages will do."""
        return unpacked_packages(MARIADB_NEWEST) / "usr"


def _mariadbd(root: Path, data: Path) -> list[str]:
    """The command of a server whose files lie below ``root``: installed, or unpacked with libraries of its own."""
    command: list[str | Path] = [root / "sbin/mariadbd"]
    if cache_folder() in root.parents:
        libraries = next(root.glob("lib/*-linux-gnu*"))
        loader = next(iter(libraries.glob("ld-linux-*")), None) or next(Path("/").glob("lib*/ld-linux-*"))
        command = [loader, "--library-path", libraries, *command]
    command += ["--no-defaults", f"--basedir={root}", f"--datadir={data}", f"--lc-messages-dir={_share(root)}"]
    command += [f"--plugin-dir={root}/lib/mysql/plugin", "--innodb-use-native-aio=OFF"]
    return [*map(str, command), *(["--user=root"] if os.geteuid() == 0 else [])]


def _share(root: Path) -> Path:
    return next(folder for folder in (root / "share/mariadb", root / "share/mysql") if any(folder.glob(_SCRIPTS[0])))


def _template(root: Path) -> Path:
    """An initialised data folder to copy from, made once for each server (3 s)."""
    version = subprocess.run([*_mariadbd(root, root)[:-3], "--version"], capture_output=True, text=True).stdout
    name = "".join(c if c.isalnum() else "-" for c in version.partition("Ver ")[2].partition(" ")[0])
    template = cache_folder() / f"mariadb-data-{name}"
    with locked("mariadb-data"):
        if not template.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="init-") as work:
                data = Path(work) / "data"
                data.mkdir(mode=0o700)
                scripts = "".join(next(_share(root).glob(script)).read_text() for script in _SCRIPTS)
                accounts = "DELETE FROM mysql.global_priv WHERE user <> 'mariadb.sys';"  # none without a password
                command = [*_mariadbd(root, data), "--bootstrap", "--innodb-log-file-size=16M"]
                run = subprocess.run(
                    command,
                    input=f"CREATE DATABASE mysql;\nUSE mysql;\n{scripts}\n{accounts}\n",
                    capture_output=True,
                    text=True,
                    errors="replace",
                )
                if run.returncode:
                    raise ServerUnavailable(f"The data folder could not be made:\n{run.stderr[-2000:]}")
                data.rename(template)
    return template
