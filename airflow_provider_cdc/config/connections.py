"""Connections in Airflow's formats, read from the environment, so that no Airflow database is needed.

``AIRFLOW_CONN_<ID>`` contains a URI (``mysql://user:password@host:3306/``, percent-encoded) or JSON. Messages never
quote it: a mistyped URI may reveal part of the password.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from airflow_provider_cdc.config.spark_conf import (
    CONNECT_TYPE,
    KUBERNETES_CONNECTION,
    NAMESPACE,
    RESOURCE_MANAGER,
    ConnectServer,
    KubernetesCluster,
    YarnCluster,
    check_master,
    parse_connect_server,
    parse_deploy_mode,
)
from airflow_provider_cdc.config.store_access import secrets_in_extra
from airflow_provider_cdc.config.tls import (
    FLAG_SETTINGS,
    PATH_SETTINGS,
    TlsSettings,
    postgres_tls_risk,
    postgres_tls_settings,
)
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from sqlalchemy import URL

#: Connection types of a source server.
MYSQL_TYPES = ("mysql", "mariadb", "cdc_mysql")

# Settings of Airflow's own MySQL hook that the project overrides; other tasks may use the same connection.
_IGNORED_MYSQL_EXTRA = ("charset", "client", "cursor", "local_infile", "use_unicode")
_MYSQL_EXTRA = ("ssl_mode", *PATH_SETTINGS, "ssl_key_password", *FLAG_SETTINGS, "ssl", "unix_socket")
_POSTGRES_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "require_auth", "channel_binding", "gssencmode")
_POSTGRES_EXTRA = (*_POSTGRES_TLS, "connect_timeout", "application_name", "options")
#: The first libpq that supports sslrootcert=system and require_auth.
_MIN_LIBPQ = 160000
_POSTGRES_DRIVERS = ("psycopg", "psycopg2")
# Connection types of a Spark master: the type in Airflow's form, or the scheme of an address.
_SPARK_TYPES = ("spark", "yarn", "k8s", "local")
# Without effect: they are for the cluster mode of standalone clusters, which Python drivers do not have.
_SPARK_IGNORED = ("rest-scheme", "rest-port")
_SPARK_EXTRA = (
    *("queue", "namespace", "deploy-mode", RESOURCE_MANAGER, KUBERNETES_CONNECTION, "spark-binary"),
    *_SPARK_IGNORED,
)
# Connections, variables, settings (including database address and keys), the context of the task, start-up messages.
_AIRFLOW_VARIABLE = re.compile(r"_*AIRFLOW_(?!(?:HOME|CDC_STATE_DIR)$)")


@dataclass(frozen=True)
class ResolvedConnection:
    """A resolved connection. Its ``repr`` shows no secret.

    :param conn_id: the id it was resolved from.
    :param conn_type: such as ``mysql``, ``postgres`` or ``sqlite``; in lower case, with underscores.
    :param host: host name or address.
    :param login: user.
    :param password: password in plain text.
    :param port: port.
    :param schema: name of the database.
    :param extra: everything else.
    """

    conn_id: str
    conn_type: str
    host: str | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    port: int | None = None
    schema: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """All texts in the connection that :func:`scrub_secrets` must replace."""
        values = [self.password, self.extra.get("ssl_key_password"), *secrets_in_extra(self.extra)]
        if isinstance(ssl := self.extra.get("ssl"), Mapping):
            values.append(ssl.get("password"))
        return tuple(str(secret) for secret in values if secret)

    def to_json(self) -> dict[str, Any]:
        """Return plain values **with the secrets**: pass them to the standard input of a process, never store them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ResolvedConnection:
        """Make a connection from the values of :meth:`to_json`, or of Airflow's JSON form and a ``conn_id``.

        :raises ValueError, TypeError, LookupError: if they are not valid; the message may contain a secret.
        """
        extra = value.get("extra") or {}
        if isinstance(extra, str):
            extra = json.loads(extra)
        texts = {key: value.get(key) for key in ("host", "login", "password", "schema")}
        if not isinstance(extra, dict) or not all(v is None or isinstance(v, str) for v in texts.values()):
            raise TypeError
        port = int(value["port"]) if value.get("port") not in (None, "") else None
        return cls(value["conn_id"], _normalize_conn_type(value["conn_type"]), port=port, extra=extra, **texts)


