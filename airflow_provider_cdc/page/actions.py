"""What can be done from the page. An act takes the right that Airflow asks for the like, cannot be had from another
site, and is written into Airflow's audit log with the user's name.
"""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Request

from airflow_provider_cdc.page.access import may_act
from airflow_provider_cdc.page.found import ShownDep

#: A header that no form and no link of another site can set: a browser asks the server first, which does not allow it.
HEADER = "X-CDC-Page"


def _of_this_page(request: Request) -> None:
    """Refuse what another site has made the user's browser send, with the user's cookie.

    :raises HTTPException: 403.
    """
    from airflow.configuration import conf

    own = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    origin = request.headers.get("origin")
    if request.headers.get(HEADER) is None or (origin is not None and urlsplit(origin).netloc not in own):
        raise HTTPException(403, "This request does not come from the page")


def _allowed(user: GetUserDep, shown: ShownDep) -> None:
    if not may_act(user, shown.dags):
        raise HTTPException(
            403, "It takes the right to edit the pipeline's DAG, or Airflow's connections if it has none"
        )


router = APIRouter(dependencies=[Depends(_of_this_page), Depends(_allowed)])
EventId = Annotated[int, Path(ge=0, le=2**62)]


@router.post("/api/pipelines/{book}/{name}/events/{event}/acknowledge")
def acknowledge(user: GetUserDep, shown: ShownDep, event: EventId) -> dict[str, Any]:
    """Note that the user takes care of an event. The first one who does stays."""
    by = str(user.get_name())
    done = shown.book.reader().acknowledge(shown.found.name, event, by)
    if done:
        _audit(shown.dags, by, "cdc_acknowledge", pipeline=shown.found.name, cdc_event=event)
    return {"done": done}


def _audit(dags: tuple[str, ...], by: str, act: str, **what: object) -> None:
    """A line for each of the pipeline's DAGs, or one without a DAG."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        for dag in dags or (None,):
            session.add(Log(event=act, owner=by, extra=json.dumps(what), dag_id=dag))
