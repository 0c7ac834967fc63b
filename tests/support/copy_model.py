"""What the copy of a table must be, whatever was read again, suspended, removed and killed: a model of a few lines.

Each row has a column ``version``. A test raises it in all rows at once without a word in the binlog, so that only a
reading brings the new value into the copy. From then on a row's version says how old the reading is that it came from:

- a reading that is done raises the floor of its keys to the version that stood when somebody asked for it, and no row
  of the copy may ever be below the floor again;
- the copy of a table that was suspended, or removed, stays as it is, until somebody asks for the table after that;
- where deleted rows stay, no key of the copy ever goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.support.oracle import compare, open_copy
from tests.support.servers import MySQLServer

#: Column with the version, and the key.
VERSION, KEY = "version", "id"
_DELETED = "_cdc_deleted"


@dataclass
class Copy:
    """The copy of one table.

    :param place: its folder.
    :param deletes: ``hard``, ``soft`` or ``ignore``: what becomes of deleted rows.
    :param keyed: whether the table has a key. One that has none has no versions.
    """

    database: str
    name: str
    place: Path
    deletes: str = "hard"
    keyed: bool = True
    #: The version that stands in the source.
    version: int = 0
    #: Whether the pipeline captures it, and whether somebody has had it suspended; ``None``: nobody knows.
    captured: bool | None = True
    suspended: bool | None = False
    #: How often somebody has asked for it to be suspended.
    suspensions: int = 0
    #: How often it was altered, somebody wanted it out of the stream, or began to read a part of it: a whole reading
    #: that began before may be of no use, and whoever asked is told so.
    changes: int = 0
    #: Versions of readings that wait for a stream, and of which change they are.
    staged: list[tuple[int, int]] = field(default_factory=list)
    #: Versions that will stand in the whole copy when the table is part of the stream.
    expected: list[int] = field(default_factory=list)
    _floor: int = 0
    _floors: dict[int, int] = field(default_factory=dict)
    _frozen: list[str] | None = None
    _keys: set[int] = field(default_factory=set)

    @property
    def label(self) -> str:
        """``database.table``."""
        return f"{self.database}.{self.name}"

    @property
    def is_out(self) -> bool:
        """Whether it is certainly no part of the stream."""
        return self.captured is False or self.suspended is True

    @property
    def is_in(self) -> bool:
        """Whether it certainly is one when nothing is left to do."""
        return self.captured is True and self.suspended is False

    @property
    def may_differ(self) -> bool:
        """Whether rows may have another version than those of the source."""
        return self._floor < self.version

    def is_read(self, version: int, keys: Iterable[int] | None = None) -> None:
        """Hear that a reading is done which somebody has asked for at a version.

        :param keys: of the rows that were read; ``None``: of all.
        """
        if keys is None:
            self._floor = max(self._floor, version)
        else:
            self._floors |= {key: max(version, self._floors.get(key, 0)) for key in keys}

    def settles(self) -> None:
        """Hear that nothing waits any more, and the table is part of the stream: what waited is in."""
        for version in (*self.expected, *(version for version, changes in self.staged if changes == self.changes)):
            self.is_read(version)

    def leaves(self) -> None:
        """Hear that the table is certainly no part of the stream from now on."""
        if self._frozen is None:
            self._frozen = _digest(self.rows())

    def may_come_back(self) -> None:
        """Hear that somebody asks for it."""
        self._frozen = None

    def rows(self) -> pa.Table:
        """Rows as another reader than the project's own sees them."""
        copy = open_copy(self.place)
        assert copy is not None, self.place
        return copy.read(copy.columns)

    def check(self) -> None:
        """What holds at any moment: it is frozen if it is to be, and no row is older than what was done."""
        if open_copy(self.place) is None:
            return
        rows = self.rows()
        if self._frozen is not None:
            now = _digest(rows)
            gone, new = ([r for r in a if r not in b] for a, b in ((self._frozen, now), (now, self._frozen)))
            assert now == self._frozen, f"the copy of {self.label} has changed: without {gone[:5]}, with {new[:5]}"
        if self.keyed and self.deletes != "ignore":  # there, a row that is deleted looks like any other
            self._check_floors(_without(rows, _DELETED) if self.deletes == "soft" else rows)

    def check_rows(self, server: MySQLServer, folder: Path) -> None:
        """Where the stream is: of a table that is part of it, all rows are those of the source, but for versions."""
        with closing(server.connect(database=self.database)) as connection:
            if not self.keyed:
                difference = compare(connection, self.database, self.name, self.place)
                assert difference is None, difference
                return
            rows, live = self.rows(), folder / f"live-{self.name}-{len(list(folder.glob('live-*')))}"
            keys = {*rows[KEY].to_pylist()}
            assert self.deletes == "hard" or keys >= self._keys, (
                f"{self.label} has lost kept rows: {sorted(self._keys - keys)}"
            )
            self._keys = keys
            if self.deletes == "soft":
                rows = _without(rows, _DELETED)
            elif self.deletes == "ignore":
                with connection.cursor() as cursor:
                    cursor.execute(f"SELECT {KEY} FROM `{self.name}`")
                    there = {key for (key,) in cursor.fetchall()}
                rows = rows.filter(pa.array([key in there for key in rows[KEY].to_pylist()], pa.bool_()))
            write_deltalake(str(live), rows.drop_columns([n for n in rows.column_names if n.startswith("_cdc_")]))
            difference = compare(connection, self.database, self.name, live, without=[VERSION], beside=[VERSION])
            assert difference is None, difference
            self._check_floors(rows)

    def _check_floors(self, rows: pa.Table) -> None:
        older = [
            (key, version)
            for key, version in zip(rows[KEY].to_pylist(), rows[VERSION].to_pylist(), strict=True)
            if version < max(self._floor, self._floors.get(key, 0))
        ]
        assert not older, f"rows of {self.label} are older than what was done ({self._floor}, {self._floors}): {older}"


def _without(rows: pa.Table, mark: str) -> pa.Table:
    return rows.filter(pa.array([not deleted for deleted in rows[mark].to_pylist()], pa.bool_()))


def _digest(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def difference_of(copy: Copy, server: MySQLServer) -> Any:
    """How the copy differs from the source, versions included; of a table without rows that stay."""
    with closing(server.connect(database=copy.database)) as connection:
        return compare(connection, copy.database, copy.name, copy.place)
