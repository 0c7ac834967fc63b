"""Metadata of this provider for Airflow. This module imports nothing, because Airflow reads it at startup."""

from __future__ import annotations

from typing import Any

_NAME = "Change data capture from MySQL"
_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")


def _file(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def _option(description: str, kind: str, default: str, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
    }


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, in the format of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-cdc",
        "name": _NAME,
        "description": "Copies a live MySQL database into Delta or Iceberg tables with Spark, kept up to date.",
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "hooks": [{"integration-name": _NAME, "python-modules": ["airflow_provider_cdc.airflow.hooks.mysql"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [f"airflow_provider_cdc.airflow.operators.{m}" for m in ("cdc", "stream", "control")],
            }
        ],
        "sensors": [{"integration-name": _NAME, "python-modules": ["airflow_provider_cdc.airflow.sensors.cdc"]}],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": [f"airflow_provider_cdc.airflow.triggers.{m}" for m in ("cdc", "asset_windows")],
            }
        ],
        "extra-links": [f"airflow_provider_cdc.airflow.links.cdc.{name}" for name in ("CdcPageLink", "SparkUiLink")],
        "config": {
            "cdc": {
                "description": "Settings of airflow-provider-cdc.",
                "options": {
                    "bookkeeping": _option(
                        "State databases that the page shows in addition to those of this Airflow's DAGs: "
                        "connection ids or absolute paths of SQLite files, separated by commas.",
                        "string",
                        "",
                        "cdc_state, /data/lake/_cdc/shop/bookkeeping.db",
                    ),
                    "default_deferrable": _option(
                        "Whether waiting tasks wait in the triggerer if their argument deferrable is not set. A task "
                        "whose driver would end with it always keeps its worker. [operators] default_deferrable is "
                        "ignored: it is not possible to tell whether its False was chosen, and with False a stream "
                        "occupies a worker slot permanently.",
                        "boolean",
                        "True",
                    ),
                    "poll_seconds": _option(
                        "Seconds between two checks of a stream if the argument poll_seconds is not set.",
                        "float",
                        "5",
                    ),
                    "report_seconds": _option(
                        "Seconds between two reports on a stream in its task's log and XComs.",
                        "float",
                        "60",
                    ),
                    "restart_timeout": _option(
                        "For how many seconds a stream that makes no progress is restarted after transient failures "
                        "before the task attempt fails, if the argument restart_timeout is not set. 0: no restarts.",
                        "float",
                        "86400",
                    ),
                    "lease_seconds": _option(
                        "Seconds without supervision by a task after which a stream ends itself, if the argument "
                        "lease_seconds is not set. 0: never.",
                        "float",
                        "0",
                        "3600",
                    ),
                },
            },
        },
        "connection-types": [
            {
                "connection-type": "cdc_mysql",
                "hook-class-name": "airflow_provider_cdc.airflow.hooks.mysql.CdcMySqlHook",
                "hook-name": "MySQL / MariaDB (CDC source)",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"login": "User (needs REPLICATION SLAVE, REPLICATION CLIENT, SELECT)"},
                    "placeholders": {"host": "db.example", "port": "3306", "login": "cdc"},
                },
                "conn-fields": {
                    "ssl_mode": {
                        "label": "TLS",
                        "description": "Automatic: a server on another host must prove its identity with its "
                        "certificate, including its name. REQUIRED and below do not check it",
                        # Without a default: a field that is left empty must stay unset.
                        "schema": {
                            "type": ["string", "null"],
                            "enum": [None, *_MODES],
                            "values_display": {"null": "Automatic", **{mode: mode for mode in _MODES}},
                        },
                    },
                    "ssl_ca": _file(
                        "CA file", "Certificate authority of the server's certificate. Empty: the system's"
                    ),
                    "ssl_cert": _file("Client certificate file", "For servers that require one"),
                    "ssl_key": _file("Client key file", "Key of the client certificate"),
                    "ssl_key_password": {
                        "label": "Client key password",
                        "description": "If the key is encrypted",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "unix_socket": _file("Socket file", "Instead of host and port"),
                },
            }
        ],
    }
