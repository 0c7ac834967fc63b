"""Routes of the actions on the page.

An action requires the right that Airflow requires for the same action, cannot be requested from another site, and is
recorded with the user's name in Airflow's audit log and among the pipeline's events.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.log import Log
from airflow.providers.common.compat.sdk import AirflowException
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import BaseModel, Field

from airflow_provider_cdc.ui import task_instances
from airflow_provider_cdc.ui.access import ShownPipelineDep, UserRightsDep, may_edit_any, may_trigger
from airflow_provider_cdc.ui.action_rules import ACTIONS, ActionImpossible, ActionPreview, ActionTarget, offered_actions
from airflow_provider_cdc.ui.state_databases import ShownPipeline
from airflow_provider_cdc.ui.task_names import TaskNames
from airflow_provider_cdc.ui.views import PipelineViews

#: A header that no form or link of another site can set: the browser would first ask the server, which refuses.
PAGE_HEADER = "X-CDC-Page"
#: Actions on one table.
TABLE_ACTIONS = ("verify", "repair", "suspend", "reread", "reread_keys")
#: By these Airflow reports that an action is impossible, such as a run whose parameters have no value.
_AIRFLOW_ERRORS = (AirflowException, ValueError)


class ActionRequest(BaseModel):
    """The object of an action. With ``dry_run``, the action is only described."""

    dry_run: bool = False
    group: int | None = Field(None, ge=0, le=2**31 - 1)
    table: str | None = Field(None, max_length=255)
    condition: str | None = Field(None, max_length=2000)
    id: int | None = Field(None, ge=0, le=2**62)


def _require_same_origin(request: Request) -> None:
    """Refuse requests that another site has made the user's browser send with the user's cookie.

    :raises HTTPException: 403.
    """
    own_hosts = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    origin = request.headers.get("origin")
    if request.headers.get(PAGE_HEADER) is None or (origin is not None and urlsplit(origin).netloc not in own_hosts):
        raise HTTPException(403, "This request does not come from the page")


def _require_edit_right(user: GetUserDep, rights: UserRightsDep, shown: ShownPipelineDep) -> None:
    if not may_edit_any(user, shown.dags):
        raise HTTPException(403, TaskNames(shown.tasks, rights.dags).mask_action(_edit_right_text(shown.dags)))


router = APIRouter(dependencies=[Depends(_require_same_origin), Depends(_require_edit_right)])


@router.post("/api/pipelines/{book}/{name}/acts/{act}")
def run_action(
    user: GetUserDep, rights: UserRightsDep, shown: ShownPipelineDep, act: str, action_request: ActionRequest
) -> dict[str, Any]:
    """Perform an action, or describe it. DAGs that the user may not read are not named."""
    views = PipelineViews(shown, TaskNames(shown.tasks, rights.dags))
    try:
        answer = _run_action(user, shown, act, action_request)
    except HTTPException as error:
        raise HTTPException(error.status_code, _action_text(views, error.detail)) from None
    return {key: _action_text(views, value) if isinstance(value, str) else value for key, value in answer.items()}


def _action_text(views: PipelineViews, text: str | None) -> str | None:
    return views.commands.complete_text(views.names.mask_action(text))


def _run_action(user: Any, shown: ShownPipeline, act: str, action_request: ActionRequest) -> dict[str, Any]:
    if act not in ACTIONS:
        raise HTTPException(404, "There is no such action")
    by = str(user.get_name())
    with create_session(scoped=False) as session:
        target = ActionTarget(shown, session, **action_request.model_dump(exclude={"dry_run"}))
        try:
            preview = ACTIONS[act].preview(target)
        except ActionImpossible as impossible:
            if action_request.dry_run:
                return {"says": None, "why_not": str(impossible)}
            raise HTTPException(409, str(impossible)) from None
        missing_right = _missing_right(user, preview)
        if action_request.dry_run:
            return {"says": preview.description, "why_not": missing_right, "asks": preview.missing_input}
        if missing_right:
            raise HTTPException(403, missing_right)
        if preview.missing_input:
            raise HTTPException(409, f"{preview.missing_input} is missing")
        _write_audit_log(session, preview, by, f"cdc_{act}", pipeline=target.name, **_audit_values(action_request))
        try:
            done = preview.execute(by)
        except _AIRFLOW_ERRORS as error:
            raise HTTPException(409, str(error)) from None
        if not done:
            raise HTTPException(409, "The state has changed in the meantime: check it and try again")
        if preview.event is not None:
            target.reader.add_event(target.name, preview.event[0], preview.event[1], table=preview.table, by=by)
    return {"done": True}


def list_offers(user: Any, views: PipelineViews, table: str | None = None) -> list[dict[str, Any]]:
    """Return the actions that the user can perform on a whole pipeline, with the reason if one is impossible now.

    :param table: return the actions on this table instead.
    """
    entries, about = [], {} if table is None else {"table": table}
    with create_session(scoped=False) as session:
        target = ActionTarget(views.shown, session, table=table)
        for name in offered_actions(target) if table is None else TABLE_ACTIONS:
            try:
                why = _missing_right(user, ACTIONS[name].preview(target))
            except ActionImpossible as impossible:
                why = str(impossible)
            label = ACTIONS[name].label
            if table is None:
                label = ACTIONS[name].label_for_all or label
            entries.append({"act": name, "label": label, "about": about, "why_not": _action_text(views, why)})
    return entries


def list_retriable_groups(shown: ShownPipeline) -> list[int]:
    """Return the chunk groups whose task has failed."""
    with create_session(scoped=False) as session:
        tasks = ActionTarget(shown, session).tasks_of_kind("CdcSnapshotOperator")
        return sorted({group for task in tasks for group in task_instances.find_failed_groups(session, task)})


def _missing_right(user: Any, preview: ActionPreview) -> str | None:
    """Return which right the user lacks, in words, or ``None`` if the user may perform the action."""
    if preview.starts_run:
        return None if may_trigger(user, preview.dags) else f"You need the right to start runs of {preview.dags[0]}"
    return None if may_edit_any(user, preview.dags) else _edit_right_text(preview.dags)


def _edit_right_text(dags: tuple[str, ...]) -> str:
    if not dags:
        return "You need the right to edit Airflow's connections, because the pipeline has no DAG"
    return f"You need the right to edit task instances of {' or '.join(dags)}"


def _audit_values(action_request: ActionRequest) -> dict[str, Any]:
    """Return the values for the audit log, without the condition, which has keys and therefore values of rows."""
    return action_request.model_dump(exclude={"dry_run", "condition"}, exclude_none=True)


def _write_audit_log(session: Any, preview: ActionPreview, by: str, act: str, **what: object) -> None:
    """Add an entry for the task instance concerned, or for each DAG concerned, or one without a DAG."""
    if preview.instance is not None:
        about = {name: getattr(preview.instance, name) for name in ("task_id", "run_id", "map_index", "try_number")}
    else:
        about = {}
    for dag in preview.dags or (None,):
        session.add(Log(event=act, owner=by, owner_display_name=by, extra=json.dumps(what), dag_id=dag, **about))
    session.flush()
