"""How a pipeline writes its tables: different settings for the tables of one pipeline, drawn by a schedule."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.support.hot import HOT
from tests.support.oracle import Place, below, described

#: By what tables may be partitioned: few values, NULL among them, and some that are written otherwise in a path.
_PARTITIONS: Mapping[str, Sequence[Sequence[str | Mapping[str, str]]]] = {
    "customer": (["c_salutation"], ["c_preferred_cust_flag"]),
    "customer_address": (["ca_city"],),
    "orders": (["status"],),
    "ledger": (["writer"],),
    "words": (["enum_"],),
    "trio": (["enum_"],),
    "nothing": (["enum_"],),
    "heap": (["a"],),
    **dict.fromkeys(HOT, (["part", {"month": "at"}], [{"day": "at"}], ["k"], ["n", "part"])),
}
_SHOP = ("customer", "customer_address", "orders", "ledger")
#: Tables of each set. The last one has no key.
TABLES = {"shop": (*_SHOP, *HOT, "heap"), "foreign": ("big", "words", "trio", "nothing", "one", *HOT, "heap")}
#: Tables that something else may have made: their types are known here.
_ADOPTED = ("customer", "ledger", *HOT, "heap")
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "datetime": pa.timestamp("us")}
_TYPES |= dict.fromkeys(("char", "varchar"), pa.string())


@dataclass(frozen=True)
class Settings:
    """Of one pipeline.

    :param soft: tables whose deleted rows are marked; ``kept`` those in which they stay as they are.
    :param copies: tables that are merged by copies.
    :param partitions: what tables are partitioned by.
    :param adopted: tables that are there before the pipeline.
    :param template: where a table is; in lower case, if it is not the default.
    :param ruled: tables of which a part of the rows and values is copied.
    """

    soft: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    partitions: Mapping[str, Sequence[str | Mapping[str, str]]] = field(default_factory=dict)
    adopted: tuple[str, ...] = ()
    template: str = "{database}/{table}"
    ruled: tuple[str, ...] = ()

    @classmethod
    def drawn(cls, draw: random.Random, tables: str) -> Settings:
        """By chance. Of the tables with few keys one is soft, one keeps what is deleted, and one is as the source."""
        names = TABLES[tables]
        hot = dict(zip(draw.sample(HOT, len(HOT)), ("soft", "kept", "hard"), strict=True))
        how = {name: hot.get(name) or draw.choice(("hard", "soft", "kept")) for name in names[:-1]}
        chosen = {name: draw.choice(_PARTITIONS[name]) for name in names if name in _PARTITIONS}
        adopts = draw.random() < 0.5
        settings = cls(
            soft=tuple(name for name in how if how[name] == "soft"),
            kept=tuple(name for name in how if how[name] == "kept"),
            copies=tuple(name for name in names if draw.random() < 0.4),
            partitions={name: by for name, by in chosen.items() if draw.random() < (0.7 if name in HOT else 0.4)},
            adopted=tuple(name for name in names if adopts and name in _ADOPTED and draw.random() < 0.6),
            template=draw.choice(("{database}/{table}", "by_table/{table}-of-{database}")),
        )
        return settings.with_rules() if draw.random() < 0.4 else settings

    def with_rules(self) -> Settings:
        """The same, with rules for the tables that can have them: no row stays in them or was there before."""
        others = {*self.soft, *self.kept, *self.adopted}
        return replace(self, ruled=tuple(name for name in (*HOT, "heap") if name not in others))

    @property
    def _lower(self) -> bool:
        return self.template != Settings.template

    def section(self, database: str) -> dict[str, Any]:
        """The section ``sink`` of the pipeline, without ``path``."""

        def patterns(names: Sequence[str]) -> list[str]:
            return [f"{database}[.]{name}" for name in names]

        return {
            "deletes": {"soft": patterns(self.soft), "ignore": patterns(self.kept)},
            "merge": {"copy_on_write": patterns(self.copies)},
            "partition_by": {f"{database}[.]{name}": list(by) for name, by in self.partitions.items()},
            "adopt": bool(self.adopted),
            "table_path": self.template,
            "lower_case": self._lower,
        }

    def folder(self, database: str, table: str) -> str:
        """Where a table is below ``sink.path``."""
        found = self.template.format(database=database, table=table)
        return found.lower() if self._lower else found

    def make_adopted(self, connection: Any, database: str, lake: Place) -> None:
        """Make the tables that are there before the pipeline, with rows that are in no source."""
        for name in self.adopted:
            columns = {c.name: _TYPES[c.kind] for c in described(connection, database, name)}
            by = []
            for part in self.partitions.get(name, ()):
                if isinstance(part, str):
                    by.append(part)
                    continue
                ((unit, column),) = part.items()
                by.append(f"{column}_{unit}")
                columns[by[-1]] = pa.date32() if unit == "day" else pa.string()
            rows = pa.table([pa.nulls(3, kind) for kind in columns.values()], names=[*columns])
            where = below(lake, self.folder(database, name))
            uri, options = (str(where), None) if isinstance(where, str | Path) else (where.uri(), dict(where.options))
            write_deltalake(uri, rows, partition_by=by or None, storage_options=options)
