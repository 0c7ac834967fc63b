"""Alerts in the state database: current problems, and whether notifications were sent."""

from __future__ import annotations

from sqlalchemy import delete, exc, select, update

from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import AlertRow, storable_text, utc_now


class AlertRecords(Database):
    """Reads and writes active alerts."""

    def alerts(self, pipeline: str) -> list[AlertRow]:
        """Return the active alerts of a pipeline, ordered by kind and subject."""
        return self._read_rows(select(AlertRow).filter_by(pipeline=pipeline).order_by(AlertRow.kind, AlertRow.subject))

    def raise_alert(self, pipeline: str, kind: str, subject: str, detail: str) -> bool:
        """Record an alert.

        :param subject: the table, or empty.
        :return: whether the alert is new.
        """
        row = AlertRow(pipeline=pipeline, kind=kind, subject=subject, since=utc_now(), detail=storable_text(detail))
        try:
            with self._write_session() as session:
                session.add(row)
        except exc.IntegrityError:
            return False
        return True

    def mark_alert_notified(self, pipeline: str, kind: str, subject: str) -> None:
        """Record that the notification for an alert was sent."""
        alert = update(AlertRow).filter_by(pipeline=pipeline, kind=kind, subject=subject)
        self._update(alert.values(told_at=utc_now()))

    def clear_alert(self, pipeline: str, kind: str, subject: str) -> None:
        """Remove an alert, because the problem is over."""
        self._update(delete(AlertRow).filter_by(pipeline=pipeline, kind=kind, subject=subject))
