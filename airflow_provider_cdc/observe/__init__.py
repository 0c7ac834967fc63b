"""Status, table state, lag, metrics and alerts.

``status.read_status`` returns what ``airflow-cdc status --json`` prints, and ``status_text`` turns it into text. A new
field of the status begins here. ``table_state`` computes the state of each table, and ``lag.measure_lag`` asks the
source how far the copy is behind. ``observer.Observer`` records both in the state database about once a minute while a
stream or a snapshot runs, so that the page, ``metrics`` and ``alerts`` do not need access to the source or the sink.
``prometheus`` serves the metrics as text. ``reporters`` print progress, ``log_lines`` formats the lines of a driver's
log and passes them on to a task's log, and ``stream_summary`` is a stream's line of each minute. The room is called by
``stream`` and ``driver`` to record, and by ``cli`` and ``airflow`` to show.
"""
