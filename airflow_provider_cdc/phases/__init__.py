"""The phases of a pipeline, one module each: preflight, plan, snapshot, stream, verify, status.

They know neither Airflow nor the command line, and Spark only as something that runs their tasks.
"""
