"""The page in Airflow: the state of every pipeline, read only from the state databases.

It shows no value of any row. That includes the bounds of chunks, which are keys.
"""
