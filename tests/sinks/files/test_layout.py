"""Where a pipeline keeps what is not in its sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.sinks.files.layout import LocalFiles


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("AIRFLOW_CDC_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_beside_the_plan_where_the_sink_is_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", "/elsewhere")
    for path in ("/data/lake", "file:///data/lake", Path("/data/lake")):
        assert LocalFiles.for_pipeline(path, "p").state_database == Path("/data/lake/_cdc/p/bookkeeping.db")


def test_in_a_folder_of_the_host_where_it_is_none(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """One for each pipeline and place, whichever way the place is written."""
    found = LocalFiles.for_pipeline("s3://lake/a", "p").folder
    assert found.parent == home / ".local/state/airflow-provider-cdc" and found.name.startswith("p-")
    assert found == LocalFiles.for_pipeline("s3a://lake/a/", "p").folder
    others = {LocalFiles.for_pipeline(path, name).folder for path, name in (("s3://lake/b", "p"), ("gs://lake/a", "p"))}
    assert len({found, *others, LocalFiles.for_pipeline("s3://lake/a", "q").folder}) == 4
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert LocalFiles.for_pipeline("s3://lake/a", "p").folder == Path("/state/airflow-provider-cdc") / found.name
    monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", "/cdc")
    assert LocalFiles.for_pipeline("s3://lake/a", "p").folder == Path("/cdc") / found.name
    monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", "cdc")
    with pytest.raises(NotReadyError, match="is not an absolute path"):
        LocalFiles.for_pipeline("s3://lake/a", "p")
