"""Kinds of :class:`~airflow_provider_cdc.model.plan_history.Suspension` that are no error."""

#: A table that was added and was not read yet, one that was removed, and one that somebody has asked to be suspended.
ADDED, REMOVED, REQUESTED = "added", "removed", "asked"
