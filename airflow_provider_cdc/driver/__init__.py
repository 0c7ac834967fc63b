"""The process that a task starts to run Spark.

``launch`` starts each driver in a new session: ``start_attached`` for one that ends with its task, and
``start_detached`` for a stream, which outlives it. ``main.DriverRequest`` says what to do. It is sent with the
connections as one line of JSON on standard input, so that no secret is on a command line. ``main.main`` starts the
Spark session, runs the phase (``run_stream_epoch``, ``run_maintenance``, ``run_verification``, a chunk group or a
re-snapshot), and writes the outcome to a file. A new phase that needs Spark, or another way to deploy it, begins here.
The room is called by ``airflow.operators``; ``cli`` runs the same phases in its own process.
"""
