"""The stream's verify worker: a thread that compares tables with their copies on request, one request at a time.

The stream continues meanwhile, and publishes what a repair has re-snapshotted. No error of a comparison ends it. If a
comparison is impossible at the moment, the worker tries again. If the stream ends, the comparison is interrupted, and
the next run of the stream takes up the request.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.model.comparison import TableComparison
from airflow_provider_cdc.model.errors import REPORT_REMEDY, CdcError, TransientError
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import ControlRequestRow
from airflow_provider_cdc.state.control_requests import REPAIR
from airflow_provider_cdc.verify.report import check_equal, describe_equal, record_verdicts
from airflow_provider_cdc.verify.task import ScanRunner, run_scans_in_threads

_POLL_SECONDS = 0.2
#: Attempts at a comparison, and at recording its result, and the seconds between two of them.
_MAX_TRIES, _RETRY_SECONDS = 20, 10.0
#: Seconds for which a stream that ends waits for a comparison to notice.
_END_SECONDS = 60.0


class VerifyWorker(BackgroundLoop):
    """Carries out requests to verify and to repair.

    :param inbox: gets the outcomes. No comparison begins while the stream is paused.
    """

    def __init__(self, context: RunContext, inbox: RequestInbox) -> None:
        super().__init__("verify-worker", _POLL_SECONDS, _END_SECONDS)
        self._context, self._inbox = context, inbox
        self._queue: list[ControlRequestRow] = []
        #: Runs the scans of a copy; ``None`` for threads of this process.
        self.runner: ScanRunner | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        return bool(self._queue)

    def enqueue_request(self, request: ControlRequestRow) -> None:
        """Enqueue a request to verify or to repair."""
        self._queue.append(request)

    def _step(self) -> None:
        if not self._queue or self._inbox.paused:
            return
        request = self._queue[0]
        try:
            state, outcome = self._serve_request(request)
        except Exception as error:  # no error may end the thread; Spark may be ending
            if isinstance(error, CdcError):
                state, outcome = "refused", str(error)
            else:
                state, outcome = "refused", f"unexpected {type(error).__name__}: {error}. {REPORT_REMEDY}"
        if self._stopping.is_set():  # what it says may be due to the end; the next run takes up the request
            return
        self._context.reporter.line(f"{request.kind} as requested by {request.by}: {outcome}")
        self._inbox.end_request(request.id, state, outcome)
        self._queue.pop(0)

    def _serve_request(self, request: ControlRequestRow) -> tuple[str, str]:
        """Compare, and repair if that is requested.

        :returns: ``done`` or ``refused``, and the outcome in one line.
        """
        # A copy: the stream replaces the pipeline when it reloads the list of tables.
        context = replace(self._context, interrupt=self._stopping)
        tables: tuple[str, ...] = (re.escape(request.table),) if request.table else ()
        verdicts = dict[str, TableComparison]()
        for attempt in range(_MAX_TRIES):
            try:
                compared = self._compare(context, tables, repair=request.kind == REPAIR)
            except TransientError as error:
                if attempt + 1 == _MAX_TRIES or self._stopping.is_set():
                    raise
                context.warn(f"{request.kind} as requested by {request.by} is tried again: {error}")
            else:
                verdicts |= {verdict.table: verdict for verdict in compared}
                tables = tuple(re.escape(v.table) for v in compared if v.refusal is not None and v.refusal.retry)
                if not tables:
                    break
            if self._stopping.wait(_RETRY_SECONDS):
                break
        self._record(context, [*verdicts.values()], request.by)
        return _describe_outcome([*verdicts.values()], repaired=request.kind == REPAIR)

    def _compare(self, context: RunContext, tables: tuple[str, ...], *, repair: bool) -> list[TableComparison]:
        from airflow_provider_cdc.verify.repair import compare_and_repair  # compiled code: loaded only when needed

        runner = self.runner or partial(run_scans_in_threads, check=context.check_interrupted)
        return compare_and_repair(context, TableSelection(tables), runner, repair=repair)

    def _record(self, context: RunContext, verdicts: list[TableComparison], by: str) -> None:
        """Record the verdicts. An outage of the state database is waited for."""
        for _ in range(_MAX_TRIES):
            if self._stopping.is_set() or record_verdicts(context, verdicts, by=by):
                return
            self._stopping.wait(_RETRY_SECONDS)


def _describe_outcome(verdicts: list[TableComparison], *, repaired: bool) -> tuple[str, str]:
    """Return the state of a request, and its outcome in one line."""
    hint = "Re-snapshot them as a whole: airflow-cdc resnapshot" if repaired else "Request a repair of these tables"
    try:
        check_equal(verdicts, hint=hint)
    except CdcError as error:
        compared = any(verdict.refusal is None for verdict in verdicts)
        return "done" if compared else "refused", str(error)
    return "done", describe_equal(verdicts)
