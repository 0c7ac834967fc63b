"""The REST interface of YARN's ResourceManager, and the logs that its NodeManagers serve."""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.system.processes import tail_log

#: Seconds for an answer. Airflow kills a task 5 s after it has asked it to end.
_TIMEOUT = 5.0
_OVER = ("FINISHED", "FAILED", "KILLED")
_STANDBY = "Check its address, and that one of the ResourceManagers is active (yarn rmadmin -getAllServiceState)"
_CONTAINER_PAGE = re.compile(r"(https?://[^/]+)/node/containerlogs/([^/]+)/[^/]+/?")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Repeats a PUT, too, at the active ResourceManager that a standby names: urllib does so only with a GET."""

    max_redirections = 2

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            return None
        if req.get_method() == "PUT" and code in (307, 308):
            return urllib.request.Request(newurl, req.data, req.headers, method="PUT")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(_Redirects)


def driver_tag(driver: str) -> str:
    """Return the tag by which the application of a driver is found."""
    return f"airflow-cdc-{driver}"


@dataclass(frozen=True)
class Application:
    """An application as the ResourceManager knows it.

    :param id: its id.
    :param state: such as ``ACCEPTED``, ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
    :param outcome: such as ``SUCCEEDED`` or ``UNDEFINED``.
    :param diagnostics: why it waits, or how it ended.
    :param log: address of the log of its driver; ``None`` before it runs.
    :param link: address of its page, which is Spark's own while it runs.
    """

    id: str
    state: str
    outcome: str
    diagnostics: str
    log: str | None
    link: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER

    @property
    def is_active(self) -> bool:
        """Whether YARN still runs it, or is about to."""
        return not self.is_over

    def __str__(self) -> str:
        text = f"application {self.id} is {self.state}"
        return f"{text}: {self.diagnostics}" if self.diagnostics else text


class ResourceManager:
    """The ResourceManager of a cluster.

    :param address: address of its web application; if there are several, they are separated by commas.
    """

    name = "YARN"
    #: Seconds after which an application is lost that an answering ResourceManager does not know. After a restart, it
    #: knows its applications only when they have reported back.
    unknown_seconds = 60.0

    def __init__(self, address: str) -> None:
        self._addresses = address.split(",")
        #: The address that has answered last.
        self.address = self._addresses[0]

    def check(self) -> str:
        """Return the version of Hadoop.

        :raises CdcError: if it does not answer as a ResourceManager does.
        """
        info = self._request("GET", "info").get("clusterInfo", {})
        if info.get("state") != "STARTED":
            raise TransientError(f"YARN's ResourceManager at {self.address} is {info.get('state')}", "Start it")
        return str(info.get("resourceManagerVersion"))

    def find_job(self, driver: str) -> Application | None:
        """Return the newest application with the tag of a driver, or ``None``."""
        found = (self._request("GET", "apps", applicationTags=driver_tag(driver)).get("apps") or {}).get("app") or []
        return max(map(self._to_application, found), key=lambda app: app.id, default=None)

    def kill(self, job: str) -> None:
        """Kill an application. It may take a moment to end. A failure is logged: callers are about to end themselves.

        :raises NotReadyError: if YARN refuses this.
        :raises TransientError: if it does not answer.
        """
        try:
            self._request("PUT", f"apps/{quote(job)}/state", body={"state": "KILLED"})
        except CdcError as error:
            logging.getLogger(__name__).warning(
                "YARN has not killed %s, which may go on: %s. To kill it by hand: yarn application -kill %s",
                *(job, error, job),
            )
            raise

    def clean_up(self, job: str) -> None:
        """Do nothing: YARN removes what is left of an application itself."""

    def clean_up_by_log(self, log: str | None) -> None:
        """Do nothing, for the same reason."""

    def tail_log(self, log: str | None, lines: int) -> list[str]:
        """Return the last lines of a driver's log; empty if it cannot be read from here."""
        return tail_driver_log(log, lines)

    def kill_by_log(self, log: str | None) -> bool:
        """Kill the application whose driver has a log.

        :param log: page of the container's log.
        :returns: whether YARN has accepted this.
        """
        application = _application_of(log)
        if application is None:
            return False
        try:
            self.kill(application)
        except CdcError:
            return False
        return True

    def describe_by_log(self, log: str | None) -> str:
        """Return what YARN says about the application whose driver has a log; empty if it does not say anything."""
        application = _application_of(log)
        if application is None:
            return ""
        try:
            return str(self._to_application(self._request("GET", f"apps/{quote(application)}")["app"]))
        except (CdcError, KeyError):
            return ""

    def _to_application(self, app: dict[str, Any]) -> Application:
        diagnostics = " ".join(str(app.get("diagnostics") or "").split())
        page = f"{self.address}/proxy/{app['id']}/"
        return Application(app["id"], app["state"], app["finalStatus"], diagnostics, app.get("amContainerLogs"), page)

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> dict[str, Any]:
        failures: list[TransientError] = []
        for address in sorted(self._addresses, key=lambda one: one != self.address):
            try:
                value = _request_at(address, method, f"{path}?{urlencode({**query, **_user()})}", body)
            except TransientError as error:
                failures.append(error)
            else:
                self.address = address
                return value
        raise TransientError("; ".join(error.message for error in failures), failures[-1].remedy)


