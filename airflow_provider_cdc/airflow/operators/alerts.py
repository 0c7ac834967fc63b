"""The hooks of a stream's task: notifiers, or any callables, that hear of a trouble once, and once that it is over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.observe.alert_rules import FAILED, KINDS, Limits
from airflow_provider_cdc.observe.alerts import Alert, begin, begin_failure, news, told

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.runtime.run_context import Context as Work
    from airflow_provider_cdc.state import Store

#: A notifier, or a callable that takes the context; or several of them.
Hook = Callable[..., None] | Sequence[Callable[..., None]] | None
RECOVERED = "recovered"
#: The name under which a hook finds the alert in its context.
KEY = "cdc_alert"


class Hooks:
    """Who hears of what.

    :param hooks: by kind, as the operator's arguments ``on_<kind>``; ``recovered`` among them.
    :raises TypeError: if one cannot be called.
    """

    def __init__(self, **hooks: Hook) -> None:
        self._hooks = {kind: _listed(f"on_{kind}", hook) for kind, hook in hooks.items()}

    @property
    def kinds(self) -> list[str]:
        """Kinds of trouble that somebody wants to hear of."""
        return [kind for kind in KINDS if self._hooks.get(kind)]

    def trigger_request(self, pipeline: Pipeline) -> dict[str, Any] | None:
        """What the trigger has to look for, as plain values; ``None`` for nothing."""
        return {"kinds": self.kinds, "limits": asdict(limits_of(pipeline))} if self.kinds else None

    def notify(self, context: Context, store: Store, pipeline: Pipeline, log: Any) -> None:
        """Tell all there is to tell. What fails there is of no concern to the stream."""
        from sqlalchemy.exc import SQLAlchemyError

        if not self.kinds:
            return
        try:
            for alert in news(store, pipeline.name, limits_of(pipeline), self.kinds):
                begin(store, alert)
                self._call_hooks(alert, context, log)
                told(store, alert)
        except (CdcError, SQLAlchemyError) as error:
            log.warning("the bookkeeping could not be asked what is to be told: %s", error)

    @contextmanager
    def notify_on_error(
        self,
        context: Context,
        open_state: Callable[[], AbstractContextManager[tuple[Work, Store]]],
        is_killed: Callable[[], bool],
        log: Any,
    ) -> Iterator[None]:
        """Tell of an error that leaves the block, and of all else.

        :param open_state: opens the bookkeeping.
        :param is_killed: whether somebody has ended the task: that is no failure of the stream.
        """
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except CdcError as error:
            if self.kinds and not is_killed():
                with suppress(CdcError, SQLAlchemyError), open_state() as (run_context, store):
                    if FAILED in self.kinds:
                        begin_failure(store, run_context.pipeline.name, str(error))
                    self.notify(context, store, run_context.pipeline, log)
            raise

    def _call_hooks(self, alert: Alert, context: Context, log: Any) -> None:
        log.info("%s%s", "over: " if alert.over else "", alert.detail)
        for hook in self._hooks[RECOVERED if alert.over else alert.kind]:
            try:
                # A notifier renders its fields in place, once: the next alert has other texts.
                copy.copy(hook)({**context, KEY: alert.to_json()})
            except Exception:
                log.exception("a hook for %s has failed", alert.kind)


def limits_of(pipeline: Pipeline) -> Limits:
    """The limits of a pipeline."""
    return Limits(**asdict(pipeline.alerts))


def _listed(name: str, hook: Hook) -> list[Callable[..., None]]:
    hooks = [] if hook is None else list(hook) if isinstance(hook, Sequence) else [hook]
    for listed_hook in hooks:
        if not callable(listed_hook):
            raise TypeError(f"{name} is {listed_hook!r}: give a notifier, or a callable that takes the context")
    return hooks
