"""Merging of changes into Delta tables without a key: equal rows are counted, and as many as have gone are taken out.

Nothing tells where a row is, so the files are searched one after the other, the small ones first, until it is found. A
file that loses rows is written anew, in pieces that later changes need not read again. Of each file no more than a row
group is in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.multiset import Net, remaining, search
from airflow_provider_cdc.sinks.delta.files import LARGE_FILE, SMALL_FILE, Actions
from airflow_provider_cdc.sinks.files import portions, row_groups, write_file


def counted(root: Path, schema: pa.Schema, live: Sequence[Mapping[str, Any]], change: Net, since: int = 0) -> Actions:
    """Actions that take out as many rows as a change takes away of each image, and put in what it adds.

    Nothing is written unless all are found.

    :param root: the table's folder.
    :param schema: schema of its rows.
    :param live: its files, with ``path`` and ``size_bytes``.
    :param since: rows with a lower ``_cdc_seq`` go in any case, and do not count.
    :raises MissingRowsError: if there are fewer rows than are taken away.
    """
    sizes = {str(f["path"]): int(f["size_bytes"]) for f in sorted(live, key=lambda f: int(f["size_bytes"]))}
    lost = search(((path, row_groups(root / path, schema)) for path in sizes), change, since)
    if change.added.num_rows and not lost:
        small = next((path for path, size in sizes.items() if size < SMALL_FILE), None)
        if small is not None:  # small files must not pile up
            lost[small] = {}
    kept = [remaining(row_groups(root / path, schema), gone) for path, gone in lost.items()]
    written = [
        write_file(root, f"part-{uuid.uuid4().hex}.parquet", schema, part, None)
        for part in portions(chain(*kept, [change.added]), LARGE_FILE)
    ]
    return Actions(written, list(lost))
