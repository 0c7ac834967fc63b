"""The REST interface of YARN's ResourceManager, and the logs that its NodeManagers serve."""

from __future__ import annotations

import getpass
import json
import os
import re
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.system.processes import tail_log

#: Seconds for an answer. Airflow kills a task 5 s after it has asked it to end.
_TIMEOUT = 5.0
_OVER = ("FINISHED", "FAILED", "KILLED")
_CONTAINER_PAGE = re.compile(r"(https?://[^/]+)/node/containerlogs/([^/]+)/[^/]+/?")


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

    :param address: address of its web application.
    """

    name = "YARN"
    #: Seconds after which an application is lost that an answering ResourceManager does not know. After a restart, it
    #: knows its applications only when they have reported back.
    unknown_seconds = 60.0

    def __init__(self, address: str) -> None:
        self.address = address

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
        """Kill an application. It may take a moment to end.

        :raises NotReadyError: if YARN refuses this.
        """
        self._request("PUT", f"apps/{quote(job)}/state", body={"state": "KILLED"})

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
        query["user.name"] = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        request = urllib.request.Request(
            f"{self.address}/ws/v1/cluster/{path}?{urlencode(query)}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
        )
        what = f"YARN's ResourceManager at {self.address}"
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                value = json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise NotReadyError(
                    f"{what} refuses {method} {path} ({error.code})",
                    "Give the user of the task the right to view and to end its applications there. Kerberos is not "
                    "supported for this address",
                ) from None
            raise TransientError(f"{what} answers {error.code}", "Check its address, and try again") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise TransientError(f"{what} does not answer: {reason}", "Check that it runs, and its address") from None
        if not isinstance(value, dict):
            raise TransientError(f"{what} gives an unknown answer", "Check its address")
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
    node, container = page.groups()
    # Spark writes what a Python driver writes to standard output.
    url = f"{node}/ws/v1/node/containers/{container}/logs/stdout?size=-{400 * lines}"
    text = b""
    with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
        text = response.read()
    # The page has a head and a foot.
    contents = text.decode(errors="replace").partition("\nLogContents:\n")[2].partition("\nEnd of LogType:stdout")[0]
    return [line for line in contents.splitlines() if line.strip()][-lines:]
