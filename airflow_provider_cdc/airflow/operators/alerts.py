"""Alert hooks of the stream's task: notifiers or callables, called once for a problem and once when it is over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.observe.alerts import (
    ALERT_KINDS,
    FAILED,
    Alert,
    find_alert_changes,
    record_alert,
    record_failure,
    record_notified,
)
from airflow_provider_cdc.runtime.outages import tolerate_outage

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase

#: A notifier, a callable that accepts the context, or a sequence of these.
AlertHook = Callable[..., None] | Sequence[Callable[..., None]] | None
RECOVERED = "recovered"
#: Key of the alert in a hook's context.
CONTEXT_KEY = "cdc_alert"


class AlertHooks:
    """The hooks, by the kind of alert.

    :param hooks: by kind, as in the operator's arguments ``on_<kind>``, including ``recovered``.
    :raises TypeError: if a hook is not callable.
    """

    def __init__(self, **hooks: AlertHook) -> None:
        self._hooks = {kind: _as_list(f"on_{kind}", hook) for kind, hook in hooks.items()}

    @property
    def kinds(self) -> list[str]:
        """Kinds of alerts that have a hook."""
        return [kind for kind in ALERT_KINDS if self._hooks.get(kind)]

    def trigger_request(self, pipeline: Pipeline) -> dict[str, Any] | None:
        """Return the alerts that the trigger has to look for, as plain values, or ``None`` if there are none."""
        return {"kinds": self.kinds, "limits": asdict(pipeline.alerts)} if self.kinds else None

    def notify(self, context: Context, store: StateDatabase, pipeline: Pipeline, log: Any) -> None:
        """Call the hooks for all new alerts. Errors are logged and do not affect the stream."""
        from sqlalchemy.exc import SQLAlchemyError

        if not self.kinds:
            return
        try:
            for alert in find_alert_changes(store, pipeline.name, pipeline.alerts, self.kinds):
                record_alert(store, alert)
                self._call_hooks(alert, context, log)
                record_notified(store, alert)
        except (CdcError, SQLAlchemyError) as error:
            log.warning("alerts could not be read from the state database: %s", error)

    @contextmanager
    def notify_on_error(
        self,
        context: Context,
        open_state: Callable[[], AbstractContextManager[tuple[RunContext, StateDatabase]]],
        is_killed: Callable[[], bool],
        log: Any,
    ) -> Iterator[None]:
        """Call the hooks for an error that leaves the block, and for all other new alerts.

        :param open_state: opens the state database.
        :param is_killed: returns whether the task was killed, which is not a failure of the stream.
        """
        try:
            yield
        except CdcError as error:
            if self.kinds and not is_killed():
                with tolerate_outage(), open_state() as (run_context, store):
                    if FAILED in self.kinds:
                        record_failure(store, run_context.pipeline.name, str(error))
                    self.notify(context, store, run_context.pipeline, log)
            raise

    def _call_hooks(self, alert: Alert, context: Context, log: Any) -> None:
        log.info("%s%s", "resolved: " if alert.over else "", alert.detail)
        for hook in self._hooks[RECOVERED if alert.over else alert.kind]:
            try:
                # A notifier renders its fields in place, once. The copy leaves them unrendered for the next alert.
                copy.copy(hook)({**context, CONTEXT_KEY: alert.to_json()})
            except Exception:
                log.exception("a hook for %s failed", alert.kind)


def _as_list(name: str, hook: AlertHook) -> list[Callable[..., None]]:
    hooks = [] if hook is None else list(hook) if isinstance(hook, Sequence) else [hook]
    for listed_hook in hooks:
        if not callable(listed_hook):
            raise TypeError(f"{name} is {listed_hook!r}: give a notifier, or a callable that accepts the context")
    return hooks
