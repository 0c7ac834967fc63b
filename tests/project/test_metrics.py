"""The page of numbers, the file of alert rules and the code say the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml
from prometheus_client import generate_latest

from airflow_provider_cdc.observe.metrics import METRICS, Measurement
from airflow_provider_cdc.observe.prometheus import make_registry
from tests import ROOT
from tests.support.packages import PROMETHEUS, unpacked_packages

PAGE, RULES = ROOT / "docs" / "metrics.md", ROOT / "docs" / "alerts.yaml"
_ROW = re.compile(r"^\| `cdc\.(\w+)` \| `pipeline`(, `table`)? \| (.+?) \| `(.+)` \|$", re.MULTILINE)


def test_each_number_is_on_the_page_with_its_rule() -> None:
    listed = {name: (what, bool(table)) for name, table, what, _ in _ROW.findall(PAGE.read_text())}
    assert listed == {name: (metric.help_text, metric.per_table) for name, metric in METRICS.items()}


def prometheus_names() -> dict[str, str]:
    """The name of each metric in what Prometheus reads."""
    measured = [Measurement(name, 1, "p", "d.t" if metric.per_table else None) for name, metric in METRICS.items()]
    shown = re.findall(r"^(cdc_\w+)\{", generate_latest(make_registry(lambda: measured)).decode(), re.MULTILINE)
    return dict(zip(METRICS, shown, strict=True))


def test_the_rules_are_those_of_the_page() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [rule["expr"] for rule in group["rules"]] == [rule for *_, rule in _ROW.findall(PAGE.read_text())]
    names = prometheus_names()
    for (name, metric), rule in zip(METRICS.items(), group["rules"], strict=True):
        named = set(re.findall(r"cdc_\w+", rule["expr"]))
        assert names[name] in named <= {*names.values()}, rule["expr"]
        assert re.fullmatch(r"\d+[mh]", rule["for"]) and rule["labels"]["severity"] in ("page", "ticket")
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert labels == ({"table"} if metric.per_table else {"pipeline"}), rule
    assert len({rule["alert"] for rule in group["rules"]}) == len(METRICS)


#: Of each alert: numbers, a minute apart for two days, with which it is heard in the end, and those that are quiet.
HEARD: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "CdcStreamNotRunning": ({"running": "0"}, {"running": "1"}),
    "CdcStreamPaused": ({"paused": "1"}, {"paused": "0+0x1800 1+0x1080"}),
    "CdcStreamFailed": ({"failed": "1"}, {"failed": "0"}),
    "CdcNoSignOfLife": ({"heartbeat_age_seconds": "7201"}, {"heartbeat_age_seconds": "60"}),
    "CdcLag": ({"lag_seconds": "301"}, {"lag_seconds": "301", "chunks_done": "1", "chunks_total": "2"}),
    "CdcBytesBehind": ({"bytes_behind": "10000000001"}, {"bytes_behind": "9999999999"}),
    "CdcPurgeRisk": ({"hours_to_purge": "5.9"}, {"hours_to_purge": "7"}),
    "CdcChangeLag": ({"change_lag_seconds": "121"}, {"change_lag_seconds": "2"}),
    "CdcSlowMerge": ({"merge_seconds": "61"}, {"merge_seconds": "2"}),
    "CdcNoChanges": ({"changes_total": "7", "bytes_behind": "1"}, {"changes_total": "7", "bytes_behind": "0"}),
    "CdcNoBatches": ({"batches_total": "7", "bytes_behind": "1"}, {"batches_total": "0+1x2880", "bytes_behind": "1"}),
    "CdcSnapshotReadsNothing": (
        {"rows": "7", "chunks_done": "1", "chunks_total": "2"},
        {"rows": "7", "chunks_done": "2", "chunks_total": "2"},
    ),
    "CdcSnapshotStandsStill": (
        {"chunks_done": "1", "chunks_total": "2"},
        {"chunks_done": "0+1x2880", "chunks_total": "9999"},
    ),
    "CdcSnapshotUnfinished": (
        {"chunks_done": "1", "chunks_total": "2"},
        {"chunks_done": "1+0x2800 2+0x80", "chunks_total": "2"},
    ),
    "CdcFewerTables": ({"tables": "3+0x2840 2+0x40"}, {"tables": "2+0x2840 3+0x40"}),
    "CdcTablesSuspended": ({"suspended_tables": "1"}, {"suspended_tables": "0"}),
    "CdcTableSuspended": ({"suspended": "1"}, {"suspended": "0"}),
    "CdcTableShrank": ({"table_rows": "100+0x2800 49+0x80"}, {"table_rows": "100+0x2800 51+0x80"}),
    "CdcTableGrew": ({"table_bytes": "100+0x2800 301+0x80"}, {"table_bytes": "100+0x2800 299+0x80"}),
    "CdcManyFiles": ({"files": "5001"}, {"files": "5000"}),
    "CdcDeadRows": ({"dead_rows": "1000001", "table_rows": "9"}, {"dead_rows": "1000001", "table_rows": "9000000"}),
    "CdcNoCompaction": (
        {"compactions_total": "5", "files": "1001"},
        {"compactions_total": "0+1x2880", "files": "1001"},
    ),
    "CdcSlowCompaction": ({"compaction_seconds": "1801"}, {"compaction_seconds": "1800"}),
    "CdcManyInserts": ({"inserts_total": "0+60x2840 170460+120060x40"}, {"inserts_total": "0+60060x2880"}),
    "CdcManyUpdates": ({"updates_total": "0+60x2840 170460+120060x40"}, {"updates_total": "0+0x2840 0+600x40"}),
    "CdcManyDeletes": ({"deletes_total": "0+60x2840 170460+120060x40"}, {"deletes_total": "0+60060x2880"}),
    "CdcNotEqual": ({"verified_equal": "0"}, {"verified_equal": "1"}),
    "CdcNotComparable": ({"not_comparable": "1"}, {"not_comparable": "0+0x1800 1+0x1080"}),
    "CdcNotVerified": ({"verified_age_seconds": "691201"}, {"verified_age_seconds": "604800"}),
}


def test_prometheus_takes_the_rules_and_each_is_heard(tmp_path: Path) -> None:
    """By its own tool, which reads the file as Prometheus does and tries rules on numbers."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [*HEARD]
    known, files = {shown: METRICS[name] for name, shown in prometheus_names().items()}, []
    for rule in group["rules"]:
        tests = []
        for heard, numbers in zip((True, False), HEARD[rule["alert"]], strict=True):
            series = []
            for name, values in numbers.items():
                labels = {"pipeline": "p"} | ({"table": "d.t"} if known[f"cdc_{name}"].per_table else {})
                text = ",".join(f'{key}="{value}"' for key, value in labels.items())
                values = values if "x" in values else f"{values}+0x2880"
                series.append({"series": f"cdc_{name}{{{text}}}", "values": values})
            alerts = [{"exp_labels": labels | rule["labels"]}] if heard else []
            wanted = {"eval_time": "2d", "alertname": rule["alert"], "exp_alerts": alerts}
            tests.append({"interval": "1m", "input_series": series, "alert_rule_test": [wanted]})
        # By itself, since each one takes its time; and without what it says.
        alone, file = tmp_path / f"{rule['alert']}.rule.yaml", tmp_path / f"{rule['alert']}.yaml"
        alone.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [{**rule, "annotations": {}}]}]}))
        file.write_text(yaml.safe_dump({"rule_files": [alone.name], "evaluation_interval": "5m", "tests": tests}))
        files.append(file)
    promtool = shutil.which("promtool") or unpacked_packages(PROMETHEUS) / "usr/bin/promtool"
    for command in (["check", "rules", str(RULES)], ["test", "rules", *map(str, files)]):
        found = subprocess.run([str(promtool), *command], capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


def test_the_text_format() -> None:
    """Each metric once, with its type; names of tables may hold anything."""
    found = [
        Measurement("inserts", 3.0, "p", 'd."a\\b\nc'),
        Measurement("lag_seconds", 1e-07, "p"),
        Measurement("inserts", 2.0**60, "q", "d.t"),
        Measurement("lag_seconds", 12.5, "q"),
    ]
    assert generate_latest(make_registry(lambda: found)).decode().splitlines() == [
        "# HELP cdc_lag_seconds Age of the oldest commit in the source that has not been read yet",
        "# TYPE cdc_lag_seconds gauge",
        'cdc_lag_seconds{pipeline="p"} 1e-07',
        'cdc_lag_seconds{pipeline="q"} 12.5',
        "# HELP cdc_inserts_total Inserts that streams have applied",
        "# TYPE cdc_inserts_total counter",
        r'cdc_inserts_total{pipeline="p",table="d.\"a\\b\nc"} 3.0',
        'cdc_inserts_total{pipeline="q",table="d.t"} 1.152921504606847e+18',
    ]
