"""Decodes responses of Iceberg's REST protocol, errors into those of our tree. Pure.

2xx              an object, or nothing
400 to 422       a refusal: nothing was changed. The type that the error names decides, where it names one; else
                 `expected`, which each call says for 404 and 409
401, 419         the token is not valid (any more): AccessDenied, after one fresh token
429              later: nothing was changed
5xx              ambiguous: it may have been applied (hazard 13). Also what is not HTTP, or is cut off
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from icestream import errors
from icestream.iceberg.values import Object

# The words of a server are repeated in ours up to here.
_WORDS_CHARACTERS_MAX: Final = 300
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
    status: int
    body: bytes
    instance: str | None = None  # of the broker that answered, where it is one of ours


def decode_response(response: RestResponse, expected: Expected, where: str, is_own: bool = False) -> Object:
    """The JSON object of a successful response; raises the error of any other. `is_own`: our own catalog, whose 403 is
    about the table of a topic."""
    if 200 <= response.status < 300:
        return _object(response, where)
    kind, words, details = _error(response.body)
    message = f"{where}: {words}" if words else f"{where} answers with status {response.status}"
    raise _refusal(response.status, kind, message, details, expected, is_own)


def _object(response: RestResponse, where: str) -> Object:
    if not response.body:
        return {}
    try:
        document = orjson.loads(response.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise errors.StorageUnavailable(
            f"{where} answers with something that is no JSON object",
            hint="is `uri` the address of an Iceberg REST catalog?",
            is_ambiguous=True,
        )
    return document


def _error(body: bytes) -> tuple[str, str, Object]:
    """Type, message and details of an error in Iceberg's form; empty if it has another form."""
    try:
        error = orjson.loads(body)["error"]
        kind, words, details = error.get("type"), error.get("message"), error.get("details")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", "", {}
    return (
        kind if isinstance(kind, str) else "",
        " ".join(str(words or "").split())[:_WORDS_CHARACTERS_MAX],
        details if isinstance(details, dict) else {},
    )


def _refusal(
    status: int, kind: str, message: str, details: Object, expected: Expected, is_own: bool
) -> errors.IcestreamError:
    if status == 429 or status >= 500:
        hint = "look at the catalog's own log messages"
        return errors.StorageUnavailable(message, hint=hint, is_ambiguous=status != 429)
    if status in (401, 403, 419):
        if is_own and status == 403:
            return errors.TopicTableConflict(message)
        hint = "check `token` or `credential` of storage.iceberg_config.catalog, and what they allow"
        return errors.AccessDenied(message, hint=hint)
    error_type = _TYPES.get(kind) or (expected.get(status) if kind else None)
    if error_type is errors.CommitConflict:
        return errors.CommitConflict(message, hint="load the table and plan again", details=details)
    if error_type is not None:
        return error_type(message)
    if not kind or status < 400:
        return errors.UnexpectedAnswer(
            f"{message} (status {status}), and not as an Iceberg catalog does",
            hint="is `uri` the address of an Iceberg REST catalog, without `/v1`?",
        )
    if status == 409:
        return errors.CommitConflict(message, details=details)
    return errors.Contradiction(message) if status == 422 else errors.InvalidInput(message)
