"""Commands of ``airflow-cdc`` on the page. They are complete, so that a user can copy them as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_provider_cdc.ui.declared_tasks import DeclaredTask

#: Subcommands that take ``-f`` and ``--pipeline``.
SUBCOMMANDS = (
    *("check", "plan", "snapshot", "stream", "run", "verify", "explain", "status", "maintain", "metrics", "stop"),
    *("pause", "resume", "suspend", "reload", "resnapshot", "forget"),
)
_OPTION = r" --(?:tables?|key|where-key) (?:'[^']*'|[^\s`]*[^\s`.,;:)])| --[a-z-]+"
_COMMAND = re.compile(rf"`?\b(airflow-cdc (?:{'|'.join(SUBCOMMANDS)})\b)((?:{_OPTION})*)`?")


@dataclass(frozen=True)
class PipelineCommands:
    """Completes commands for one pipeline.

    :param name: name of the pipeline; ``None`` if that is not known.
    :param file: the DAG file that contains it; ``None`` if that is not known.
    """

    name: str | None
    file: str | None

    @classmethod
    def for_pipeline(cls, name: str, tasks: Iterable[DeclaredTask], readable_dags: Collection[str]) -> PipelineCommands:
        """Find the file of a pipeline. A file from which the command could not load it is not used.

        :param tasks: the tasks of the pipeline.
        :param readable_dags: ids of the DAGs that the user may read.
        """
        files = (one.file for one in tasks if one.dag_id in readable_dags and not one.is_templated)
        return cls(name, next(filter(None, files), None))

    @property
    def options(self) -> str:
        """The options that name the pipeline."""
        name = "" if self.name is None else f" --pipeline {shlex.quote(self.name)}"
        return f"-f {'FILE' if self.file is None else shlex.quote(self.file)}{name}"

    @property
    def hint(self) -> str | None:
        """What the user has to put in; ``None`` if the commands are complete."""
        return None if self.file else f"FILE is the DAG file or YAML file of {self.name or 'the pipeline'}"

    def complete_text(self, text: str | None) -> str | None:
        """Return a text whose commands are complete, and in backticks."""
        completed, n = _COMMAND.subn(lambda match: f"`{match[1]} {self.options}{match[2]}`", text or "")
        if not n:
            return text
        return f"{completed.rstrip('.')}. {self.hint}" if self.hint else completed

    def explain_command(self, table: str, key: Iterable[str]) -> str:
        """Return the command that explains a row. ``VALUE`` stands for each value of its key.

        :param table: ``database.table``.
        :param key: columns of the key, if known.
        """
        values = [f"--key {shlex.quote(f'{column}=VALUE')}" for column in key] or ["--key VALUE"]
        return f"airflow-cdc explain {self.options} --table {shlex.quote(table)} {' '.join(values)}"
