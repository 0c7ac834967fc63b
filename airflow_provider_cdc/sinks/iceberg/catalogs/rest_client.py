"""Requests to a REST catalog. Configuration, tokens and signatures are those of pyiceberg.

Bodies are JSON as it is sent, because pyiceberg cannot give the JSON of a table of version 3, and drops what it does
not understand. Nothing is repeated but a request that was refused because its token has expired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http.client import BadStatusLine, RemoteDisconnected
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_cdc.config.connections import scrub_secrets
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError, TransientError

if TYPE_CHECKING:
    import requests

#: Seconds to connect, and seconds for which the server may be silent.
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 60.0
#: Statuses of a token that has expired, or is wrong.
_TOKEN_REFUSED = (401, 419)
#: pyiceberg would ask for credentials for the files of tables, which nothing here uses.
_OWN_PROPERTIES = {"header.X-Iceberg-Access-Delegation": ""}
_CHECK_CREDENTIALS = "Correct login and password (client id and secret), or the token, in sink.conn_id"
#: What OpenSSL says of a server that answers in plain text.
_NOT_TLS = re.compile("WRONG_VERSION_NUMBER|wrong version number|UNKNOWN_PROTOCOL|RECORD_LAYER_FAILURE")
_CHECK_URI = "Correct the catalog's uri, which ends before /v1, and its warehouse"


@dataclass(frozen=True)
class RestResponse:
    """What a server has answered.

    :param status: HTTP status.
    :param body: JSON of the body; ``None`` if it has none.
    """

    status: int
    body: Any

    @property
    def error(self) -> str:
        """Type and message of an error."""
        error = self.body.get("error") if isinstance(self.body, Mapping) else None
        if not isinstance(error, Mapping):
            return f"HTTP status {self.status}"
        return f"{self.status} {error.get('type') or 'error'}: {str(error.get('message')).splitlines()[0][:300]}"


class ResponseLostError(TransientError):
    """A request was sent, and there is no answer, or none that can be read: the server may have done it."""


class RestClient:
    """Sends requests to one REST catalog.

    :param name: what messages call the catalog.
    :param properties: pyiceberg's properties of the catalog, such as ``uri`` and ``credential``.
    :param secrets: texts that no message may contain.
    """

    def __init__(self, name: str, properties: Mapping[str, Any], secrets: tuple[str, ...]) -> None:
        self._name, self._secrets = name, secrets
        self._properties = {**properties, **_OWN_PROPERTIES}
        self._catalog: Any = None

    def open(self) -> None:
        """Ask the server for its configuration, unless that was done before.

        :raises TransientError: if it does not answer.
        :raises NotReadyError: if it is no catalog, or cannot be used with these properties.
        """
        self._open()

    @property
    def warehouse(self) -> str:
        """Name of the warehouse in the properties; empty if there is none."""
        return scrub_secrets(str(self._properties.get("warehouse") or ""), self._secrets)

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> RestResponse:
        """Send one request.

        :param path: path below the prefix of the catalog, such as that of :meth:`table_path`.
        :param body: JSON to send.
        :raises ResponseLostError: if it was sent, and there is no usable answer.
        :raises TransientError: if it could not be sent.
        :raises NotReadyError: if the catalog cannot be used with these properties.
        """
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        response = self._send(method, path, data, query)
        if response.status in _TOKEN_REFUSED and "credential" in self._properties:
            self._catalog = None  # gets a new token
            response = self._send(method, path, data, query)
        if response.status in _TOKEN_REFUSED:
            raise self._make_error(NotReadyError, response.error, _CHECK_CREDENTIALS)
        return response

    def table_path(self, namespace: tuple[str, ...], table: str | None = None) -> str:
        """Return the path of a table, or of the tables of a namespace."""
        tables = f"{self.namespace_path(namespace)}/tables"
        return tables if table is None else f"{tables}/{quote(table, safe='')}"

    def namespace_path(self, namespace: tuple[str, ...]) -> str:
        """Return the path of a namespace."""
        separator = str(self._open().properties.get("namespace-separator") or "%1F")
        return f"namespaces/{quote_separator(separator).join(quote(level, safe='') for level in namespace)}"

    def refuse(self, response: RestResponse, operation: str) -> CdcError:
        """Make the error for an answer that the caller does not expect.

        :param operation: what was tried, and with which table.
        """
        what = f"{response.error}, in answer to: {operation}"
        if response.status == 403:
            return self._make_error(NotReadyError, what, "Grant this client the right to do that")
        if response.status == 429 or response.status >= 500:
            return self._make_error(TransientError, what, "Run again when the catalog works")
        return self._make_error(TerminalError, what, "See what the catalog says; correct the settings, or the table")

    def _send(self, method: str, path: str, data: bytes | None, query: Mapping[str, str]) -> RestResponse:
        import requests

        catalog = self._open()
        try:
            response: requests.Response = catalog.http.request(method, catalog.url(path), data=data, params=query)
            body = response.json() if response.content else None
        except requests.exceptions.JSONDecodeError:
            if response.status_code < 400:
                raise self._make_error(ResponseLostError, "the answer is not JSON", _CHECK_URI) from None
            body = None
        except requests.exceptions.RequestException as error:
            raise self._translate_request_error(error) from None
        return RestResponse(response.status_code, body)

    def _open(self) -> Any:
        if self._catalog is None:
            if find_spec("pyiceberg") is None:
                raise NotReadyError(
                    f"{self._name} needs pyiceberg, which is not installed",
                    'Run on every host: pip install "airflow-provider-cdc[iceberg]"',
                )
            self._catalog = self._connect()
        return self._catalog

    def _connect(self) -> Any:
        """Return pyiceberg's catalog, which has asked the server for its configuration and, if need be, a token."""
        import requests
        from pyiceberg import exceptions
        from pyiceberg.catalog.rest import RestCatalog as PyicebergCatalog

        class CatalogWithTimeouts(PyicebergCatalog):
            """Its sessions wait for a limited time, and the last one is that of all further requests."""

            http: requests.Session

            def _config_headers(self, session: requests.Session) -> None:
                super()._config_headers(session)
                timeouts = CONNECT_SECONDS, SILENCE_SECONDS
                session.request = partial(session.request, timeout=timeouts)  # type: ignore[method-assign]
                self.http = session

        try:
            return CatalogWithTimeouts("cdc", **self._properties)
        except requests.exceptions.JSONDecodeError as error:
            raise self._make_error(NotReadyError, str(error), _CHECK_URI) from None
        except requests.exceptions.RequestException as error:
            raise self._translate_request_error(error, if_lost=TransientError) from None
        except (exceptions.OAuthError, exceptions.UnauthorizedError, exceptions.AuthorizationExpiredError) as error:
            raise self._make_error(NotReadyError, str(error), _CHECK_CREDENTIALS) from None
        except exceptions.ForbiddenError as error:
            raise self._make_error(NotReadyError, str(error), "Grant this client the right to use it") from None
        except (exceptions.ServerError, exceptions.ServiceUnavailableError, exceptions.TooManyRequestsError) as error:
            raise self._make_error(TransientError, str(error), "Run again when the catalog works") from None
        except (exceptions.RESTError, NotImplementedError, ValueError, ImportError) as error:
            # ValueError: pydantic's ValidationError is one.
            raise self._make_error(NotReadyError, str(error), _CHECK_URI) from None

    def _translate_request_error(
        self, error: requests.exceptions.RequestException, if_lost: type[CdcError] = ResponseLostError
    ) -> CdcError:
        import requests
        from urllib3.exceptions import NewConnectionError

        cause = getattr(error.args[0], "reason", error.args[0]) if error.args else error
        text = str(cause).rpartition(": ")[2] or type(error).__name__
        if isinstance(error, requests.exceptions.InvalidSchema | requests.exceptions.InvalidURL):
            return self._make_error(NotReadyError, text, _CHECK_URI)
        if isinstance(error, requests.exceptions.SSLError):
            if _NOT_TLS.search(str(cause)):
                return self._make_error(
                    NotReadyError,
                    "the server speaks http, not https",
                    "Correct the catalog's uri, or let the server use TLS",
                )
            return self._make_error(
                NotReadyError,
                text,
                "The server must prove its identity: name the authority in the extra ssl.cabundle",
            )
        if isinstance(error, requests.exceptions.ConnectTimeout) or isinstance(cause, NewConnectionError):
            return self._make_error(TransientError, text, "Check that it runs, and the network path to it")
        if if_lost is TransientError and _is_no_http(cause):  # nothing was asked for yet
            return self._make_error(NotReadyError, "the server does not speak http", _CHECK_URI)
        return self._make_error(if_lost, text, "Run again when it answers")

    def _make_error(self, kind: type[CdcError], cause: str, remedy: str) -> CdcError:
        line = cause.strip().splitlines()[0][:400] if cause.strip() else kind.__name__
        return kind(scrub_secrets(f"{self._name}: {line}", self._secrets), remedy)


def _is_no_http(cause: object) -> bool:
    """Return whether the server has answered something else than HTTP; that it hung up may be temporary."""
    inner = cause.args[-1] if isinstance(cause, Exception) and cause.args else cause
    return isinstance(inner, BadStatusLine) and not isinstance(inner, RemoteDisconnected)


def quote_separator(separator: str) -> str:
    """Return the separator of the levels of a namespace in paths, which servers give percent-encoded or not."""
    return separator if separator.startswith("%") else quote(separator, safe="")
