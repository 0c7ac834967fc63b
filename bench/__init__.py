"""Demos: `python -m bench.demo_airflow` (`make demo`) and `python -m bench.demo` (`make demo-core`)."""
