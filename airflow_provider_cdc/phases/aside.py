"""What is read again by itself: a table, or ranges of its keys, as a chunk group that the plan does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.offset import Lineage, Offset, Position
from airflow_provider_cdc.core.plan import Chunk, Plan, slices
from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.jobs.slices import Runner
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import Group, watermarks_of
from airflow_provider_cdc.phases.snapshot import job_of
from airflow_provider_cdc.sinks.storage import write_json_once


def read_aside(
    context: Context,
    plan: Plan,
    chunks: Sequence[Chunk],
    number: int,
    since: Offset,
    lineage: Lineage,
    run: Runner,
) -> tuple[Group, Position]:
    """Read chunks of one table into staged slices, and write their manifest.

    :param plan: the plan by whose definitions they are read.
    :param number: number of the group, or the next one that nobody has taken.
    :param since: low watermark of the whole, and ``lineage``: numbers the transactions of its server.
    :param run: runs the slices.
    :returns: the group, and the highest high watermark.
    """
    while True:
        grouped = tuple(replace(chunk, no=no, group=number) for no, chunk in enumerate(chunks))
        made = replace(plan, chunks=grouped)
        if write_json_once(context.storage, context.layout.share(plan.generation, number), made.to_json()):
            break
        number += 1  # somebody reads it, or has read it
    group = Group(context, made, number)
    manifests: list[dict[str, Any]] = []
    if chunks:
        missing = range(len(slices(grouped)))
        label = plan.tables[chunks[0].table].label
        context.reporter.line(f"{label} is read again: {len(chunks)} chunks, from {since.at} on")
        for manifest in run(job_of(group, 1, missing, since, lineage)):
            manifest.pop("asked", None)
            manifests.append(manifest)
        if {manifest["slice"] for manifest in manifests} != set(missing):
            raise TransientError(f"{label} was not read to its end", "Run again: it is then read once more")
    manifests = group.write_manifest(1, sorted(manifests, key=lambda manifest: int(manifest["slice"])))
    return group, max([since.at, *(watermarks_of(chunk)[1] for entry in manifests for chunk in entry["chunks"])])
