"""Airflow's triggers: they look at the bookkeeping database now and then, in a thread."""
