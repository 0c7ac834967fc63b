"""The connection to the state database: opening, migrations, transactions, errors."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from sqlalchemy import URL, Connection, CursorResult, Engine, Select, exc, func, inspect, make_url, select, text
from sqlalchemy.orm import Session

from airflow_provider_cdc.config.connections import scrub_secrets
from airflow_provider_cdc.model.errors import NoRoomError, NotReadyError, TransientError, mysql_error_text
from airflow_provider_cdc.state.engine import make_engine
from airflow_provider_cdc.system.permissions import FILE_MODE, remove_others_access

#: Not Alembic's default name: other users of Alembic, such as Airflow, may share the database.
VERSION_TABLE = "cdc_alembic_version"

#: The newest migration. Defined here so that Alembic is only imported if there is something to migrate.
NEWEST_REVISION = "0004"
#: The server is unavailable or read-only: PostgreSQL reports the latter as an internal error.
_OUTAGES = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
#: How long to wait for another migration in MySQL, which copies tables.
_MIGRATION_SECONDS = 3600
#: A disk with less room is full: SQLite extends its files by several pages.
_MIN_FREE_BYTES = 1 << 16
_ADVISORY_LOCK = 0x63646331  # any number of our own
#: libpq messages for a server that fails the required checks: a retry does not help.
_IDENTITY_ERRORS = re.compile(
    "certificate verify failed|server certificate for|root certificate file|does not support SSL|"
    "[Aa]uthentication method requirement|channel binding"
)

T = TypeVar("T")


class NoStateDatabaseError(NotReadyError):
    """There is no state database yet: nothing has run."""


class Database:
    """A connection pool. One object per process is enough: threads may share it.

    :param engine: made by :meth:`open`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._write_engine = engine.execution_options(cdc_write=True)

    @classmethod
    def open(cls, url: str | URL, *, migrate: bool, create: bool = True) -> Self:
        """Connect.

        :param url: SQLAlchemy URL; the path of a SQLite file must be absolute.
        :param migrate: create the tables and bring them up to date. Otherwise nothing is created, not even a file.
        :param create: whether ``migrate`` may create tables; ``False`` to only bring existing ones up to date.
        :raises NotReadyError: if the database is not usable, or is not set up and ``migrate`` is off.
        :raises TransientError: if the database cannot be reached; a :class:`NoRoomError` if its disk is full.
        """
        url = make_url(url)
        if url.get_backend_name() == "sqlite":
            _prepare_file(Path(url.database or ""), migrate and create)
        engine = make_engine(url)
        database = cls(engine)
        try:
            database._check_or_migrate(migrate, create)
        except exc.DBAPIError as error:
            database.close()
            if no_room_error := _no_room_error(engine, error):
                raise no_room_error from None
            if engine.dialect.name == "sqlite" and "locked" not in str(error.orig):
                message = f"state database file {url.database} is not usable: {error.orig}"
                raise NotReadyError(message, "Use a writable file. If you remove the file, it is re-created") from None
            if not isinstance(error, _OUTAGES):
                raise
            if identity_error := next(filter(_IDENTITY_ERRORS.search, str(error.orig).splitlines()), ""):
                raise NotReadyError(
                    f"state database {database.label}: {identity_error.strip()}",
                    "The server must prove its identity: use TLS, and set sslrootcert to the authority that signed its "
                    "certificate. sslmode=require disables the check; if the network to it is safe, use "
                    "sslmode=disable",
                ) from None
            raise database._unreachable_error(error) from None
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @property
    def label(self) -> str:
        """Human-readable URL of the database, without the password."""
        # Without the query part either: it may contain the password of a key.
        return self._engine.url.set(query={}).render_as_string(hide_password=True)

    def _check_or_migrate(self, migrate: bool, create: bool) -> None:
        """Compare the schema revision with that of this package, and migrate if requested."""
        with self._engine.connect() as connection:
            revision = _schema_revision(connection)
        if revision == NEWEST_REVISION:
            return
        from airflow_provider_cdc.state.migrate import list_revisions, upgrade_schema

        if revision is not None and revision not in list_revisions():
            message = f"state database {self.label} was made by a newer version ({revision})"
            raise NotReadyError(message, "Upgrade airflow-provider-cdc")
        if not migrate or (revision is None and not create):
            problem = "is not set up" if revision is None else f"is of an older version ({revision})"
            message = f"state database {self.label} {problem}"
            remedy = "Run `airflow-cdc snapshot`, `airflow-cdc run` or `airflow-cdc status` first"
            raise (NoStateDatabaseError if revision is None else NotReadyError)(message, remedy)
        with _migration_transaction(self._engine.url) as connection:
            # One migration at a time: the second finds nothing left to do. SQLite has its write lock already.
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            elif connection.dialect.name in ("mysql", "mariadb"):
                connection.detach()  # closed afterwards, which releases the lock
                connection.execute(select(func.get_lock(VERSION_TABLE, _MIGRATION_SECONDS)))
            upgrade_schema(connection)

    def _unreachable_error(self, error: Exception) -> TransientError:
        origin = getattr(error, "orig", None) or error
        is_mysql = self._engine.dialect.name in ("mysql", "mariadb")
        lines = (mysql_error_text(origin) if is_mysql else str(origin)).strip().splitlines()
        cause = scrub_secrets(lines[0] if lines else type(error).__name__, [str(self._engine.url.password or "")])
        remedy = "Try again when it is reachable and writable"
        return TransientError(f"state database {self.label}: {cause}", remedy)

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except _OUTAGES as error:
            # The error's own text would show statements.
            raise _no_room_error(self._engine, error) or self._unreachable_error(error) from None

    def _read_session(self) -> AbstractContextManager[Session]:
        return self._session(self._engine)

    def _write_session(self) -> AbstractContextManager[Session]:
        return self._session(self._write_engine)

    # Transactions with a single statement

    def _read_row(self, model: type[T], *key: Any) -> T | None:
        """Return the row with a primary key."""
        with self._read_session() as session:
            return session.get(model, key)

    def _read_first(self, query: Select[T]) -> T | None:
        with self._read_session() as session:
            return session.scalars(query.limit(1)).first()

    def _read_rows(self, query: Select[T]) -> list[T]:
        with self._read_session() as session:
            return list(session.scalars(query))

    def _update(self, statement: Any) -> bool:
        """Run an update or a delete, and return whether it affected a row."""
        with self._write_session() as session:
            return execute_update(session, statement)


