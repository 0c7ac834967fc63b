"""Services for every run: context, heartbeat, control requests, and detection of server restarts.

``run_context.RunContext`` is what each phase gets: the pipeline, its connections, the storage, the sink and the
reporter. It opens the state database, makes or loads the plan (``ensure_plan``, ``load_plan``), and opens the binlog.
``liveness.Heartbeat`` shows that a stream is alive, and ``LivenessMonitor`` judges by its own clock whether another
stream is alive. ``request_inbox.RequestInbox`` gives a running stream its control requests, which arrive with the
heartbeat. ``server_restarts`` records that the server was restarted. ``background.BackgroundLoop`` is the base of
worker threads, and ``outages.tolerate_outage`` lets runs continue without the state database. A run context is made by
``cli``, ``airflow`` or ``driver``, and used by every phase.
"""
