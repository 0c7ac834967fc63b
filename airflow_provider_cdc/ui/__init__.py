"""The page in Airflow that shows the state of every pipeline, which it reads from the state databases.

``plugin.CdcPlugin`` registers the page with Airflow. ``app.make_app`` defines the routes, all of which require a user
(``access``). ``state_databases`` finds and queries the databases, ``declared_tasks`` finds the pipelines that DAGs
declare, and ``views`` turns rows into JSON, which the scripts in ``static`` show. ``action_rules`` decides which
actions are possible now, and ``action_routes`` carries them out: it clears a task instance (``task_instances``) or
writes a control request. The page shows no row values, and reads neither the source nor the sink. The room is loaded by
Airflow's API server.
"""
