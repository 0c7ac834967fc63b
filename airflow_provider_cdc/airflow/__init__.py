"""The Airflow layer: operators, sensors, triggers, hooks, links, assets, lineage, the task group."""