def _user() -> dict[str, str]:
    """Return the parameter of a request with the user, as Hadoop's own programs determine it without Kerberos."""
    name = os.environ.get("HADOOP_USER_NAME")
    with suppress(KeyError, OSError):  # in a container, a user may have no name
        name = name or getpass.getuser()
    return {"user.name": name} if name else {}


def _request_at(address: str, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/ws/v1/cluster/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Accept": "application/json", "Content-Type": "application/json"},
    )
    what = f"YARN's ResourceManager at {address}"
    try:
        with _opener.open(request, timeout=_TIMEOUT) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise NotReadyError(
                f"{what} refuses {method} {path.partition('?')[0]} ({error.code})",
                "Give the user of the task the right to view and to end its applications there. Kerberos is not "
                "supported for this address",
            ) from None
        if 300 <= error.code < 400:
            raise TransientError(f"{what} is on standby, and names no active one ({error.code})", _STANDBY) from None
        raise TransientError(f"{what} answers {error.code}", "Check its address, and try again") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TransientError(f"{what} does not answer: {reason}", "Check that it runs, and its address") from None
    try:
        value = json.loads(text or b"{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        said = " ".join(text.decode(errors="replace").split())[:200]
        raise TransientError(f"{what} gives an unknown answer ({said})", _STANDBY)
    return value


def _application_of(log: str | None) -> str | None:
    """Return the id of the application of a container, from the page of its log."""
    match = _CONTAINER_PAGE.fullmatch(log or "")
    numbers = re.fullmatch(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+", match[2]) if match else None
    return f"application_{numbers[1]}" if numbers else None


def tail_driver_log(log: str | None, lines: int) -> list[str]:
    """Return the last lines of a driver's log; empty if it cannot be read from here.

    :param log: a file on this host, or the page of a YARN container's logs.
    """
    if log is None or (page := _CONTAINER_PAGE.fullmatch(log)) is None:
        return tail_log(log, lines)
    # Spark writes what a Python driver writes to standard output. If a container cannot start, it says so in the other.
    tails = (_tail_container_log(page[1], page[2], name, lines) for name in ("stdout", "stderr"))
    return next(filter(None, tails), [])


def _tail_container_log(node: str, container: str, name: str, lines: int) -> list[str]:
    query = urlencode({"size": -400 * lines, **_user()})
    text = b""
    with suppress(OSError, ValueError):
        url = f"{node}/ws/v1/node/containers/{container}/logs/{name}?{query}"
        with _opener.open(url, timeout=_TIMEOUT) as response:
            text = response.read()
    # The page has a head and a foot, and nothing in between, not even an empty line, if the file is empty.
    contents = text.decode(errors="replace").partition("\nLogContents:")[2].partition(f"\nEnd of LogType:{name}")[0]
    return [line for line in contents.splitlines() if line.strip()][-lines:]
