"""The stream's operator: it sees to it that exactly one stream runs, and looks after it until it ends.

The Spark driver is a process of its own session. It belongs to no task: a task that is retried, cleared or run a
second time finds it through the bookkeeping database and looks after it from there on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_cdc.core.supervision import Verdict, Watch
from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TerminalError, TransientError, error_of, unpack
from airflow_provider_cdc.links.cdc import SparkUiLink
from airflow_provider_cdc.operators.base import (
    PipelineLike,
    PipelineOperator,
    context_of,
    request_of,
    task_errors,
    task_label,
)
from airflow_provider_cdc.processes import tail

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.phases.context import Context as Work
    from airflow_provider_cdc.store import Store, StreamRow

#: Drivers may be lost so often within so many seconds of running before the task gives up.
_LOSSES, _LOSS_SECONDS = 5, 600.0
_TAIL, _PAUSE = 40, 1.0


class CdcStreamOperator(PipelineOperator):
    """Follow the binlog from the smallest low watermark of the snapshot, or from where the last stream stopped.

    The Spark driver is started in a session of its own and outlives the task's process; the task defers and watches it
    through the bookkeeping database. A driver that is lost is started again, without using up a retry. A retry, a
    clear or a second DAG run never starts a second stream: it looks after the one that runs. Marking the task failed
    or successful stops its stream at a transaction boundary; clearing it starts the next one after that.
    The task succeeds when the stream has caught up or somebody stopped it with ``airflow-cdc stop``.

    XCom: ``epoch``, ``state``, ``start`` (the seed), ``end``, ``batches``, ``changes``.

    :param pipeline: as in :class:`~airflow_provider_cdc.operators.cdc.CdcPreflightOperator`. (templated)
    :param catch_up: end at the position that the source has now; by default as ``stream.mode`` of the pipeline says.
    :param deferrable: wait in the triggerer; otherwise the task keeps its worker slot.
    :param poll_seconds: seconds between two looks at the stream.
    """

    operator_extra_links = (SparkUiLink(),)
    ui_color = "#f3e8fd"

    def __init__(
        self,
        *,
        pipeline: PipelineLike,
        catch_up: bool | None = None,
        deferrable: bool = True,
        poll_seconds: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.catch_up = catch_up
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Find the stream, or start it, and look after it."""
        return self._look_after(context, losses=[])

    def resume(self, context: Context, event: Mapping[str, Any], losses: list[float]) -> dict[str, Any]:
        """Go on after the trigger has seen the stream end.

        :param event: ``epoch``, ``verdict``, and whether it was ``found`` running; ``unseen`` in the place of the
            verdict says why the triggerer has never seen it.
        :param losses: how many seconds each driver lived that was lost before.
        """
        if "unseen" in event:
            event = self._unseen(context, event, losses)
        return self._look_after(context, losses=losses, event=event)

    def on_kill(self) -> None:
        """Stop waiting; a stream that this task looks after is asked to stop."""
        self._killed = True

    def _look_after(
        self, context: Context, *, losses: list[float], event: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        with task_errors(self.log), self._open() as (work, store):
            while True:
                if event is not None:
                    ended = self._ended(work, store, event, losses)
                    if ended is not None:
                        return ended
                epoch, found = self._attach(context, work, store)
                if self.deferrable:
                    self._defer(context, work, epoch, found, losses)
                event = {"epoch": epoch, "found": found, "verdict": self._watch(context, store, work, epoch)}

    def _unseen(self, context: Context, event: Mapping[str, Any], losses: list[float]) -> dict[str, Any]:
        """Find out why the triggerer could not see an epoch that this task has seen before it deferred.

        :returns: what the triggerer would have said, if the epoch is over.
        :raises CdcError: the triggerer's own reason, if the bookkeeping is all right. The stream is asked to stop: a
            task that fails leaves none behind that nobody looks after.
        """
        with task_errors(self.log):
            work, epoch = context_of(self.pipeline, self.log), int(event["epoch"])
            run, label = None, task_label(context)
            try:
                with closing(work.store()) as store:
                    run = store.supervise(work.pipeline.name, epoch, label)
                    if run is not None and (run.epoch, run.state) == (epoch, "running"):
                        store.request_stop(work.pipeline.name, epoch, by=label)
            except TransientError as error:
                self.log.warning("%s; the stream goes on", error)
            if run is None or run.epoch < epoch:  # away for all, or just being made anew: so the triggerer waits on
                self._defer(context, work, epoch, bool(event["found"]), losses)
            if run.epoch == epoch and run.state == "running":
                raise unpack(event["unseen"]) or TerminalError(event["unseen"])
            verdict = Verdict.SUPERSEDED if run.epoch > epoch else Verdict(run.state)
            return {"epoch": epoch, "found": event["found"], "verdict": verdict}

    @contextmanager
    def _open(self) -> Iterator[tuple[Work, Store]]:
        work = context_of(self.pipeline, self.log)
        with closing(work.store()) as store:
            yield work, store

    def _catches_up(self, work: Work) -> bool:
        return work.pipeline.stream.mode == "catch_up" if self.catch_up is None else self.catch_up

    def _attach(self, context: Context, work: Work, store: Store) -> tuple[int, bool]:
        """See to it that a stream runs.

        :returns: its epoch, and whether it was found running.
        """
        told = False
        while not self._killed:
            run, lives = work.watcher.look(store, work.pipeline.name)
            if run is None or lives is False:
                started = self._start(work, store)
                if started is not None:
                    self._note(context, store, work, started)
                    return started.epoch, False
            elif run.desired_state == "run" and lives:
                if self._catches_up(work) and run.mode == "continuous":
                    raise NotReadyError(
                        f"a continuous stream of {run.pipeline} is running (epoch {run.epoch}, looked after by "
                        f"{run.supervisor or 'nobody'}), so there is nothing to catch up with",
                        "Stop it with `airflow-cdc stop`, or leave the catch-up out",
                    )
                self.log.info("looking after epoch %s, which runs on %s", run.epoch, run.host)
                self._note(context, store, work, run)
                return run.epoch, True
            elif run.desired_state == "stop" and not told:
                self.log.info("epoch %s was asked to stop: waiting for its end before the next begins", run.epoch)
                told = True
            time.sleep(_PAUSE)
        raise TransientError("the task was stopped", "Clear it to run it again")

    def _note(self, context: Context, store: Store, work: Work, run: StreamRow) -> None:
        store.supervise(work.pipeline.name, run.epoch, task_label(context))
        if run.ui:
            context["ti"].xcom_push(SparkUiLink().xcom_key, run.ui)

    def _start(self, work: Work, store: Store) -> StreamRow | None:
        """Start a driver and wait until it has its epoch; ``None`` if another stream was faster.

        :raises CdcError: what made it end before.
        """
        from airflow_provider_cdc.launch import detach, new_log, outcome_of, result_of

        log = new_log(work.layout.private / "logs")
        request = request_of(work.pipeline, result=str(result_of(log)), log=str(log), catch_up=self._catches_up(work))
        process = detach(request, log)
        self.log.info("started the Spark driver, process %s, log %s", process.pid, log)
        while True:
            code = process.poll()  # before the look, so that an epoch that ended at once is not missed
            with suppress(TransientError):  # the driver lives: an outage of the bookkeeping is no reason to give up
                run = store.current_stream(work.pipeline.name)
                if run is not None and run.log == str(log):
                    self.log.info("stream epoch %s has begun; its page: %s", run.epoch, run.ui or "none")
                    return run
                if code is not None and work.watcher.lives(run):
                    return None
            if code is not None:
                self._show(str(log))
                outcome_of(result_of(log), code)
                raise TerminalError("the Spark driver ended without a stream", "See its log above, and report it")
            if self._killed:
                raise TransientError("the task was stopped while the stream was starting", "Clear it to run it again")
            time.sleep(_PAUSE)

    def _defer(self, context: Context, work: Work, epoch: int, found: bool, losses: list[float]) -> NoReturn:
        from airflow_provider_cdc.triggers.cdc import CdcStreamTrigger

        self.defer(
            trigger=CdcStreamTrigger(
                pipeline=work.pipeline.name,
                epoch=epoch,
                found=found,
                state_conn_id=work.pipeline.state.conn_id,
                state_path=str(work.layout.bookkeeping),
                supervisor=task_label(context),
                poll_seconds=self.poll_seconds,
            ),
            method_name="resume",
            kwargs={"losses": losses},
        )

    def _watch(self, context: Context, store: Store, work: Work, epoch: int) -> str:
        """Watch an epoch from the worker."""
        watch, name = Watch(epoch), work.pipeline.name
        while True:
            run = None
            with suppress(CdcError):
                run = store.supervise(name, epoch, task_label(context))
                if self._killed:
                    store.request_stop(name, epoch, by=task_label(context))
            verdict = watch.see(run, time.monotonic())
            if verdict is not None:
                return verdict
            time.sleep(_PAUSE if self._killed else self.poll_seconds)

    def _ended(self, work: Work, store: Store, event: Mapping[str, Any], losses: list[float]) -> dict[str, Any] | None:
        """What the end of an epoch means for the task.

        :returns: the task's result; ``None`` if a stream must run on.
        :raises CdcError: what the stream failed with.
        """
        epoch, verdict = int(event["epoch"]), Verdict(event["verdict"])
        if verdict is Verdict.SUPERSEDED:
            self.log.info("epoch %s was taken over by a newer one", epoch)
            return None
        run = store.current_stream(work.pipeline.name)
        if run is None or run.epoch != epoch:
            return None
        self._show(run.log)
        if verdict is Verdict.FAILED:
            raise error_of(run.error_kind, run.error or f"epoch {epoch} failed")
        if verdict is Verdict.LOST or (verdict is Verdict.STOPPED and run.desired_state == "run"):
            # By the driver's own clock from first to last: each try of this task may be on a host with another one.
            lived = (run.heartbeat_at - run.started_at).total_seconds()
            losses[:] = [*losses, lived][-_LOSSES:]
            if len(losses) == _LOSSES and sum(losses) < _LOSS_SECONDS:
                raise TransientError(
                    f"the Spark driver was lost {_LOSSES} times within {_LOSS_SECONDS / 60:g} minutes of running",
                    f"Look at the end of its log {run.log} and at the memory of {run.host}",
                )
            self.log.warning("the Spark driver of epoch %s on %s was lost; it is started again", epoch, run.host)
            return None
        if verdict is Verdict.STOPPED and run.stop_by is not None:
            self.log.info("epoch %s was stopped by %s; the next begins", epoch, run.stop_by)
            return None
        if verdict is Verdict.CAUGHT_UP and event["found"]:
            self.log.info("epoch %s, which was running before, has caught up; this task's own catch-up begins", epoch)
            return None
        return self._summary(store, run)

    def _show(self, log: str | None) -> None:
        lines = tail(log, _TAIL)
        if lines:
            self.log.info("the end of the driver's log %s:\n%s", log, "\n".join(lines))

    def _summary(self, store: Store, run: StreamRow) -> dict[str, Any]:
        return {"epoch": run.epoch, "state": run.state, **store.epoch_totals(run.pipeline, run.epoch)._asdict()}
