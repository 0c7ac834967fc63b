"""The main program of a driver that YARN runs.

Spark has started this process, and expects a Spark session from it at once.
"""

from __future__ import annotations

import faulthandler
import getpass
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.driver.cluster_driver import run_cluster_driver
from airflow_provider_cdc.driver.launchers.sealed_request import ALIAS, DriverSecret
from airflow_provider_cdc.model.errors import CdcError, NotReadyError
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME, log_to_standard_error
from airflow_provider_cdc.spark.session import open_cluster_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> int:
    """Carry out the request of this driver.

    :returns: exit code, which decides only what the cluster shows.
    """
    faulthandler.enable()
    log_to_standard_error(logging.INFO)
    # The home folder of a container may not exist; nothing in this folder is needed after the container.
    os.environ.setdefault("AIRFLOW_CDC_STATE_DIR", os.path.join(os.getcwd(), "airflow-cdc"))
    parent = os.getppid()
    spark = open_cluster_session()
    try:
        return run_cluster_driver(_read_secret(spark), _log_address(spark.sparkContext._jvm), parent)
    except CdcError as error:
        logging.getLogger(LOGGER_NAME).error("%s", error)
        return 1
    finally:
        with suppress(Exception):  # the work has stopped it already
            spark.stop()


def _read_secret(spark: SparkSession) -> DriverSecret:
    """Return the secret in the credentials of the application.

    :raises NotReadyError: if there is none: something else has started this program.
    """
    jvm: Any = spark.sparkContext._jvm
    credentials = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    secret = credentials.getSecretKey(jvm.org.apache.hadoop.io.Text(ALIAS))
    if secret is None:
        raise NotReadyError("the application's credentials have no request", "Start drivers by their operators only")
    return DriverSecret.from_bytes(bytes(secret))


def _log_address(jvm: Any) -> str | None:
    """Return the page of the logs of this container, from what YARN sets for each container."""
    node, port, container = (os.environ.get(name) for name in ("NM_HOST", "NM_HTTP_PORT", "CONTAINER_ID"))
    if not (node and port and container):
        return None
    user = os.environ.get("USER") or getpass.getuser()
    # http:// or https://, as the ResourceManager chooses it (yarn.http.policy).
    scheme = jvm.org.apache.hadoop.yarn.webapp.util.WebAppUtils.getHttpSchemePrefix(
        jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    )
    return f"{scheme}{node}:{port}/node/containerlogs/{container}/{user}"
