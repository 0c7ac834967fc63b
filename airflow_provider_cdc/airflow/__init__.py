"""The Airflow layer: operators, sensors, triggers, hooks, links, assets, lineage and the task group.

``task_group.cdc_pipeline`` builds the tasks of a pipeline. ``operators.cdc`` has the operators of the phases, each
thin: it makes a ``DriverRequest``, starts a driver, and maps its error to a task state (``operators.base``).
``operators.stream`` supervises the one running stream through the state database, deferred in the triggerer:
``triggers.cdc`` polls, ``operators.stream_epoch`` judges the end of an epoch. ``sensors.cdc`` waits for the snapshot.
``assets`` and ``openlineage`` tell other DAGs and lineage servers what has changed. ``hooks.connections`` resolves
connections. Loaded by Airflow, and by ``ui``; nothing else imports it.
"""
