"""The process that runs Spark for a task, and how it is started.

``launchers.launcher`` says what an operator may ask of a launcher. ``launchers.local`` starts a process on this host,
``launchers.yarn`` an application and ``launchers.kubernetes`` a pod in a cluster, whose row in the state database
stands before it (``launchers.cluster``). ``request.DriverRequest`` says what to do. A local driver gets it, with the
connections, as one line of JSON on standard input, so that no secret is on a command line; one in a cluster fetches it
(``cluster_driver``, ``launchers.sealed_request``). ``carry_out.carry_out`` runs one of the ``phases``
(``run_stream_epoch``, ``run_maintenance``, ``run_verification``, chunk groups or a re-snapshot), which open a
``spark_session``. A new phase that needs Spark, or another way to deploy it, begins here. The room is called by
``airflow.operators``; ``cli`` runs the same phases in its own process.
"""
