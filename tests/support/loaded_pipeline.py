"""A pipeline whose source is written to and altered by chance meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

import pymysql
import pytest

from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge import key_index
from tests.support.altering import Seen, quoted, seen
from tests.support.chance import Threads
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


class LoadedPipeline:
    """A pipeline under a load, and what happens to it. What it is, and how it is checked, is up to a subclass.

    :param seed: of all that happens by chance.
    """

    cli: Cli
    load: Threads

    def __init__(self, server: MySQLServer, folder: Path, seed: int) -> None:
        self.server, self.folder, self.chance = server, folder, random.Random(seed)
        self.done: Counter[str] = Counter()

    @contextmanager
    def with_tables(
        self,
        patch: pytest.MonkeyPatch,
        tables: Mapping[str, str],
        rows: int,
        change: Callable[[random.Random, str, Sequence[Seen]], str],
    ) -> Iterator[Self]:
        """Its database is there, with tables that some changes have filled; few files of a table are compacted."""
        patch.setattr(compaction, "FANOUT", 3)
        patch.setattr(compaction, "MIN_FANOUT", 2)
        patch.setattr(key_index, "_SEGMENTS_TO_MERGE", 2)
        with self.server.fresh_database(self.load.database, "CHARACTER SET utf8mb4") as database:
            with closing(self.server.connect(database=database)) as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_mode = ''")
                for name, definition in tables.items():
                    cursor.execute(f"CREATE TABLE {quoted(name)} {definition}")
                    for _ in range(rows):
                        with suppress(pymysql.MySQLError):
                            cursor.execute(change(self.chance, name, seen(cursor, database, name)))
            yield self
            self.server.execute("SET GLOBAL binlog_row_metadata = FULL")

    def metadata(self) -> None:
        """From now on the binlog says more or less of the columns."""
        with self.load.still():
            self.server.execute(f"SET GLOBAL binlog_row_metadata = {self.chance.choice(['MINIMAL', 'FULL'])}")
            self.server.execute("FLUSH BINARY LOGS")

    def verified(self) -> None:
        """It is checked while nobody writes."""
        with self.load.still():
            self.check()

    def check(self) -> None:
        """The copies are what the source has."""
        raise NotImplementedError
