"""Pausing and resuming the stream according to the parameter ``paused`` of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase

_PAUSE_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "none": None, "": None}


def parse_paused(value: object) -> bool | None:
    """Parse ``paused``, after its templates have been rendered. ``None`` leaves the stream as it is.

    :raises NotReadyError: if the value is not recognized.
    """
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _PAUSE_WORDS:
        raise NotReadyError(f"paused is {value!r}", "Give true, false, or none to leave the stream as it is")
    return _PAUSE_WORDS[word]


def pause_or_resume(store: StateDatabase, pipeline: str, paused: object, by: str, log: Any) -> None:
    """Pause or resume the stream.

    :param paused: as in :func:`parse_paused`.
    :param by: the task that asks for it.
    """
    pause = parse_paused(paused)
    if pause is None:
        return
    accepted = store.pause_stream(pipeline, by) if pause else store.resume_stream(pipeline, by)
    what = "paused" if pause else "resumed"
    log.info(
        "the stream is %s, according to the task's parameter" if accepted else "the stream is about to end: not %s",
        what,
    )
