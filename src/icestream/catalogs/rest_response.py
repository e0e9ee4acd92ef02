"""Answers of a server of Iceberg's REST protocol, and the errors of our tree that they mean. Pure.

2xx              an object, or nothing
400 to 422       a refusal: nothing was changed. The type that the error names decides, where it names one; else
                 `expected`, which each call says for 404 and 409
401, 419         the token is not valid (any more): AccessDenied, after one fresh token
429              later: nothing was changed
5xx              nobody knows: ambiguous (hazard 13). Also what is not HTTP, or is cut off
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


def decode_response(answer: RestResponse, expected: Expected, where: str, is_own: bool = False) -> Object:
    """The object of a good answer. `is_own`: our own catalog, whose 403 is about the table of a topic."""
    if 200 <= answer.status < 300:
        return _object(answer, where)
    kind, words, details = _error(answer.body)
    message = f"{where}: {words}" if words else f"{where} answers with status {answer.status}"
    raise _refusal(answer.status, kind, message, details, expected, is_own)


def _object(answer: RestResponse, where: str) -> Object:
    if not answer.body:
        return {}
    try:
        found = orjson.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise errors.StorageUnavailable(
            f"{where} answers with something that is no JSON object",
            hint="is `uri` the address of an Iceberg REST catalog?",
            is_ambiguous=True,
        )
    return found


def _error(body: bytes) -> tuple[str, str, Object]:
    """Type, words and details of Iceberg's error, as far as it is one."""
    try:
        found = orjson.loads(body)["error"]
        kind, words, details = found.get("type"), found.get("message"), found.get("details")
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
    wanted = _TYPES.get(kind) or (expected.get(status) if kind else None)
    if wanted is errors.CommitConflict:
        return errors.CommitConflict(message, hint="load the table and plan again", details=details)
    if wanted is not None:
        return wanted(message)
    if not kind or status < 400:
        return errors.UnexpectedAnswer(
            f"{message} (status {status}), and not as an Iceberg catalog does",
            hint="is `uri` the address of an Iceberg REST catalog, without `/v1`?",
        )
    if status == 409:
        return errors.CommitConflict(message, details=details)
    return errors.Contradiction(message) if status == 422 else errors.InvalidInput(message)
