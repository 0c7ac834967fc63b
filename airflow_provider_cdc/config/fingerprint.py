"""Digests of the settings that matter to a running stream; no values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from airflow_provider_cdc.config.pipeline import Pipeline

#: Settings that do not affect a running stream, but tasks or the plan.
_IRRELEVANT_SETTINGS = {"stream.mode", "snapshot.group_rows"}
#: Settings that a running stream reloads without a restart.
RELOADABLE_SETTINGS = frozenset({"source.tables", "source.exclude"})


def settings_fingerprint(pipeline: Pipeline) -> dict[str, str]:
    """Return digests of the settings, by key."""
    return dict(_setting_digests(pipeline))


def changed_settings(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the keys of the settings that changed. Keys that only one of two package versions has do not count."""
    return sorted(key for key in before.keys() & now.keys() if before[key] != now[key])


def _setting_digests(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    for section, values in pipeline.to_dict().items():
        if section in ("name", "alerts"):
            continue
        for name, value in values.items():
            if (key := f"{section}.{name}") not in _IRRELEVANT_SETTINGS:
                text = json.dumps(value, sort_keys=True, default=list)
                yield key, hashlib.sha256(text.encode()).hexdigest()[:12]
