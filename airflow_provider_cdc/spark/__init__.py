"""Spark itself: Java, the installation check, the session, and tasks.

``session.start_session`` starts Spark for a driver, locally or on a cluster, in client mode and with UTC. On a cluster,
it requires authentication and encryption. ``errors.translate_spark_errors`` finds the project's own error in what Spark
raises. ``session.open_cluster_session`` takes over the session of a driver that runs in a cluster, and
``resource_manager`` asks YARN about it. ``tasks.run_tasks`` sends pickled work to Spark's Python workers and returns
its results; no row passes through the JVM or the driver. ``java`` finds or installs a Java runtime, ``jvm`` starts it,
and ``install_check`` refuses a broken pyspark. ``early_start``, ``worker_daemon`` and ``class_archive`` make the start
cheaper, ``warm_up`` prepares a machine for it, and ``packed_environment`` makes an archive with the running Python
environment for others. Of MySQL and Delta, the room knows only the names of the modules that have machine code. It is
called by ``driver`` and ``cli``, which start the session, and by the modules
``spark_job`` and ``stream.spark_query``, which use it.
"""
