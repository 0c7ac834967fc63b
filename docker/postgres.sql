-- Airflow's own tables and the state database of the pipelines: two databases, each with its own user.
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv bookkeeping_password BOOKKEEPING_DB_PASSWORD
CREATE USER airflow PASSWORD :'airflow_password';
CREATE DATABASE airflow OWNER airflow;
CREATE USER bookkeeping PASSWORD :'bookkeeping_password';
CREATE DATABASE bookkeeping OWNER bookkeeping;
REVOKE CONNECT ON DATABASE airflow, bookkeeping FROM PUBLIC;
