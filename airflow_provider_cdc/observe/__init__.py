"""Status, table state, lag, metrics and alerts.

``status.read_status`` returns what ``airflow-cdc status --json`` prints, and ``status_text`` turns it into text. A new
field of the status begins here. ``table_state`` computes the state of each table, and ``lag.measure_lag`` asks the
source how far the copy is behind. ``observer.Observer`` records both in the state database about once a minute while a
stream or a snapshot runs, so that the page, ``metrics`` and ``alerts`` do not need access to the source or the sink.
``prometheus`` serves the metrics as text. ``reporters`` print progress. The room is called by ``stream`` and ``driver``
to record, and by ``cli`` and ``airflow`` to show.
"""
