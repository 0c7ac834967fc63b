"""Alembic environment: runs inside the transaction that ``Database.open`` has begun."""

from alembic import context

from airflow_provider_cdc.state.database import VERSION_TABLE
from airflow_provider_cdc.state.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
