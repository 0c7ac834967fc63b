"""An epoch of the stream without Spark."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import pairwise
from typing import Any

from airflow_provider_cdc.apply.task import merge_manifests
from airflow_provider_cdc.resnapshot.suspension import check_none_suspended
from airflow_provider_cdc.sinks.storage.request_counts import count_requests_in
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import _EpochLifecycle


def stage_everything(epoch: Epoch) -> dict[str, Any]:
    """All that has come since the section began, staged as one batch and not applied."""
    with closing(epoch.job.make_planner()) as planner:
        end = planner.find_batch_end(epoch.section_start, 1 << 40)
    return epoch.job.stage_range(epoch.section_start, end, "0")


def run_epoch_in_process(epoch: Epoch) -> None:
    """Drive an epoch in this process. Ends when caught up or stopped."""
    with count_requests_in(epoch.request_counts), _EpochLifecycle(epoch):
        epoch.run_sections(lambda: _run_section(epoch))
        check_none_suspended(epoch.context, epoch.plan)


def _run_section(epoch: Epoch) -> None:
    at = epoch.section_start
    with closing(epoch.job.make_planner()) as planner:
        while not epoch.is_section_over():
            ends = [at, *epoch.job.find_range_ends(planner, at)]
            if ends[-1] == at:
                epoch.publish_pending()
                time.sleep(0.05)
                continue
            epoch.apply_batch(
                merge_manifests(
                    [epoch.job.stage_range(*batch_range, "0", i) for i, batch_range in enumerate(pairwise(ends))]
                )
            )
            at = ends[-1]
