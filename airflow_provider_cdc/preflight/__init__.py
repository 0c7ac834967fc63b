"""Checks before a pipeline starts: everything that is going to fail, before anything is written.

``run.run_preflight`` returns a list of ``check_result.CheckResult``: level, what was found, and the remedy.
``server.check_server`` looks at version, settings, grants and replication server ids, and ``tables.check_tables`` at
keys, columns, cascades and places in the sink. ``run`` adds the sink, the state of the storage, pyspark and Java.
``require_preflight`` stops at the first error, and shows the warnings. A new requirement of the source gets its check
here and its line in docs/requirements.md. Called by ``airflow-cdc check``, before every command that runs a phase,
and by the operator of the task ``preflight``.
"""
