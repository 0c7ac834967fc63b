"""``python -m airflow_provider_cdc`` is the same as ``airflow-cdc``."""

from airflow_provider_cdc.cli import main

if __name__ == "__main__":
    main()
