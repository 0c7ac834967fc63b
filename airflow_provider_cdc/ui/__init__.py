"""The page in Airflow: the state of every pipeline, all of it read from the state databases.

``plugin.CdcPlugin`` registers the page with Airflow. ``app.make_app`` has the routes, and every one of them requires
a user (``access``). ``state_databases`` finds and queries the databases, ``declared_tasks`` finds the pipelines that
DAGs declare, and ``views`` turns rows into JSON, which the scripts in ``static`` show. ``action_rules`` decides which
actions are possible now, and ``action_routes`` carries them out: it clears a task instance (``task_instances``) or
writes a control request. The page shows no value of any row, and reads neither source nor sink. Loaded by Airflow's
API server.
"""
