"""The Airflow layer: operators, sensors, triggers, hooks, links, assets, lineage and the task group.

``task_group.cdc_pipeline`` builds the tasks of a pipeline. ``operators.cdc`` has the operators of the phases. Each
operator is thin: it makes a ``DriverRequest``, starts a driver, and maps the driver's error to a task state
(``operators.base``). ``operators.stream`` supervises the one running stream through the state database. While it is
deferred, ``triggers.cdc`` polls in the triggerer; ``operators.stream_epoch`` judges how an epoch ended. ``sensors.cdc``
waits for the snapshot. ``assets`` and ``openlineage`` tell other DAGs and lineage servers what has changed.
``hooks.connections`` resolves connections, and ``dag_file`` finds the pipelines of a DAG file. The room is loaded by
Airflow, by ``ui``, and by ``cli`` for a DAG file.
"""
