"""What OpenLineage is told by the tasks of a real run, through Airflow's provider and one of its transports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.in_airflow.site import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]
#: In the environments of ``tests.versions``; it is not needed for anything else.
pytest.importorskip("airflow.providers.openlineage", reason="Airflow's OpenLineage provider is not installed")


def known(value: Any) -> Any:
    """A value as OpenLineage sends it: without what is null."""
    if isinstance(value, dict):
        return {key: known(one) for key, one in value.items() if one is not None}
    return [known(one) for one in value] if isinstance(value, list) else value


def test_what_a_run_tells(site: Site) -> None:
    dag, client = "lineage", site.client
    site.server.session("", "CREATE DATABASE lineage")
    for table in ("one", "two"):
        site.server.session(
            "lineage",
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20), secret TEXT)",
            f"INSERT INTO {table} VALUES (1, 'a', 'sesame'), (2, 'b', 'sesame')",
        )
    run = client.trigger(dag)
    client.wait_run(dag, run)
    site.server.execute("DROP DATABASE lineage")

    def sent(task: str) -> list[dict[str, Any]]:
        return [event for event in site.lineage() if event["job"]["name"] == f"{dag}.lineage.{task}"]

    def told(task: str, kind: str) -> dict[str, Any]:
        """The event of a kind that a task has sent. One that was deferred begins anew when it is resumed."""
        site.wait(f"{kind} of {task}", lambda: [one for one in sent(task) if one["eventType"] == kind])
        found, *others = [one for one in sent(task) if one["eventType"] == kind]
        assert {one["run"]["runId"] for one in others} <= {found["run"]["runId"]} and not (others and kind != "START")
        assert found["run"]["facets"]["parent"]["job"]["name"] == dag
        return dict(found)

    source, lake = f"mysql://127.0.0.1:{site.server.port}", f"{site.lake}-lineage"
    sources = [(source, "lineage.one"), (source, "lineage.two")]
    copies = [("file", f"{lake}/lineage/one"), ("file", f"{lake}/lineage/two")]
    results = {
        "snapshot": client.xcom(dag, run, "lineage.snapshot", map_index=0),
        "stream": client.xcom(dag, run, "lineage.stream"),
        "verify": {"tables": [{"table": name, "rows": 2, "repaired": 0} for _, name in sources]},
    }
    for task, reads, writes in (
        ("snapshot", sources, copies),
        ("stream", sources, copies),
        ("verify", [*sources, *copies], []),
    ):
        for kind in ("START", "COMPLETE"):
            event = told(task, kind)
            assert [(one["namespace"], one["name"]) for one in event["inputs"]] == reads, (task, kind)
            assert [(one["namespace"], one["name"]) for one in event["outputs"]] == writes, (task, kind)
            facets = event["inputs"][0]["facets"]
            assert [(f["name"], f["type"]) for f in facets["schema"]["fields"]] == [("id", "int"), ("v", "varchar(20)")]
            for copy in event["outputs"]:
                fields = copy["facets"]["columnLineage"]["fields"]
                assert fields.keys() == {"id", "v"} < {f["name"] for f in copy["facets"]["schema"]["fields"]}
                (field,) = fields["v"]["inputFields"]
                assert (field["namespace"], field["field"]) == (source, "v")
            ours = event["run"]["facets"]["cdc"]
            assert (ours["pipeline"], ours["generation"]) == ("lineage", 1)
            assert ours["position"]["file"] and ours["position"]["gtid_set"]
            result = results[task] if kind == "COMPLETE" else {}
            assert ours["result"] == known(result), (task, kind)
    everything = json.dumps(site.lineage())
    assert "sesame" not in everything and site.server.uri() not in everything
