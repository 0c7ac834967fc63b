"""Checkpoints of a log that say more than is understood, or less than they should: nothing is taken for less."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.delta.log import checkpoint as module
from airflow_provider_cdc.sinks.delta.log.checkpoint import Checkpoint, find_newest_checkpoint
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta.test_log import changed, fresh
from tests.sinks.delta.test_table import TABLE, folder_of, opened, staging, upsert
from tests.support.v2_checkpoints import as_v2, checkpoint_of, write

Change = Callable[[list[dict[str, Any]]], object]
NUMBER = "80a083e8-7026-4e79-81be-64bd76c43a11"


def name(version: int, rest: str) -> str:
    return f"_delta_log/{version:020}.checkpoint{rest}"


@pytest.mark.parametrize(
    ("rests", "files"),
    [
        ([".parquet"], 1),
        ([f".{NUMBER}.json"], 1),
        ([f".{NUMBER}.parquet"], 1),
        ([f".{NUMBER}.json", f".{NUMBER.replace('8', '9')}.parquet"], 1),
        ([".0000000001.0000000002.parquet", ".0000000002.0000000002.parquet"], 2),
        ([".0000000001.0000000002.parquet"], 0),
        ([f".{NUMBER}.json.tmp", ".json", ".0000000001.0000000001.json"], 0),
    ],
)
def test_names(rests: list[str], files: int) -> None:
    older = name(6, ".parquet")
    found = find_newest_checkpoint([older, *(name(7, rest) for rest in rests)])
    assert found is not None
    if files:
        assert found.version == 7 and len(found.files) == files and {*found.files} <= {name(7, r) for r in rests}
    else:
        assert found == Checkpoint(6, (older,))
    assert find_newest_checkpoint([f"_delta_log/{7:020}.json"]) is None


def rewritten(path: Path, change: Change) -> None:
    """Change the lines of a checkpoint in JSON."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def of(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(line[kind] for line in lines if kind in line)
    return found


def without(kind: str) -> Change:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[:] = [line for line in lines if kind not in line]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("protocol"), "it lacks protocol"),
        (without("metaData"), "it lacks metaData"),
        (lambda lines: lines.append({"manifest": {"path": "more"}}), "has the unknown kind 'manifest'"),
        (lambda lines: lines.append({"add": lines[0], "remove": lines[0]}), "is not one action"),
        (lambda lines: of(lines, "checkpointMetadata").update(version=3), "it declares version 3"),
        (
            lambda lines: of(lines, "checkpointMetadata").update(tags={"numOfAddFiles": "99"}),
            r"it has \d+ data files, but declares 99",
        ),
        (
            lambda lines: of(lines, "sidecar").update(path="missing.parquet"),
            "is incomplete: .*missing.parquet",
        ),
    ],
)
def test_json_that_is_not_understood(tmp_path: Path, change: Change, said: str) -> None:
    storage = changed(tmp_path).storage
    path = as_v2(folder_of(opened(tmp_path)))
    rewritten(path, change)
    before = read_all_rows(storage.location())
    refused(opened(tmp_path), said)
    assert read_all_rows(storage.location()) == before


def test_json_that_is_cut(tmp_path: Path) -> None:
    storage = changed(tmp_path).storage
    path = as_v2(folder_of(opened(tmp_path)))
    path.write_text(path.read_text()[:-20])
    with pytest.raises(TerminalError, match=rf"{path.name} .* is not one action"):
        fresh(storage)


def read_all_rows(folder: str) -> set[str]:
    return {name for name, _ in LocalStorage(folder).list("")}


def refused(target: DeltaSinkTable, said: str) -> None:
    """In whatever it is used for."""
    for use in (
        target.load_log,
        target.markers,
        target.clean_up,
        lambda: upsert(target, (1, "x", 99, "u")),
        target.read,
    ):
        with pytest.raises(TerminalError, match=said):
            use()


def test_a_kind_of_row_that_is_not_known(tmp_path: Path) -> None:
    storage = changed(tmp_path).storage
    path = checkpoint_of(folder_of(opened(tmp_path)))
    needed: list[dict[str, Any]] = [{"metaData": {"id": "1"}}, {"protocol": {"minReaderVersion": 1}}]
    strange: dict[str, Any]
    for strange, said in (({"manifest": {"path": "x"}}, "manifest"), ({}, "without a name")):
        write(path, [*needed, strange])
        with pytest.raises(TerminalError, match=rf"{path.name} .* rows of an unknown kind \({said}\)"):
            fresh(storage)
    write(path, [{"txn": {"appId": "m", "version": 1}}])
    with pytest.raises(TerminalError, match="it lacks metaData and protocol"):
        fresh(storage)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TerminalError, match="it is damaged"):
        fresh(storage)


def test_a_sidecar_that_holds_something_else(tmp_path: Path) -> None:
    storage = changed(tmp_path).storage
    as_v2(folder_of(opened(tmp_path)))
    path = next(folder_of(opened(tmp_path)).glob("_delta_log/_sidecars/*"))
    write(path, [{"txn": {"appId": "m", "version": 1}}])
    with pytest.raises(TerminalError, match=rf"{path.name} .* it contains txn, which does not belong there"):
        fresh(storage)


def test_a_table_of_which_only_a_strange_checkpoint_is_left_is_there(tmp_path: Path) -> None:
    """A new one would be written over it."""
    target = opened(tmp_path)
    changed(tmp_path)
    path = as_v2(folder_of(target))
    path.rename(path.with_name(path.name.replace(".json", ".avro")))
    for commit in folder_of(target).glob("_delta_log/*.json"):
        commit.unlink()
    again = opened(tmp_path)
    assert again.exists()
    with pytest.raises(TerminalError, match="is missing"):
        again.create("p")


# ---------------------------------------------------------------- files are deleted


def _stood(log: DeltaLog, seconds: float) -> int:
    """As if the newest version had stood for long."""
    return log.version


def test_files_are_deleted_only_if_two_programs_agree_on_what_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a version of this project that did not know sidecars."""
    changed(tmp_path)
    target = opened(tmp_path)
    as_v2(folder_of(target), named=True)
    for commit in folder_of(target).glob("_delta_log/*.json"):
        commit.unlink()
    live = {*target.load_log().files}
    whole = module.read_actions

    def without_adds(*args: Any) -> Any:
        return (action for action in whole(*args) if "add" not in action)

    monkeypatch.setattr("airflow_provider_cdc.sinks.delta.log.delta_log.read_actions", without_adds)
    monkeypatch.setattr(DeltaLog, "newest_version_seen_before", _stood)
    blind = opened(tmp_path)
    assert not blind.load_log().files
    blind.load_log().tombstones.update(dict.fromkeys(live, 1))
    before = read_all_rows(target.storage.location())
    with pytest.raises(TerminalError, match=rf"has 0 data files, but {len(live)} as delta-rs reads it"):
        blind.clean_up()
    with pytest.raises(TerminalError, match="as delta-rs reads it"):
        folder_of(target).joinpath("changes/epoch-1").mkdir(parents=True)
        folder_of(target).joinpath("changes/epoch-1/a.parquet").touch()
        staging(blind).clear_older_epochs([TABLE], 5)
    assert read_all_rows(target.storage.location()) - {"changes/epoch-1/a.parquet"} == before
    monkeypatch.undo()
    monkeypatch.setattr(DeltaLog, "newest_version_seen_before", _stood)
    target.clean_up()
    assert live <= read_all_rows(target.storage.location()) < before | {"changes/epoch-1/a.parquet"}
    assert DeltaTable(folder_of(target)).version() == target.load_log().version
