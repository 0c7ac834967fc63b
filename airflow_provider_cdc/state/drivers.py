"""Drivers that run in a cluster: who wants them, whether they live, and how they ended.

A driver is what its row says. Each change of the state is a compare-and-set, so a driver that comes late, after its
row was ended, never begins.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import case, delete, select, update

from airflow_provider_cdc.state.database import Database, execute_update
from airflow_provider_cdc.state.models import DriverRow, storable_text, utc_now

#: How long rows stay that no driver writes to: it has ended, or nobody wants it any more.
_KEEP = timedelta(days=7)


class DriverRecords(Database):
    """Reads and writes drivers."""

    def create_driver(
        self, driver: str, pipeline: str, *, what: str, requester: str, sealed: str, owner: str | None = None
    ) -> None:
        """Record that a driver is wanted, before anything is created in the cluster. Old rows are removed.

        :param driver: its id, a new one.
        :param what: its work, in human-readable form.
        :param requester: the task that wants it.
        :param sealed: the encrypted request.
        :param owner: the try of the task that it works for.
        """
        now = utc_now()
        old = delete(DriverRow).where(DriverRow.pipeline == pipeline, DriverRow.heartbeat_at < now - _KEEP)
        with self._write_session() as session:
            execute_update(session, old)
            row = DriverRow(id=driver, pipeline=pipeline, what=what, requester=requester, state="wanted", sealed=sealed)
            row.created_at = row.heartbeat_at = now
            row.owner = owner
            session.add(row)

    def change_driver_owner(self, driver: str, owner: str) -> None:
        """Record that a driver works for another try of its task from now on.

        :param owner: the try.
        """
        self._update(update(DriverRow).filter_by(id=driver).values(owner=owner))

    def record_submission(self, driver: str, handle: str, link: str | None = None, log: str | None = None) -> None:
        """Confirm a submission. Before that, the driver does not begin: its task may have been killed meanwhile.

        :param handle: id in the cluster.
        :param link: address of its page there.
        :param log: address of its log, unless the driver has recorded a better one.
        """
        values = {"handle": handle, "link": link, "log": case((DriverRow.log.is_(None), log), else_=DriverRow.log)}
        state = case((DriverRow.state == "wanted", "submitted"), else_=DriverRow.state)
        self._update(update(DriverRow).filter_by(id=driver).values(**values, state=state))

    def take_driver(self, driver: str, log: str | None) -> str | None:
        """Begin as a driver, and remove the sealed request from its row.

        :param log: address of the driver's log.
        :returns: the sealed request; ``None`` if the driver may not begin: its submission is not confirmed yet
            (``wanted``), it was ended, or another process has begun as this driver.
        """
        with self._write_session() as session:
            row = session.get(DriverRow, driver, with_for_update=True)
            sealed = row.sealed if row is not None else None
            taken = update(DriverRow).where(DriverRow.id == driver, DriverRow.state == "submitted")
            values = {"state": "running", "sealed": None, "heartbeat_at": utc_now(), "log": log}
            return sealed if execute_update(session, taken.values(values)) else None

    def record_driver_heartbeat(self, driver: str, last_line: str | None = None) -> bool | None:
        """Record that a driver is alive.

        :param last_line: last line of its log, without its time and level.
        :returns: whether it is still wanted; ``None`` if the state database does not know it.
        """
        values = {"heartbeat_at": utc_now(), "last_line": last_line and storable_text(last_line)}
        if self._update(update(DriverRow).filter_by(id=driver, state="running").values(values)):
            return True
        return None if self.driver(driver) is None else False

    def end_driver(self, driver: str, outcome: dict[str, Any], owner: str | None = None) -> bool:
        """Record how a driver has ended. Only the first end counts.

        :param outcome: ``{"outcome": ...}`` or ``{"error": {kind, message, remedy}}``, without secrets.
        :param owner: end it only if it works for this try of its task.
        :returns: whether this was the first.
        """
        if isinstance(error := outcome.get("error"), dict):
            texts = {name: storable_text(text) if isinstance(text, str) else text for name, text in error.items()}
            outcome = {"error": texts}
        values = {"state": "ended", "outcome": outcome, "sealed": None, "heartbeat_at": utc_now()}
        ended = update(DriverRow).where(DriverRow.id == driver, DriverRow.state != "ended").values(values)
        return self._update(ended if owner is None else ended.filter_by(owner=owner))

    def driver(self, driver: str) -> DriverRow | None:
        """Return a driver, or ``None``."""
        return self._read_row(DriverRow, driver)

    def live_drivers(self, pipeline: str) -> list[DriverRow]:
        """Return the drivers of a pipeline that have not ended, the oldest first."""
        rows = select(DriverRow).where(DriverRow.pipeline == pipeline, DriverRow.state != "ended")
        return self._read_rows(rows.order_by(DriverRow.created_at, DriverRow.id))
