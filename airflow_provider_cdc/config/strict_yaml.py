"""YAML without ambiguity: duplicate keys are rejected."""

from __future__ import annotations

from typing import Any

import yaml

from airflow_provider_cdc.model.errors import NotReadyError


def parse_yaml(text: str, name: str) -> Any:
    """Parse a YAML text into plain values.

    :param text: one document.
    :param name: its name in messages.
    :raises NotReadyError: if it is not YAML, or has a duplicate key; the message has the position.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise NotReadyError(f"{name}: {_describe_error(error)}", "Correct the YAML at this place") from None
    except RecursionError:
        raise NotReadyError(f"{name} is nested too deeply", "Give the pipeline's YAML") from None


class _UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, which also rejects duplicate keys (YAML itself would use the last one)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"key {key.value} is given twice"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return node


def _describe_error(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    words = [getattr(error, "context", None), getattr(error, "problem", None)]
    problem = " ".join(" ".join(filter(None, words)).split())[:200] or " ".join(str(error).split())[:200]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem
