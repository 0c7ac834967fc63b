"""The page of numbers, the file of alert rules and the code say the same."""

from __future__ import annotations

import re

import yaml

from airflow_provider_cdc.core.metrics import METRICS, Measurement, prometheus_text
from tests import ROOT

PAGE, RULES = ROOT / "docs" / "metrics.md", ROOT / "docs" / "alerts.yaml"
_ROW = re.compile(r"^\| `cdc\.(\w+)` \| `pipeline`(, `table`)? \| (.+?) \| `(.+)` \|$", re.MULTILINE)


def test_each_number_is_on_the_page_with_its_rule() -> None:
    listed = {name: (what, bool(table)) for name, table, what, _ in _ROW.findall(PAGE.read_text())}
    assert listed == {name: (metric.what, metric.per_table) for name, metric in METRICS.items()}


def test_the_rules_are_those_of_the_page() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [rule["expr"] for rule in group["rules"]] == [rule for *_, rule in _ROW.findall(PAGE.read_text())]
    known = {metric.full_name for metric in METRICS.values()}
    for metric, rule in zip(METRICS.values(), group["rules"], strict=True):
        named = set(re.findall(r"cdc_\w+", rule["expr"]))
        assert metric.full_name in named <= known, rule["expr"]
        assert re.fullmatch(r"\d+[mh]", rule["for"]) and rule["labels"]["severity"] in ("page", "ticket")
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert labels == ({"table"} if metric.per_table else {"pipeline"}), rule
    assert len({rule["alert"] for rule in group["rules"]}) == len(METRICS)


def test_the_text_format() -> None:
    """Each metric once, with its type; names of tables may hold anything."""
    found = [
        Measurement("inserts", 3.0, "p", 'd."a\\b\nc'),
        Measurement("lag_seconds", 1e-07, "p"),
        Measurement("inserts", 2.0**60, "q", "d.t"),
        Measurement("lag_seconds", 12.5, "q"),
    ]
    assert prometheus_text(found).splitlines() == [
        "# HELP cdc_lag_seconds Age of the oldest commit of the source that was not read yet",
        "# TYPE cdc_lag_seconds gauge",
        'cdc_lag_seconds{pipeline="p"} 1e-07',
        'cdc_lag_seconds{pipeline="q"} 12.5',
        "# HELP cdc_inserts_total Inserts that streams have applied",
        "# TYPE cdc_inserts_total counter",
        r'cdc_inserts_total{pipeline="p",table="d.\"a\\b\nc"} 3.0',
        'cdc_inserts_total{pipeline="q",table="d.t"} 1.152921504606847e+18',
    ]
