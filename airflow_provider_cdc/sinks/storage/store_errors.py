"""What an object store's answers mean: worth a retry, or a matter of settings. No message holds a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, StoreError

_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.\-]{1,80})</Code>|\"(?:code|reason)\": ?\"([A-Za-z0-9_.\-]{1,80})\"")
_URL = re.compile(r"(https?://[^\s?\"')]+)\?[^\s\"')]*")
_LONG = 300

_AMONG_ALL = "Correct the keys of sink.conn_id, or what the environment of this host says"
_NOBODY = (
    "Nothing says who asks: name a connection in sink.conn_id, or give keys or a role to the environment or the "
    "instance of this host"
)
_REGION = "Name the bucket's region: region_name in the extra of sink.conn_id, or AWS_REGION"
#: Codes of answers and their status, and what to do.
_REMEDIES: dict[str, str] = {
    "NoSuchBucket": "Create the bucket, or correct sink.path",
    "ContainerNotFound": "Create the container, or correct sink.path",
    "RequestTimeTooSkewed": "Set the clock of this host: requests are signed with the time",
    "InvalidAccessKeyId": _AMONG_ALL,
    "SignatureDoesNotMatch": f"{_AMONG_ALL}; and look at its clock and at what changes requests on the way",
    "InvalidToken": _AMONG_ALL,
    "AuthenticationFailed": f"{_AMONG_ALL}; and look at its clock",
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "PermanentRedirect": _REGION,
    "AccessDenied": "Allow reading, writing, listing and deleting below sink.path to who asks",
    "AuthorizationPermissionMismatch": "Allow reading, writing, listing and deleting below sink.path to who asks",
    "403": f"Allow reading, writing, listing and deleting below sink.path to who asks. {_AMONG_ALL}",
    "NotImplemented": (
        "The store does not know what it is asked for: it must honour If-None-Match: * in PUT. Use a newer version of "
        "it, or another store"
    ),
    "401": _AMONG_ALL,
    "301": _REGION,
}
#: Of the library itself, before anything is asked.
_WORDS = {
    "missing bucket": "Correct sink.path",
    "incorrectly configured region": _REGION,
    "invalidrootcertificate": "See that the file of the extra verify holds certificates in PEM",
    "unable to decode service account": "Correct keyfile_dict or key_path of sink.conn_id",
    "unable to open service account": "See that the file of key_path is on this host",
    "account must be specified": "Name the account: in sink.path, or in sink.conn_id",
    "missing secretaccesskey": _AMONG_ALL,
    "missing accesskeyid": _AMONG_ALL,
}


#: Of where keys come from.
_SOURCES: dict[str, str] = {
    "ExpiredToken": "The session token has expired: give a new one, keys that last, or a role",
    "external aws credential provider": "See that role_arn is right, and that who asks may assume it",
    # Where the library looks last: it was told nothing.
    "169.254.169.254": _NOBODY,
    "metadata.google.internal": _NOBODY,
}


def error_of_store(error: BaseException, operation: str, secrets: Iterable[str]) -> CdcError:
    """The error to be raised for one of the library.

    :param operation: what was asked for, and of what place.
    :param secrets: texts that must not appear.
    """
    text = str(error)
    status, code = _answer(text)
    cause = " ".join(filter(None, (status, code))) or _first_line(text)
    for secret in secrets:
        cause = cause.replace(secret, "***")
    message = f"{operation} failed: {cause}"
    # Where keys come from may be out of order for a while, as the store itself.
    credential_remedy = next((todo for words, todo in _SOURCES.items() if words in text.lower() or words == code), None)
    if credential_remedy is not None:
        return StoreError(message, credential_remedy)
    remedy = _REMEDIES.get(code) or _REMEDIES.get(status[:3])
    if remedy is None and not status:
        remedy = next((todo for words, todo in _WORDS.items() if words in text.lower()), None)
    if remedy is not None:
        return NotReadyError(message, remedy)
    store_error = StoreError(message, "Look at the store and at the way to it, then run again")
    store_error.response_interrupted = "response body" in text
    return store_error


def is_no_place(error: BaseException) -> bool:
    """Whether what is not there is the bucket itself, and not a file in it."""
    return any(
        code in str(error) for code in ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
    )


def _answer(text: str) -> tuple[str, str]:
    """Status and code of an answer; empty if there was none."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return (status[1].strip() if status else ""), ((code[1] or code[2]) if code else "")


def _first_line(text: str) -> str:
    """What the library says where there was no answer. Addresses may have signatures behind a question mark."""
    return _URL.sub(r"\1", text.split("\n", 1)[0])[:_LONG].strip()
