"""Checkpoints of a Delta log in the forms that other writers give them, made of one by delta-rs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable


def checkpoint_of(folder: Path) -> Path:
    """Let delta-rs write a checkpoint; its file."""
    DeltaTable(folder).create_checkpoint()
    return max(folder.glob("_delta_log/*.checkpoint.parquet"))


def as_v2(folder: Path, *, form: str = "json", named: bool = False, sidecars: int = 2) -> Path:
    """A checkpoint by the V2 specification.

    :param form: of the file that names the sidecars, ``json`` or ``parquet``.
    :param named: whether that file has the classic name, as where Spark cleans a log up.
    :param sidecars: how many files hold data files and tombstones.
    :returns: that file.
    """
    classic = checkpoint_of(folder)
    whole = pq.read_table(classic)
    of_files = pc.or_(pc.is_valid(whole["add"]), pc.is_valid(whole["remove"]))
    part, rest = whole.filter(of_files), whole.filter(pc.invert(of_files))
    version = int(classic.name[:20])
    noted: list[dict[str, Any]] = [{"checkpointMetadata": {"version": version}}]
    below = folder / "_delta_log" / "_sidecars"
    below.mkdir(exist_ok=True)
    for n in range(sidecars):
        path = below / f"{uuid.uuid4()}.parquet"
        rows = part.select(["add", "remove"]).slice(n * len(part) // sidecars, -(-len(part) // sidecars))
        rows = rows.slice(0, (n + 1) * len(part) // sidecars - n * len(part) // sidecars)
        pq.write_table(rows, path)
        noted.append({"sidecar": {"path": path.name, "sizeInBytes": path.stat().st_size, "modificationTime": 1}})
    kept = rest if sidecars else whole
    listed = [{kind: _plain(value)} for row in kept.to_pylist() for kind, value in row.items() if value is not None]
    listed = [*noted, *(action for action in listed if "checkpointMetadata" not in action)]
    classic.unlink()
    (folder / "_delta_log" / "_last_checkpoint").unlink()
    made = classic if named else classic.with_name(f"{version:020}.checkpoint.{uuid.uuid4()}.{form}")
    if form == "json" and not named:
        made.write_text("".join(json.dumps(action) + "\n" for action in listed))
    else:
        write(made, listed, kept.schema)
    return made


def write(path: Path, actions: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    """Write a Parquet file of a checkpoint.

    :param schema: types of the kinds that it has.
    """
    known = {column.name: column.type for column in schema or ()}
    known["sidecar"] = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())])
    known["checkpointMetadata"] = pa.struct([("version", pa.int64())])
    names = sorted({kind for action in actions for kind in action} | known.keys())
    columns = {}
    for name in names:
        values = [action.get(name) for action in actions]
        columns[name] = pa.array([_pairs(v) for v in values], known[name]) if name in known else pa.array(values)
    pq.write_table(pa.table(columns), path)


_MAPS = ("partitionValues", "tags", "configuration", "options")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        told = {k: v for k, v in value.items() if v is not None}
        return {k: dict(v) if k in _MAPS and isinstance(v, list) else _plain(v) for k, v in told.items()}
    return value


def _pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: list(v.items()) if k in _MAPS and isinstance(v, dict) else _pairs(v) for k, v in value.items()}
    return value