@contextmanager
def _migration_transaction(url: URL) -> Iterator[Connection]:
    """Yield a connection in a transaction without statement timeouts."""
    engine = make_engine(url, for_migration=True)
    try:
        with engine.execution_options(cdc_write=True).begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _schema_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return cast("str | None", connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar())


def _no_room_error(engine: Engine, error: Exception) -> NoRoomError | None:
    """Return an error for a SQLite file on a full disk; ``None`` if something else is wrong."""
    name = str(getattr(getattr(error, "orig", None), "sqlite_errorname", ""))
    file = Path(engine.url.database or "")
    # SQLite reports that it cannot extend its shared memory as an I/O error.
    if name != "SQLITE_FULL" and not (name.startswith("SQLITE_IOERR") and _is_full(file.parent)):
        return None
    return NoRoomError(
        f"state database file {file} could not be written: the disk is full",
        f"Make room on the disk of {file.parent}, then run again: no data is lost",
    )


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    except OSError:
        return False


def _prepare_file(path: Path, migrate: bool) -> None:
    if not path.is_absolute():
        raise NotReadyError(
            f"state database file {str(path)!r} is not an absolute path", "Use the absolute path of the file"
        )
    if migrate:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot create the folder of the state database file {path}: {error.strerror}"
            raise NotReadyError(message, "Use a file in a writable folder") from None
        with suppress(OSError):  # it exists; or SQLite reports the problem better
            # A file that exists must not be opened: by closing it, this process would lose the locks of its other
            # connections, and the next process to leave the database would delete the log that they read and write.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
        for companion in ("", "-wal", "-shm"):  # SQLite creates them with the permissions of the file
            remove_others_access(path.with_name(path.name + companion))
    elif not path.exists():
        message = f"there is no state database file {path}"
        raise NoStateDatabaseError(message, "Run `airflow-cdc snapshot` or `airflow-cdc run` first")


def execute_update(session: Session, statement: Any) -> bool:
    """Run an update or a delete, and return whether it affected a row."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount > 0


def retry_conflict(write: Callable[[], T]) -> T:
    """Run a transaction; again if another process was faster to insert the same row."""
    try:
        return write()
    except exc.IntegrityError:
        return write()
