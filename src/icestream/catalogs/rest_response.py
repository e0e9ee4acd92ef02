"""Decodes responses of Iceberg's REST protocol, errors into those of our tree. Pure.

2xx              an object, or an empty body
400 to 422       a refusal: nothing was changed. The error type in the body decides; without a known type `expected`,
                 which each call passes for 404 and 409
401, 419         the token is invalid or expired: AccessDenied, after one attempt with a fresh token
429              too many requests: nothing was changed
5xx              ambiguous: it may have been applied (hazard 13). So is a body that is not JSON, or cut off
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from icestream import errors
from icestream.iceberg.values import Object

# Messages of a server are quoted in ours up to this length.
_QUOTED_CHARACTERS_MAX: Final = 300
_TYPES: Final[Mapping[str, type[errors.IcestreamError]]] = {
    "NoSuchNamespaceException": errors.UnknownNamespace,
    "NoSuchTableException": errors.UnknownTable,
    "NoSuchViewException": errors.UnknownView,
    "AlreadyExistsException": errors.AlreadyExists,
    "NamespaceNotEmptyException": errors.NotEmpty,
    "CommitFailedException": errors.CommitConflict,
}
Expected = Mapping[int, type[errors.IcestreamError]]


class RestResponse(NamedTuple):
    """A complete response of a server."""

    status: int
    body: bytes
    instance: str | None = None  # instance id of the broker that responded, if it is one of ours


def decode_response(response: RestResponse, expected: Expected, where: str, is_own: bool = False) -> Object:
    """Returns the JSON object of a successful response. Raises the error of any other response.

    `where`: the request, for messages. `expected`: the errors that 404 and 409 of this request mean. `is_own`: our own
    catalog, whose 403 protects the table of a topic.
    """
    if 200 <= response.status < 300:
        return _decode_object(response, where)
    kind, server_message, details = _decode_error(response.body)
    message = f"{where}: {server_message}" if server_message else f"{where}: status {response.status}"
    raise _refusal(response.status, kind, message, details, expected, is_own)


def _decode_object(response: RestResponse, where: str) -> Object:
    """Returns the JSON object of a response, empty for an empty body. Raises StorageUnavailable, ambiguous, for
    anything else: a proxy may have cut the response of a change that was applied."""
    if not response.body:
        return {}
    try:
        document = orjson.loads(response.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise errors.StorageUnavailable(
            f"{where}: response is not a JSON object",
            hint="is `uri` the address of an Iceberg REST catalog?",
            is_ambiguous=True,
        )
    return document


def _decode_error(body: bytes) -> tuple[str, str, Object]:
    """Returns type, message and details of an error in Iceberg's form; empty if it has another form."""
    try:
        error = orjson.loads(body)["error"]
        kind, text, details = error.get("type"), error.get("message"), error.get("details")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", "", {}
    return (
        kind if isinstance(kind, str) else "",
        " ".join(str(text or "").split())[:_QUOTED_CHARACTERS_MAX],
        details if isinstance(details, dict) else {},
    )


def _refusal(
    status: int, kind: str, message: str, details: Object, expected: Expected, is_own: bool
) -> errors.IcestreamError:
    """Returns the error for a status and an error type."""
    # 429 is a refusal before anything was done. After any 5xx the change may have been applied: gateways send them too.
    if status == 429 or status >= 500:
        hint = "check the log messages of the catalog"
        return errors.StorageUnavailable(message, hint=hint, is_ambiguous=status != 429)
    if status in (401, 403, 419):
        # Our own catalog answers 403 for what the rules of a topic's table forbid, which no other token would change.
        if is_own and status == 403:
            return errors.TopicTableConflict(message)
        hint = "check `token` or `credential` of storage.iceberg_config.catalog and their permissions"
        return errors.AccessDenied(message, hint=hint)
    error_type = _TYPES.get(kind) or (expected.get(status) if kind else None)
    if error_type is errors.CommitConflict:
        return errors.CommitConflict(message, hint="load the table and plan again", details=details)
    if error_type is not None:
        return error_type(message)
    if not kind or status < 400:
        return errors.UnexpectedAnswer(
            f"{message} (status {status}): not a response of an Iceberg catalog",
            hint="is `uri` the address of an Iceberg REST catalog, without `/v1`?",
        )
    if status == 409:
        return errors.CommitConflict(message, details=details)
    return errors.Contradiction(message) if status == 422 else errors.InvalidInput(message)
