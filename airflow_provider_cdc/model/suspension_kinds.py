"""Kinds of :class:`~airflow_provider_cdc.model.plan_history.Suspension` that are not errors."""

#: A table that was added and not read yet, one that was removed, and one that was suspended at the request of a user.
ADDED, REMOVED, REQUESTED = "added", "removed", "asked"
