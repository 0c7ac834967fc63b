"""A lake in an object store, as a test looks at it: the counterpart of :class:`tests.support.harness.Lake`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.harness import files_of, pipeline_file
from tests.support.s3 import S3

CONN_ID = "cdc_lake"
#: A slice of the snapshot's manifest, beside the file of the slice.
_MANIFEST = re.compile(r".*/snapshot/\d+/\d+/\d+/slice-[^/]*\.json")


@dataclass(frozen=True)
class StoreLake:
    """The place that a pipeline fills.

    :param place: where, as the test sees it.
    :param way: the same place as the pipeline reaches it: through a proxy.
    :param folder: of this host: pipeline file and state.
    """

    place: S3
    way: S3
    pipeline: str
    folder: Path
    #: More of the pipeline's section ``sink``.
    sink: Mapping[str, Any] = field(default_factory=dict)

    @property
    def connections(self) -> Mapping[str, str]:
        """The connection of the store, and the folder for state."""
        variable = f"AIRFLOW_CONN_{CONN_ID.upper()}"
        return {variable: self.way.connection(), "AIRFLOW_CDC_STATE_DIR": str(self.folder / "state")}

    def write_pipeline(self, database: str, master: str = "local[2]", **snapshot: int) -> Path:
        """See :meth:`tests.support.harness.Lake.write_pipeline`."""
        sink = {"path": self.place.uri(), "conn_id": CONN_ID, **self.sink}
        self.folder.mkdir(exist_ok=True)
        return pipeline_file(self.folder / "pipeline.yaml", self.pipeline, database, snapshot, sink, master)

    def lose(self, what: str) -> None:
        """Remove what a run must be able to do without: ``bookkeeping`` (all that this host knows) or ``staging``."""
        if what == "bookkeeping":
            shutil.rmtree(self.folder / "state", ignore_errors=True)
            return
        client, private = self.place.client, f"{self.place.prefix}/_cdc/{self.pipeline}/{what}/"
        for key in self.place.keys(private):
            client.delete_object(Bucket=self.place.bucket, Key=key)

    def finished_files(self) -> dict[str, tuple[str, str]]:
        """Snapshot files with a manifest beside them: hash and time of each."""
        stamps, found = self.place.stamps(f"{self.place.prefix}/"), dict[str, tuple[str, str]]()
        for name in filter(_MANIFEST.fullmatch, stamps):
            manifest = json.loads(self.place.content(name))
            files = [f"{name.partition('/snapshot/')[0]}/{file}" for file in files_of(manifest)]
            found |= {file: stamps[file] for file in files if file in stamps}
        return found

    def check_files(self, before: Mapping[str, Any]) -> None:
        """Finished files were read once, and are as they were."""
        now = self.finished_files()
        assert {file: now.get(file) for file in before} == dict(before), "finished files were written again"
