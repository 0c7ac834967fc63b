"""Snapshots of a table: the states that readers may still read, and which of them expire."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.model.errors import TerminalError

MAIN_BRANCH = "main"
BRANCH, TAG = "branch", "tag"
#: Properties of a table, and their defaults, that say when snapshots and refs expire.
MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE = "history.expire.max-ref-age-ms"
_DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 86_400_000
_FOREVER = (1 << 63) - 1


@dataclass(frozen=True)
class TableSnapshot:
    """A snapshot.

    :param json: its JSON in the table's metadata.
    """

    json: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        """Its id."""
        return int(self.json["snapshot-id"])

    @property
    def parent_snapshot_id(self) -> int | None:
        """The snapshot that it is based on; that may have expired."""
        parent = self.json.get("parent-snapshot-id")
        return None if parent in (None, -1) else int(parent)

    @property
    def sequence_number(self) -> int:
        """The number of the commit."""
        return int(self.json.get("sequence-number") or 0)

    @property
    def timestamp_ms(self) -> int:
        """When it was made, by the clock of its writer."""
        return int(self.json["timestamp-ms"])

    @property
    def manifest_list(self) -> str:
        """Location of its manifest list.

        :raises TerminalError: if it has none, as in format version 1.
        """
        if not self.json.get("manifest-list"):
            raise TerminalError(
                f"snapshot {self.snapshot_id} of the Iceberg table has no manifest list, as format version 1 allows",
                "Rewrite the table's manifests with Spark: CALL system.rewrite_manifests",
            )
        return str(self.json["manifest-list"])

    @property
    def summary(self) -> Mapping[str, str]:
        """Its operation, and what else its writer recorded."""
        return self.json.get("summary") or {}

    @property
    def first_row_id(self) -> int | None:
        """``_row_id`` of its first row; ``None`` before version 3."""
        return self.json.get("first-row-id")

    @property
    def schema_id(self) -> int | None:
        """The current schema when it was made."""
        return self.json.get("schema-id")


def new_snapshot_id(known: Collection[int] = ()) -> int:
    """Return a random id that no snapshot of the table has."""
    while True:
        number = uuid.uuid4().int
        snapshot_id = ((number >> 64) ^ number) & _FOREVER
        if snapshot_id not in known and snapshot_id:
            return snapshot_id


def make_snapshot(
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    timestamp_ms: int,
    manifest_list: str,
    operation: str,
    schema_id: int,
    *,
    summary: Mapping[str, str] | None = None,
    first_row_id: int | None = None,
    added_rows: int | None = None,
) -> TableSnapshot:
    """Return a new snapshot.

    :param operation: ``append``, ``replace``, ``overwrite`` or ``delete``.
    :param first_row_id: ``next-row-id`` of the table, from version 3 on.
    :param added_rows: how many row ids it uses, from version 3 on.
    """
    optional = {
        "parent-snapshot-id": parent_snapshot_id,
        "first-row-id": first_row_id,
        "added-rows": added_rows,
    }
    return TableSnapshot(
        {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": timestamp_ms,
            "manifest-list": manifest_list,
            "summary": {"operation": operation, **(summary or {})},
            "schema-id": schema_id,
            **{name: value for name, value in optional.items() if value is not None},
        }
    )


def ancestors_of(snapshots: Mapping[int, TableSnapshot], snapshot_id: int | None) -> Iterator[TableSnapshot]:
    """Yield a snapshot and those that it is based on, the newest first, as far as they are known."""
    while snapshot_id is not None and (snapshot := snapshots.get(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def expired_refs(
    snapshots: Mapping[int, TableSnapshot],
    refs: Mapping[str, Mapping[str, Any]],
    properties: Mapping[str, str],
    now_ms: int,
) -> list[str]:
    """Return the branches and tags that are older than the table allows; ``main`` never is."""
    default = int(properties.get(MAX_REF_AGE, _FOREVER))
    return [
        name
        for name, ref in refs.items()
        if name != MAIN_BRANCH
        and (snapshot := snapshots.get(ref["snapshot-id"])) is not None
        and now_ms - snapshot.timestamp_ms > int(ref.get("max-ref-age-ms") or default)
    ]


def expired_snapshots(
    snapshots: Mapping[int, TableSnapshot],
    refs: Mapping[str, Mapping[str, Any]],
    properties: Mapping[str, str],
    now_ms: int,
    *,
    max_count: int | None = None,
) -> list[int]:
    """Return the ids of the snapshots that may be removed, the oldest first.

    Every ref counts: one that has expired is removed first (:func:`expired_refs`).

    :param refs: branches and tags by name.
    :param properties: properties of the table.
    :param now_ms: milliseconds since 1970.
    :param max_count: number of snapshots of ``main`` that are retained although they are young enough, but not fewer
        than its ``min-snapshots-to-keep``; ``None`` for all.
    """
    if not refs:
        return []
    retained = set[int]()
    for name, ref in refs.items():
        if ref.get("type", BRANCH) == TAG:
            retained.add(ref["snapshot-id"])
            continue
        max_age = int(
            ref.get("max-snapshot-age-ms") or properties.get(MAX_SNAPSHOT_AGE) or _DEFAULT_MAX_SNAPSHOT_AGE_MS
        )
        at_least = int(ref.get("min-snapshots-to-keep") or properties.get(MIN_SNAPSHOTS_TO_KEEP) or 1)
        at_most = max(at_least, max_count or _FOREVER) if name == MAIN_BRANCH else _FOREVER
        for number, snapshot in enumerate(ancestors_of(snapshots, ref["snapshot-id"])):
            too_old = now_ms - snapshot.timestamp_ms > max_age
            if number >= max(at_least, 1) and (too_old or number >= at_most):
                break
            retained.add(snapshot.snapshot_id)
    expired = [snapshot for number, snapshot in snapshots.items() if number not in retained]
    return [snapshot.snapshot_id for snapshot in sorted(expired, key=lambda s: (s.sequence_number, s.timestamp_ms))]
