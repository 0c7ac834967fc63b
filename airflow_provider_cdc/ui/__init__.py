"""The page inside Airflow: what every pipeline does, read from the bookkeeping databases alone.

It shows no value of any row, also no bound of a chunk, which is a key.
"""
