"""Translates errors of object stores: worth a retry, or a matter of settings. No message contains a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, StoreError

_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.\-]{1,80})</Code>|\"(?:code|reason)\": ?\"([A-Za-z0-9_.\-]{1,80})\"")
_URL = re.compile(r"(https?://[^\s?\"')]+)\?[^\s\"')]*")
_MAX_TEXT_LENGTH = 300

_CHECK_KEYS = "Correct the keys in sink.conn_id, or in the environment of this host"
_NO_CREDENTIALS = (
    "No credentials were found: name a connection in sink.conn_id, or provide keys or a role in the environment or the "
    "instance of this host"
)
_NAME_REGION = "Set the bucket's region: region_name in the extra of sink.conn_id, or AWS_REGION"
#: Remedies by error code or status of a response.
_REMEDIES_BY_CODE: dict[str, str] = {
    "NoSuchBucket": "Create the bucket, or correct sink.path",
    "ContainerNotFound": "Create the container, or correct sink.path",
    "RequestTimeTooSkewed": "Set the clock of this host: request signatures include the time",
    "InvalidAccessKeyId": _CHECK_KEYS,
    "SignatureDoesNotMatch": f"{_CHECK_KEYS}; also check its clock, and proxies that change requests",
    "InvalidToken": _CHECK_KEYS,
    "AuthenticationFailed": f"{_CHECK_KEYS}; also check its clock",
    "AuthorizationHeaderMalformed": _NAME_REGION,
    "IllegalLocationConstraintException": _NAME_REGION,
    "PermanentRedirect": _NAME_REGION,
    "AccessDenied": "Allow reading, writing, listing and deleting below sink.path for these keys",
    "AuthorizationPermissionMismatch": "Allow reading, writing, listing and deleting below sink.path for these keys",
    "403": f"Allow reading, writing, listing and deleting below sink.path for these keys. {_CHECK_KEYS}",
    "NotImplemented": (
        "The store does not support a required request: it must honor If-None-Match: * in PUT. Use a newer version of "
        "it, or another store"
    ),
    "401": _CHECK_KEYS,
    "301": _NAME_REGION,
}
#: Remedies by text of an error that the library raises before it makes a request.
_REMEDIES_BY_LIBRARY_TEXT = {
    "missing bucket": "Correct sink.path",
    "incorrectly configured region": _NAME_REGION,
    "invalidrootcertificate": "The file named in the extra verify must contain PEM certificates",
    "unable to decode service account": "Correct keyfile_dict or key_path of sink.conn_id",
    "unable to open service account": "The file named in key_path must exist on this host",
    "account must be specified": "Name the account in sink.path or in sink.conn_id",
    "missing secretaccesskey": _CHECK_KEYS,
    "missing accesskeyid": _CHECK_KEYS,
}


#: Remedies by code or text of an error from a source of credentials.
_CREDENTIAL_REMEDIES: dict[str, str] = {
    "ExpiredToken": "The session token has expired: provide a new one, permanent keys, or a role",
    "external aws credential provider": "Check that role_arn is right, and that these credentials may assume the role",
    # The last source of credentials that the library tries: no other was configured.
    "169.254.169.254": _NO_CREDENTIALS,
    "metadata.google.internal": _NO_CREDENTIALS,
}


def translate_store_error(error: BaseException, operation: str, secrets: Iterable[str]) -> CdcError:
    """Return the error to raise for an error of the library.

    :param operation: what was attempted, and where.
    :param secrets: texts that must not appear.
    """
    text = str(error)
    status, code = _status_and_code(text)
    cause = " ".join(filter(None, (status, code))) or _first_line(text)
    for secret in secrets:
        cause = cause.replace(secret, "***")
    message = f"{operation} failed: {cause}"
    # The source of credentials may be unavailable for a while, like the store itself.
    credential_remedy = next(
        (todo for words, todo in _CREDENTIAL_REMEDIES.items() if words in text.lower() or words == code), None
    )
    if credential_remedy is not None:
        return StoreError(message, credential_remedy)
    remedy = _REMEDIES_BY_CODE.get(code) or _REMEDIES_BY_CODE.get(status[:3])
    if remedy is None and not status:
        remedy = next((todo for words, todo in _REMEDIES_BY_LIBRARY_TEXT.items() if words in text.lower()), None)
    if remedy is not None:
        return NotReadyError(message, remedy)
    store_error = StoreError(message, "Check the store and the network connection to it, then run again")
    store_error.response_interrupted = "response body" in text
    return store_error


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether the bucket itself is missing, rather than a file in it."""
    return any(
        code in str(error) for code in ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
    )


def _status_and_code(text: str) -> tuple[str, str]:
    """Return status and code of a response; empty if there was none."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return (status[1].strip() if status else ""), ((code[1] or code[2]) if code else "")


def _first_line(text: str) -> str:
    """Return the library's text if there was no response. URLs may carry signatures in their query string."""
    return _URL.sub(r"\1", text.split("\n", 1)[0])[:_MAX_TEXT_LENGTH].strip()
