"""A folder belongs to one table: another one in the same folder is refused, and deletes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.catalog_settings import DEFAULT_CATALOG_FILE, SQL, CatalogSettings
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.iceberg import snapshot_expiry, upkeep
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.log import folder_owner
from airflow_provider_cdc.sinks.iceberg.log.folder_owner import OWNER_FILE, FolderOwner
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.storage.storage import read_record
from tests.sinks.conformance import KEYED
from tests.sinks.iceberg.test_table import held, make_table, open_sink, rows, upsert
from tests.support.iceberg_catalogs import CatalogFolderTable
from tests.support.iceberg_sink import catalog_of, loaded_table

REFUSED = r"the folder .* belongs to table shop.orders \([-0-9a-f]{36}\) of the SQL catalog sqlite:///.*"


def in_other_catalog(folder: Path, table: TableSchema = KEYED) -> IcebergSinkTable:
    return IcebergSink(str(folder), "p", catalog=CatalogSettings(SQL, f"sqlite:///{folder}/other.db")).table(table)


def owner_of_folder(target: IcebergSinkTable) -> FolderOwner | None:
    return read_record(target.storage, OWNER_FILE, FolderOwner)


def names_in(target: IcebergSinkTable) -> set[str]:
    return {name for name, _ in target.storage.list("")}


def test_tables_of_two_catalogs(tmp_path: Path) -> None:
    """The second one is not created, until the folder of the first one has been removed."""
    target = make_table(tmp_path)
    upsert(target, 1, 1, 2)
    before, other = names_in(target), in_other_catalog(tmp_path)
    for _ in range(2):
        with pytest.raises(TerminalError, match=REFUSED):
            other.create("p")
    assert not other.exists() and names_in(target) == before and held(target) == {1: 1, 2: 1}
    shutil.rmtree(target.storage.location())
    other.create("p")
    found = owner_of_folder(other)
    assert found is not None and found.catalog.endswith("/other.db")


def test_names_that_differ_in_case(tmp_path: Path) -> None:
    """On a disk on which case does not count: the link is such a name."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    (tmp_path / "shop" / "Orders").symlink_to("orders")
    other = open_sink(tmp_path).table(KEYED.replace(name="Orders"))
    with pytest.raises(TerminalError, match=REFUSED):
        other.create("p")
    assert not other.exists() and held(target) == {1: 1}


def test_a_catalog_that_was_removed_and_made_again(tmp_path: Path) -> None:
    """Somebody may restore it."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    (tmp_path / DEFAULT_CATALOG_FILE).rename(tmp_path / "backup")
    with pytest.raises(TerminalError, match=REFUSED):
        open_sink(tmp_path).table(KEYED).create("p")
    (tmp_path / "backup").rename(tmp_path / DEFAULT_CATALOG_FILE)
    assert held(target) == {1: 1}


def test_files_of_a_table_that_has_not_taken_its_folder(tmp_path: Path) -> None:
    """As those that other software makes."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    target.storage.delete(OWNER_FILE)
    with pytest.raises(TerminalError, match="has the files of another table"):
        in_other_catalog(tmp_path).create("p")
    target.create("p")
    assert owner_of_folder(target) is not None


def test_two_that_are_created_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see a free folder, and one takes it."""
    target, other = open_sink(tmp_path).table(KEYED), in_other_catalog(tmp_path)
    real, winners = read_record, [target]

    def read_and_wait(*arguments: Any) -> Any:
        found = real(*arguments)
        if winners and other.exists():
            winners.pop().create("p")
        return found

    monkeypatch.setattr("airflow_provider_cdc.sinks.iceberg.table.check_folder_is_free", lambda *_: None)
    monkeypatch.setattr(folder_owner, "read_record", read_and_wait)
    with pytest.raises(TerminalError, match=REFUSED):
        other.create("p")
    upsert(target, 1, 1)
    with pytest.raises(TerminalError, match=REFUSED):  # also when it is tried again
        other.create("p")
    assert held(target) == {1: 1}


def test_a_creation_that_was_killed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog has the table, and the folder does not belong to it yet; or the catalog has nothing but a file."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(folder_owner, "write_json_once", _killed)
        make_table(tmp_path)
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    assert held(target) == {1: 1} and _owns(target)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SqlCatalog, "_write_row", _killed)
        make_table(tmp_path / "more")
    assert _owns(make_table(tmp_path / "more"))


def test_a_table_of_others_takes_its_folder(tmp_path: Path) -> None:
    """When it is adopted, before its rows are removed."""
    target = open_sink(tmp_path, adopt=True).table(KEYED)
    location = f"file://{target.storage.location()}"
    catalog = catalog_of(target)
    metadata = target._new_metadata("p").json
    made = catalog.create_table(target.identifier, type(target._new_metadata("p"))({**metadata, "properties": {}}))
    assert made is not None and made.metadata.location == location
    other = CatalogFolderTable.of(catalog, made, target.identifier)
    other.commit(other.write_rows(rows((7, "theirs", 1, "c"))))
    target.create("p")
    assert held(target) == {} and _owns(target)


@pytest.mark.parametrize("action", ["clean_up", "delete", "clear_staged", "clear_older_epochs"])
def test_nothing_is_deleted_in_the_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 2)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    sink, target = open_sink(tmp_path), make_table(tmp_path)
    for seq in range(1, 6):
        upsert(target, seq, 1)
    target.stage("1/0/1/slice", [rows((99, "staged", 1, "r"))])
    sink.change_staging().open_writer(KEYED, "epoch-1/1").close()
    actions: dict[str, Callable[[], object]] = {
        "clean_up": target.clean_up,
        "delete": target.delete,
        "clear_staged": lambda: target.clear_staged("1/0"),
        "clear_older_epochs": lambda: sink.change_staging().clear_older_epochs([KEYED], 2),
    }
    own = target.storage.read(OWNER_FILE)
    assert own is not None
    theirs = FolderOwner("0" * 36, "shop.orders", "SQL catalog sqlite:///x")
    target.storage.write(OWNER_FILE, str(theirs.to_json()).replace("'", '"').encode())
    before = names_in(target)
    with pytest.raises(TerminalError, match=REFUSED):
        actions[action]()
    assert names_in(target) == before and target.exists()
    target.storage.write(OWNER_FILE, own)
    actions[action]()
    assert len(names_in(target)) < len(before)


def test_old_files_go_although_the_file_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other software may delete it, because no snapshot has it."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 2)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    target = make_table(tmp_path)
    for seq in range(1, 6):
        upsert(target, seq, 1)
    target.storage.delete(OWNER_FILE)
    before = names_in(target)
    target.clean_up()
    assert len(names_in(target)) < len(before) and _owns(target) and held(target) == {1: 5}


def test_a_table_that_was_deleted_leaves_a_free_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the first try dies before the catalog has forgotten it, or right after that."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    drop = SqlCatalog.drop_table

    def drop_late(*arguments: Any) -> None:
        drop(*arguments)
        _killed()

    for dying in (_killed, drop_late):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SqlCatalog, "drop_table", dying)
            target.delete()
    target.delete()
    assert not names_in(target)
    again = make_table(tmp_path)
    upsert(again, 1, 2)
    assert held(again) == {2: 1} and _owns(again)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def _owns(target: IcebergSinkTable) -> bool:
    found = owner_of_folder(target)
    return found is not None and found.table_uuid == loaded_table(target).metadata.table_uuid
