"""The Airflow layer: operators, sensors, triggers, hooks, links, assets, lineage and the task group."""
