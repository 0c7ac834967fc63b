"""Rules for rows and columns that chance chooses, and views in which the server itself computes what copies must be.

The expressions follow docs/transforms.md, not the project's code.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from tests.support.altering import Seen, quoted, seen
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, hmac_sql, mask_sql, null_sql

#: Policies of text columns, of columns of other types that can be hashed, of all columns, and of columns of keys.
TEXT_POLICIES: tuple[Any, ...] = (
    *(None, "hash", "mask", "null", "exclude"),
    *({"mask": 2, "rename": "m {}"}, {"mask": 1}, {"truncate": 1}, {"truncate": 3, "rename": "t {}"}),
    *({"hash": "binary"}, {"hash": "hex", "rename": "h {}"}, {"rename": "r {}"}),
)
HASHED_POLICIES: tuple[Any, ...] = (
    *(None, "hash", {"hash": "binary", "rename": "h {}"}, "null", "exclude"),
    {"rename": "r {}"},
)
ANY_POLICIES: tuple[Any, ...] = (None, "null", "exclude", {"rename": "r {}"})
KEY_POLICIES: tuple[Any, ...] = (None, {"rename": "r {}"})
HASHED_KEY_POLICIES: tuple[Any, ...] = (*KEY_POLICIES, "hash", {"hash": "binary"})
METADATA = ("database", "table", "server", "file", "position", "gtid")


def draw_key_policies(draw: random.Random) -> tuple[Any, ...]:
    """Policies that keys of a schedule may have: hashed ones not in all, as no group with one can be read again."""
    return draw.choice((KEY_POLICIES, HASHED_KEY_POLICIES))


def draw_policy(draw: random.Random, policies: Sequence[Any], column: str) -> Any:
    """One of some policies, in which ``{}`` stands for the column's name."""
    policy = draw.choice(policies)
    if isinstance(policy, dict) and "rename" in policy:
        return policy | {"rename": policy["rename"].format(column)}
    return policy


def same_text(column: str, sign: str, text: str) -> str:
    """A comparison of all characters of a text, as bytes. ``{r}`` stands for what is written before a column."""
    return f"CAST(CONVERT({{r}}{column} USING utf8mb4) AS BINARY) {sign} CAST(_utf8mb4'{text}' AS BINARY)"


@dataclass(frozen=True)
class Condition:
    """Which rows are copied.

    :param text: the condition as the pipeline has it.
    :param sql: the same for the server, with exact comparisons; ``{r}`` stands for what is written before a column.
    """

    text: str
    sql: str

    @classmethod
    def alike(cls, text: str) -> Condition:
        """One that means the same on the server; columns are in backticks."""
        return cls(text.replace("`", ""), text.replace(" `", " {r}`").replace("(`", "({r}`"))


@dataclass
class Rules:
    """The rules of a pipeline for tables of one database.

    :param columns: policies by table and column.
    :param where: conditions by table.
    :param metadata: further columns of each copy.
    """

    database: str
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    where: dict[str, Condition] = field(default_factory=dict)
    metadata: Sequence[str] = ()

    def section(self) -> dict[str, Any]:
        """The section ``transforms`` of the pipeline."""
        columns = {}
        for table, policies in self.columns.items():
            for policy in {repr(one): one for one in policies.values() if one is not None}.values():
                names = "|".join(re.escape(name) for name, one in policies.items() if one == policy)
                columns[rf"{self.database}\.{re.escape(table)}\.(?:{names})"] = policy
        hashed = any(p == "hash" or (isinstance(p, dict) and "hash" in p) for p in columns.values())
        return {
            **({"hash_key_conn_id": HASH_CONNECTION} if hashed else {}),
            "columns": columns,
            "where": {rf"{self.database}\.{re.escape(table)}": one.text for table, one in self.where.items()},
            "metadata": list(self.metadata),
        }

    def policy(self, table: str, column: str) -> Any:
        return self.columns.get(table, {}).get(column)

    def copy_name(self, table: str, column: str) -> str | None:
        """The name of a column in the copy; ``None`` if the copy does not have it."""
        policy = self.policy(table, column)
        if policy == "exclude":
            return None
        return str(policy.get("rename", column)) if isinstance(policy, dict) else column

    def make_views(
        self,
        server: MySQLServer,
        keys: Mapping[str, Sequence[str]],
        database: str | None = None,
        also: Iterable[str] = (),
    ) -> dict[str, tuple[str, list[str]]]:
        """Make the views of what copies must be, from the columns that tables have now.

        :param keys: columns of the key in the source, by table.
        :param database: where tables of these names have rows of which all are copied, if not those of the source.
        :param also: further columns of these tables.
        :returns: name and key of each view, by table.
        """
        made = {}
        with closing(server.connect(database=database or self.database)) as connection, connection.cursor() as cursor:
            for table, key in keys.items():
                view = f"copy of {table}"
                columns = [c for c in seen(cursor, database or self.database, table) if c.name not in also]
                wanted = [quoted(name) for name in also]
                for column in columns:
                    if (name := self.copy_name(table, column.name)) is not None:
                        wanted.append(f"{copied_value(column, self.policy(table, column.name))} AS {quoted(name)}")
                condition = self.where[table].sql.format(r="") if database is None and table in self.where else "TRUE"
                cursor.execute(
                    f"CREATE OR REPLACE VIEW {quoted(view)} AS SELECT {', '.join(wanted)} FROM {quoted(table)} "
                    f"WHERE {condition}"
                )
                made[table] = view, [str(self.copy_name(table, name)) for name in key]
        return made


def copied_value(column: Seen, policy: Any) -> str:
    """The expression of a column of a copy."""
    name = quoted(column.name)
    if policy is None:
        return name
    if policy == "null":
        return null_sql(name)
    rule: dict[str, Any] = {policy: {"hash": "hex", "mask": 0}[policy]} if isinstance(policy, str) else policy
    text = f"CONVERT({name} USING utf8mb4)"
    if "hash" in rule:
        digits = hmac_sql(_canonical(column))
        return f"UNHEX({digits})" if rule["hash"] == "binary" else digits
    if "mask" in rule:
        return mask_sql(text, rule["mask"])
    if "truncate" in rule:
        return f"LEFT({name if column.kind.endswith(('binary', 'blob')) else text}, {rule['truncate']})"
    return name


def _canonical(column: Seen) -> str:
    """What is hashed of a column, as docs/transforms.md has it."""
    name = quoted(column.name)
    if column.kind.endswith("int") or column.kind == "year":
        return f"CAST({name} + 0 AS CHAR)"  # not with ZEROFILL
    if column.kind == "decimal":
        digits = f"CAST({name} AS CHAR)"
        return f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {digits}))" if column.scale else digits
    if column.kind == "date":
        return f"CAST({name} AS CHAR)"
    if column.kind in ("datetime", "timestamp"):
        return f"DATE_FORMAT({name}, '%Y-%m-%d %H:%i:%s.%f')"
    return name if column.kind.endswith(("binary", "blob")) else f"CONVERT({name} USING utf8mb4)"
