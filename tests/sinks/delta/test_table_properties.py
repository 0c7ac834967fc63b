"""Properties of tables that a pipeline asks for, and what tables say of their source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED, TableProperties
from airflow_provider_cdc.config.table_properties import DELETED_FILE_RETENTION as KEPT
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.protocol import Fence

ID = Column("id", "int", "int unsigned", nullable=False)
DOT = Column("v.w", "varchar", "varchar(9)", True, charset="utf8mb4")
TABLE = TableSchema("shop", "t", (ID, DOT), ("id",), comments=(("v.w", 'what it\'s "for"\n'),))
FENCE = Fence("epoch", 1)
RETENTION = "delta.logRetentionDuration"
LONGER = {RETENTION: "interval 9 days", KEPT: "interval 1 days"}


def sink(folder: Path, copies: bool = False, **properties: Any) -> DeltaSink:
    found = TableProperties.parse(properties.pop("of", properties))
    return DeltaSink(str(folder), "p", ("shop..*",) if copies else (), table_properties=found)


def configuration(folder: Path) -> dict[str, str]:
    return dict(DeltaTable(str(folder / "shop" / "t")).metadata().configuration)


@pytest.mark.parametrize("copies", [False, True])
def test_they_are_set_and_changed(tmp_path: Path, copies: bool) -> None:
    """With the next commit; what others have set stays."""
    first = sink(tmp_path, copies, of={RETENTION: "interval 7 days", "owner": "us", "n": 5, "b": True}).table(TABLE)
    first.create("p")
    first.raise_fence(FENCE)
    found = configuration(tmp_path)
    assert found | {RETENTION: "interval 7 days", "owner": "us", "n": "5", "b": "true"} == found
    log = first.load_log()
    assert log.commit([{"metaData": {**log.metadata, "configuration": {**log.properties, "theirs": "x"}}}], "SET")
    second = sink(
        tmp_path,
        copies,
        of={**LONGER, "owner": {"you": ["shop.t"], "no": ["b.c"]}},
    ).table(TABLE)
    second.create("p")
    second.raise_fence(Fence("epoch", 2))
    assert configuration(tmp_path) == found | {
        RETENTION: "interval 9 days",
        KEPT: "interval 1 days",
        "owner": "you",
        "theirs": "x",
    }
    assert second.markers().get("epoch") == 2
    version = second.load_log().version
    second.raise_fence(Fence("epoch", 3))
    assert second.load_log().version == version + 1
    assert "metaData" not in (tmp_path / "shop/t/_delta_log" / f"{version + 1:020d}.json").read_text()


def test_what_a_table_says_of_its_source(tmp_path: Path) -> None:
    target = sink(tmp_path).table(TABLE)
    target.create("p")
    for _ in range(2):
        table = DeltaTable(str(tmp_path / "shop" / "t"))
        assert table.metadata().description == "airflow-cdc pipeline p"
        assert table.metadata().configuration["airflow-cdc.source"] == "shop.t"
        fields = {field.name: field.metadata for field in table.schema().fields}
        assert fields["id"] == {"airflow-cdc.type": "int unsigned"}
        assert fields["v.w"] == {"airflow-cdc.type": "varchar(9)", "comment": 'what it\'s "for"\n'}
        assert fields["_cdc_seq"] == {}
        target.reset("p", Fence("generation", 2), [])


@pytest.mark.parametrize("adopt", [False, True])
def test_two_source_tables_in_one_folder(tmp_path: Path, adopt: bool) -> None:
    """As on a file system that does not tell cases apart: nothing of the second one is written."""
    made = DeltaSink(str(tmp_path), "p", adopt=adopt)
    first, other = made.table(TABLE), made.table(TABLE.replace(name="T"))
    first.create("p")
    (tmp_path / "shop" / "T").symlink_to(tmp_path / "shop" / "t")
    version = first.load_log().version
    ways: list[Callable[[], Any]] = [
        lambda: other.create("p"),
        other.markers,
        other.load_log,
        other.plan_scan,
        lambda: other.raise_fence(FENCE),
    ]
    ways += [lambda: other.reset("p", FENCE, []), lambda: other.commit(lambda _: None, {}, FENCE), other.clean_up]
    for way in ways:
        with pytest.raises(NotReadyError, match=r"is the copy of table shop.t, and not of shop.T.*sink.table_path"):
            way()
    assert first.load_log().version == version and first.load_log().properties["airflow-cdc.source"] == "shop.t"


def test_comments_are_no_part_of_the_definition() -> None:
    plain = TableSchema("shop", "t", (ID, DOT), ("id",))
    assert plain == TABLE and plain.fingerprint() == TABLE.fingerprint()
    assert TableSchema.from_json(TABLE.to_json()).comments == TABLE.comments


def test_a_property_with_two_values() -> None:
    found = TableProperties.parse({"tier": {"gold": ["shop.t"], "silver": ["shop..*"]}})
    assert found.properties_of("shop", "u") == {"tier": "silver"} and found.properties_of("crm", "t") == {}
    with pytest.raises(NotReadyError, match=r"sink.table_properties.tier is gold and silver for table shop.t"):
        found.properties_of("shop", "t")


@pytest.mark.parametrize("feed", [False, True])
def test_a_retention_of_the_table_that_is_longer_stays(tmp_path: Path, feed: bool) -> None:
    """Its owner has set it, or has taken the property out: then it is that of Delta, a week and a month."""
    asked = {RETENTION: "interval 2 days", KEPT: "interval 2 days"} if not feed else {RETENTION: "interval 2 days"}
    target = sink(tmp_path, of={**asked, **({CHANGE_DATA_FEED: True} if feed else {})}).table(TABLE)
    target.create("p")
    log = target.load_log()
    ours = {RETENTION: "interval 2 days", KEPT: "interval 1 days" if feed else "interval 2 days"}
    longer = {RETENTION: "interval 60 days", KEPT: "interval 720 hours"}
    shorter = {RETENTION: "interval 86400 seconds", KEPT: "interval 1 hour"}
    for theirs, expected in (({}, {}), (longer, longer), (shorter, ours), ({KEPT: "a while"}, {KEPT: "a while"})):
        others = {k: v for k, v in log.properties.items() if k not in longer}
        assert log.commit([{"metaData": {**log.metadata, "configuration": {**others, **theirs}}}], "SET")
        target.raise_fence(Fence("epoch", log.version))
        assert {k: v for k, v in target.load_log().properties.items() if k in longer} == expected


def test_how_long_files_stay_is_said_for_a_feed() -> None:
    """By default as long as versions stay in the log."""
    asked = TableProperties.parse({CHANGE_DATA_FEED: {"true": ["shop.t"], "false": ["shop.u"]}})
    assert asked.properties_of("shop", "t") == {CHANGE_DATA_FEED: "true", KEPT: "interval 1 days"}
    assert asked.properties_of("shop", "u") == {CHANGE_DATA_FEED: "false"} and asked.properties_of("crm", "t") == {}
    longer = TableProperties.parse({CHANGE_DATA_FEED: {True: ["shop.t"]}, KEPT: "interval 9 days"})
    assert longer.properties_of("shop", "t") == {CHANGE_DATA_FEED: "true", KEPT: "interval 9 days"}
    assert longer.properties_of("shop", "u") == {KEPT: "interval 9 days"}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("delta.enableDeletionVectors", "true", "cannot be set: sink.merge decides it"),
        ("delta.deletedFileRetentionDuration", "1 day", "It must be an interval"),
        ("delta.checkpointInterval", 10, "a checkpoint is written every 100 commits"),
        ("delta.enableChangeDataFeed", "yes", "It must be true or false"),
        ("delta.columnMapping.mode", "name", "is not a property that this version understands"),
        ("Delta.appendOnly", "true", "is not a property that this version understands"),
        ("airflow-cdc.deletes", "soft", "is not a property that this version understands"),
        (RETENTION, "7 days", "It must be an interval such as interval 7 days"),
        (RETENTION, "interval 0 days", "It must be an interval"),
        ("owner", None, "sink.table_properties.owner is None. It must be a text"),
        ("owner", 1.5, "It must be a text"),
        ("", "x", "names of properties"),
        (5, "x", "names of properties"),
    ],
)
def test_what_is_refused(name: Any, value: Any, why: str) -> None:
    with pytest.raises(NotReadyError) as error:
        TableProperties.parse({name: value})
    assert why in str(error.value)


def test_a_property_by_which_markers_are_forgotten(tmp_path: Path) -> None:
    """Whoever writes a checkpoint then leaves out those that are old: of groups, they say that rows are there."""
    target = sink(tmp_path).table(TABLE)
    target.create("p")
    log = target.load_log()
    configured = {**log.properties, "delta.setTransactionRetentionDuration": "interval 1 days"}
    assert log.commit([{"metaData": {**log.metadata, "configuration": configured}}], "SET TBLPROPERTIES")
    with pytest.raises(TerminalError, match=r"uses delta.setTransactionRetentionDuration"):
        sink(tmp_path).table(TABLE).raise_fence(FENCE)
