#!/bin/sh
# Runs before everything else: what the services share, and Airflow's tables. Running it again changes nothing.
set -eu
umask 077

# Each whole or not at all, and never on a command line.
{
    cat /opt/spark/spark-defaults.conf
    printf 'spark.authenticate.secret %s\n' "$SPARK_SECRET"
} >/opt/spark/conf/spark-defaults.conf.new
mv /opt/spark/conf/spark-defaults.conf.new /opt/spark/conf/spark-defaults.conf

python -c 'import json, os; print(json.dumps({"admin": os.environ["ADMIN_PASSWORD"]}))' >/opt/airflow/login/passwords.new
mv /opt/airflow/login/passwords.new /opt/airflow/login/passwords.json

exec airflow db migrate