def env_variable_name(conn_id: str) -> str:
    """Return the name of the environment variable for a connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def resolve_connection(conn_id: str) -> ResolvedConnection:
    """Read a connection from the environment, as Airflow does.

    :param conn_id: id of the connection.
    :raises NotReadyError: if the variable is missing or cannot be parsed.
    """
    name = env_variable_name(conn_id)
    text = os.environ.get(name, "").strip()
    if not text:
        raise NotReadyError(
            f"connection {conn_id} is not defined",
            f"Set the environment variable {name}, for example to mysql://user:password@host:3306/",
        )
    return _parse_connection(conn_id, text, f"the value of {name}")


def read_connection_file(path: str) -> ResolvedConnection:
    """Read a connection from a file, such as a mounted secret, in the formats of the environment variables.

    :param path: path of the file, which also serves as the connection's id.
    :raises NotReadyError: if the file cannot be read or parsed.
    """
    try:
        text = Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise NotReadyError(
            f"connection file {path} cannot be read ({type(error).__name__})",
            "It must contain a URI such as mysql://user:password@host:3306/, and exist on every host",
        ) from None
    return _parse_connection(path, text, "its content")


def _parse_connection(conn_id: str, text: str, what: str) -> ResolvedConnection:
    try:
        if text.startswith("{"):
            return ResolvedConnection.from_json({**json.loads(text), "conn_id": conn_id})
        return _parse_uri(conn_id, text)
    except (ValueError, TypeError, LookupError):
        # Neither chained nor quoted: the text contains the password.
        raise NotReadyError(
            f"connection {conn_id}: {what} cannot be understood",
            "Write type://user:password@host:port/database with special characters percent-encoded, or a JSON object",
        ) from None


def _normalize_conn_type(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.+-]*", value):
        raise ValueError
    kind = value.lower().replace("-", "_")
    return "postgres" if kind == "postgresql" else kind


def _parse_uri(conn_id: str, text: str) -> ResolvedConnection:
    # The scheme of a URL may not contain an underscore, but Airflow accepts both cdc_mysql:// and cdc-mysql://.
    kind, separator, rest = text.partition("://")
    if not separator:
        raise ValueError
    # An address within the address, such as k8s://https://host:443: the inner scheme belongs to the host.
    protocol = ""
    if inner := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", rest):
        protocol, rest = inner[0], rest[inner.end() :]
    parts = urlsplit("//" + rest)
    if parts.fragment or ("@" in rest and "@" not in parts.netloc):  # '#', '/' or '?' in the password, not encoded
        raise ValueError
    extra: Any = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "__extra__" in extra:
        extra = json.loads(extra["__extra__"])
    else:
        extra = {key: _json_or_text(value) for key, value in extra.items()}
    if not isinstance(extra, dict):
        raise TypeError
    # Not parts.hostname, which is in lower case: the "host" of SQLite is a path.
    host = re.sub(r":\d*$", "", parts.netloc.rpartition("@")[2]).strip("[]")
    return ResolvedConnection(
        conn_id,
        _normalize_conn_type(kind),
        host=(protocol + unquote(host)) if host else None,
        login=unquote(parts.username) if parts.username is not None else None,
        password=unquote(parts.password) if parts.password is not None else None,
        port=parts.port,
        schema=unquote(parts.path[1:]) or None,
        extra=extra,
    )


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def mysql_connect_args(conn: ResolvedConnection) -> dict[str, Any]:
    """Return arguments for :class:`~airflow_provider_cdc.mysql.client.verified_connection.VerifiedConnection`.

    Supported extras are ``unix_socket``, ``ssl_mode`` and the others of :mod:`airflow_provider_cdc.config.tls`.
    ``charset``, ``cursor`` and similar extras of Airflow's MySQL hook are ignored; any other extra is rejected.

    :param conn: connection of type mysql, mariadb or cdc_mysql. Its ``schema`` is not used, because a pipeline names
        databases.
    :raises NotReadyError: for another type, or extras that contradict each other or would have no effect.
    """
    if conn.conn_type not in MYSQL_TYPES:
        raise NotReadyError(
            f"connection {conn.conn_id} is of type {conn.conn_type}", f"It must be one of {', '.join(MYSQL_TYPES)}"
        )
    args: dict[str, Any] = {
        "host": conn.host or "127.0.0.1",
        "port": conn.port or 3306,
        "user": conn.login or "",
        # As bytes: pymysql would encode text as Latin-1, which is not possible for every password.
        "password": (conn.password or "").encode(),
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": 10,
    }
    return args | _mysql_extra(conn)


def _mysql_extra(conn: ResolvedConnection) -> dict[str, str]:
    """Return the socket and the TLS settings, expressed by ``ssl_mode``."""
    _refuse_unknown(conn, (*_MYSQL_EXTRA, *_IGNORED_MYSQL_EXTRA))
    socket = {"unix_socket": str(conn.extra["unix_socket"])} if conn.extra.get("unix_socket") else {}
    return {
        **socket,
        **TlsSettings.from_settings(f"connection {conn.conn_id}", {**conn.extra, "host": conn.host}).as_settings(),
    }


def connection_risk(args_or_url: Mapping[str, Any] | URL) -> str | None:
    """Return why a connection to a server is unsafe; ``None`` if it is safe.

    :param args_or_url: result of :func:`mysql_connect_args` or :func:`database_url`.
    """
    if isinstance(args_or_url, Mapping):
        return TlsSettings.from_settings("the connection", args_or_url).risk
    if args_or_url.get_backend_name() == "postgresql":
        return postgres_tls_risk(args_or_url.host, args_or_url.query)
    if args_or_url.get_backend_name() == "sqlite":
        return None
    return TlsSettings.from_settings("the connection", {**args_or_url.query, "host": args_or_url.host}).risk


def _refuse_unknown(conn: ResolvedConnection, known: Iterable[str]) -> None:
    """Reject unknown extras: one that is ignored may be the one that makes the connection safe."""
    known = tuple(known)
    for key in conn.extra:
        if key not in known:
            raise NotReadyError(
                f"connection {conn.conn_id}: extra {key!r} is not known", f"Use only {', '.join(known)}"
            )


def database_url(conn: ResolvedConnection) -> URL:
    """Return the SQLAlchemy URL of the state database.

    :param conn: connection of type sqlite (the path as host or schema), postgres, mysql or mariadb.
    :raises NotReadyError: for another type, an extra that would have no effect, or a missing driver.
    """
    from sqlalchemy import URL

    if conn.conn_type == "sqlite":
        path = conn.host or conn.schema
        if not path or not os.path.isabs(path):
            raise NotReadyError(
                f"connection {conn.conn_id} does not name an absolute path",
                "Write sqlite:////data/state.db, with four slashes",
            )
        return URL.create("sqlite", database=path)
    query: dict[str, str]
    if conn.conn_type == "postgres":
        driver = next((name for name in _POSTGRES_DRIVERS if importlib.util.find_spec(name)), None)
        if driver is None:
            raise NotReadyError("no PostgreSQL driver is installed", 'Run: pip install "psycopg[binary]"')
        drivername, port, query = f"postgresql+{driver}", conn.port or 5432, _postgres_extra(conn, driver)
    elif conn.conn_type in MYSQL_TYPES:
        drivername, port = "mysql+pymysql", conn.port or 3306
        query = {"charset": "utf8mb4", **_mysql_extra(conn)}
    else:
        raise NotReadyError(f"connection {conn.conn_id} is of type {conn.conn_type}", "Use sqlite, postgres or mysql")
    if not conn.schema:
        raise NotReadyError(f"connection {conn.conn_id} names no database", "Add it after the last slash of the URI")
    return URL.create(drivername, conn.login, conn.password, conn.host or "127.0.0.1", port, conn.schema, query)


def _postgres_extra(conn: ResolvedConnection, driver: str) -> dict[str, str]:
    _refuse_unknown(conn, _POSTGRES_EXTRA)
    parameters = {key: str(value) for key, value in conn.extra.items() if value not in (None, "")}
    query = postgres_tls_settings(f"connection {conn.conn_id}", conn.host, parameters)
    if "require_auth" in query or query.get("sslrootcert") == "system":
        pq: Any = importlib.import_module("psycopg.pq" if driver == "psycopg" else "psycopg2.extensions")
        version = pq.version() if driver == "psycopg" else pq.libpq_version()
        if version < _MIN_LIBPQ:
            raise NotReadyError(
                f"connection {conn.conn_id}: libpq {version // 10000} supports neither sslrootcert=system nor "
                "require_auth",
                'Run: pip install "psycopg[binary]"; or give sslmode=verify-full and sslrootcert',
            )
    return query


def spark_master_and_conf(conn: ResolvedConnection) -> tuple[str, dict[str, str]]:
    """Return master and settings of a Spark connection, read as the hook of Airflow's Spark provider does.

    Supported extras are ``queue`` (YARN), ``namespace`` (Kubernetes), and those of :func:`spark_cluster`. Extras for
    standalone clusters, and default names of programs, are ignored; any other extra is rejected.

    :param conn: connection of type spark, or of a type that is the scheme of the master: yarn, k8s or local.
    :returns: the master, and settings (name -> text).
    :raises NotReadyError: for another type or master, or an extra that would have no effect.
    """
    what = f"connection {conn.conn_id}"
    if conn.conn_type not in _SPARK_TYPES:
        types = ", ".join((*_SPARK_TYPES, CONNECT_TYPE))
        raise NotReadyError(f"{what} is of type {conn.conn_type}", f"It must be one of {types}")
    for key in ("keytab", "principal"):
        if conn.extra.get(key):
            raise NotReadyError(
                f"{what}: extra {key!r} is not supported",
                "Give the user of the Airflow workers a Kerberos ticket (kinit) instead",
            )
    if conn.login or conn.password:
        raise NotReadyError(f"{what} has a login or password, but no Spark master asks for one", "Remove them")
    extra = {key: value for key, value in conn.extra.items() if value not in (None, "")}
    _refuse_unknown(dataclasses.replace(conn, extra=extra), _SPARK_EXTRA)
    if extra.get("spark-binary", "spark-submit") != "spark-submit":
        raise NotReadyError(f"{what}: extra 'spark-binary' is not supported", "Leave it out: pyspark starts its own")
    if conn.conn_type == "spark" and conn.host and ("://" in conn.host or not conn.port):
        master = conn.host
    else:
        master = f"{conn.conn_type}://{conn.host or ''}"
    if conn.port:
        master = f"{master}:{conn.port}"
    if master in ("yarn://", "local://"):  # the hook keeps the slashes, Spark accepts none
        master = conn.conn_type
    check_master(f"the master of {what}", master)
    conf = {}
    for name, kind, setting in (("queue", "yarn", "spark.yarn.queue"), ("namespace", "k8s", NAMESPACE)):
        if name not in extra:
            continue
        if master.partition("://")[0] != kind:
            raise NotReadyError(f"{what}: extra {name!r} has no effect with master {master}", "Leave it out")
        conf[setting] = str(extra[name])
    return master, conf


def with_pod_namespace(conf: Mapping[str, str], kubernetes: ResolvedConnection) -> dict[str, str]:
    """Return the settings of a driver's pod with the namespace that the connection of type kubernetes names, if any.

    :param conf: Spark settings.
    :raises NotReadyError: if the settings name another one.
    """
    known = {key.removeprefix("extra__kubernetes__"): value for key, value in kubernetes.extra.items() if value}
    named = known.get("namespace")
    chosen = conf.get(NAMESPACE, named)
    if named and chosen != named:
        raise NotReadyError(
            f"the Spark connection (or spark.conf) names the namespace {chosen}, and connection {kubernetes.conn_id} "
            f"the namespace {named}",
            "Leave one of them out",
        )
    return {**conf, NAMESPACE: chosen} if chosen else dict(conf)


def connect_server(conn: ResolvedConnection) -> ConnectServer | None:
    """Return the Spark Connect server that a connection names; ``None`` if its type is another one.

    :raises NotReadyError: if it is not valid.
    """
    if conn.conn_type != CONNECT_TYPE:
        return None
    return parse_connect_server(conn.conn_id, conn.host, conn.port, conn.login, conn.password, conn.extra)


def spark_cluster(conn: ResolvedConnection) -> YarnCluster | KubernetesCluster | None:
    """Return the cluster that runs the drivers, according to the extra ``deploy-mode``; ``None`` in client mode.

    :raises NotReadyError: if the connection is not valid.
    """
    master, _ = spark_master_and_conf(conn)
    extra = {key: value for key, value in conn.extra.items() if value not in (None, "")}
    return parse_deploy_mode(f"connection {conn.conn_id}", master, extra)


def environment_without_airflow() -> dict[str, str]:
    """Return a copy of the environment without Airflow's variables, for processes that need none of its secrets."""
    return {name: value for name, value in os.environ.items() if not _AIRFLOW_VARIABLE.match(name)}


def remove_airflow_variables() -> tuple[str, ...]:
    """Remove Airflow's variables from the environment of this process.

    ``AIRFLOW_HOME`` and the path of the folder in which this project stores state are kept. Called before a JVM starts,
    so that it and its children inherit no secrets.

    :return: names of the variables that were removed.
    """
    names = tuple(name for name in os.environ if _AIRFLOW_VARIABLE.match(name))
    for name in names:
        del os.environ[name]
    return names


def scrub_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text by ``***``: unchanged, percent-encoded, and escaped as in JSON or Python.

    :param text: text that is about to be shown or stored.
    :param secrets: secrets in plain text; empty ones are ignored.
    """
    forms: set[str] = set()
    for secret in filter(None, secrets):
        for form in (quote(secret), quote(secret, safe=""), quote_plus(secret)):
            forms |= {form, re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), form)}
        forms |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
        forms |= {repr(secret)[1:-1], repr(secret.encode())[2:-1]}
    if not forms:
        return text
    # One pass, longest first, because a secret may be part of another.
    return re.sub("|".join(map(re.escape, sorted(forms, key=len, reverse=True))), "***", text)
