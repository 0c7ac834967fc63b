"""Services for every run: context, heartbeat, control requests, and detection of server restarts.

``run_context.RunContext`` is what each phase gets: a ``resolved_pipeline.ResolvedPipeline`` (the pipeline, its
connections, the storage, the sink and the reporter; it opens the state database and the binlog), and where Spark runs
its jobs. Its ``plans``, a ``plan_store.PlanStore``, make, load and check the plan. ``liveness.Heartbeat`` shows that a
stream is alive, and ``LivenessMonitor`` judges by its own clock whether another stream is alive.
``request_inbox.RequestInbox`` gives a running stream its control requests, which arrive with the heartbeat.
``server_restarts`` records that the server was restarted. ``background.BackgroundLoop`` is the base of worker threads,
and ``outages.tolerate_outage`` lets runs continue without the state database. A run context is made by ``cli``,
``airflow`` or ``driver``, and used by every phase.
"""
