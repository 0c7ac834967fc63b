"""Checks before a pipeline starts: they report what would fail before anything is written.

``run.run_preflight`` returns a list of ``check_result.CheckResult``, each with a level, what was found, and the remedy.
``server.check_server`` checks the version, settings, grants and replication server ids, and ``tables.check_tables``
checks keys, columns, cascades and places in the sink. ``run`` itself checks the sink, the state of the storage, pyspark
and Java. ``require_preflight`` stops at the first error, and shows the warnings. A new requirement of the source gets
its check here and its line in docs/requirements.md. The room is called by ``airflow-cdc check``, by every command that
runs a phase, and by the operator of the task ``preflight``.
"""
