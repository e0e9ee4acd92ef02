"""What Iceberg's REST protocol answers: JSON, and errors in its one form.

    {"error": {"message": …, "type": …, "code": <status>}}      type and status: said.SAID, which clients look at

Beside these an error has what Icestream adds: `hint`, `retryable`, and `details` for programs (the tables in conflict,
the present positions of a topic's table).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from icestream import error_codes, errors
from icestream.catalog.operations.table_commits import CommittedTable
from icestream.catalog.operations.view_operations import LoadedView
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.lake.iceberg.access import NO_TABLE_ACCESS, TableAccess

Header = tuple[bytes, bytes]

_JSON: Final[Header] = (b"content-type", b"application/json")
_RETRY_AFTER: Final[Header] = (b"retry-after", b"1")
# What HTTP itself refuses, in the names of Iceberg's exceptions.
_TYPES: Final = {
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    503: "ServiceUnavailableException",
}


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()


NOTHING: Final = Answer(204)


def document(value: Any) -> Answer:
    return Answer(200, orjson.dumps(value), (_JSON,))


# --- tables and views -------------------------------------------------------------------------------------------------


def table(found: CommittedTable, only_referenced: bool = False, access: TableAccess = NO_TABLE_ACCESS) -> Answer:
    """A table in force. The pieces of its document are joined once, and never parsed."""
    shown = found.table.with_referenced_snapshots() if only_referenced else found.table
    tag = (b"etag", entity_tag(found.location, only_referenced).encode())
    more = b"" if found.repeated is None else b',"repeated":%d' % found.repeated
    return Answer(200, _described(found.location, shown.pieces(), more, access), (_JSON, tag))


def staged(made: TableMetadata, access: TableAccess = NO_TABLE_ACCESS) -> Answer:
    """A table that is not there yet: it has no metadata file."""
    return Answer(200, b"".join((b'{"metadata":', *made.pieces(), *_access(access), b"}")), (_JSON,))


def credentials(storage_credentials: bytes) -> Answer:
    """`storage_credentials`: as JSON."""
    return Answer(200, b'{"storage-credentials":' + storage_credentials + b"}", (_JSON,))


def _access(access: TableAccess) -> tuple[bytes, ...]:
    if access == NO_TABLE_ACCESS:
        return (b',"config":', access.config)
    return (b',"config":', access.config, b',"storage-credentials":', access.storage_credentials)


def view(found: LoadedView) -> Answer:
    return Answer(200, _described(found.location, found.view.pieces(), b""), (_JSON,))


def _described(location: str, pieces: Sequence[bytes], more: bytes, access: TableAccess = NO_TABLE_ACCESS) -> bytes:
    head = b'{"metadata-location":' + orjson.dumps(location) + b',"metadata":'
    return b"".join((head, *pieces, more, *_access(access), b"}"))


def entity_tag(location: str, only_referenced: bool) -> str:
    """A metadata file never changes, so its name stands for what it says."""
    name = hashlib.blake2s(location.encode(), digest_size=16).hexdigest()
    return f'"{name}-refs"' if only_referenced else f'"{name}"'


def identifiers(namespace: Sequence[str], names: Sequence[str], token: str | None) -> Answer:
    found = [{"namespace": namespace, "name": name} for name in names]
    return document({"identifiers": found, "next-page-token": token})


def repeats(found: Mapping[Identifier, CommittedTable]) -> Answer:
    """Of a transaction. Only a round can be a repeat, and whoever sends rounds reads this (hazards 14, 47)."""
    told: list[Object] = [
        {"namespace": one.namespace, "name": one.name, "snapshot-id": made.repeated}
        for one, made in found.items()
        if made.repeated is not None
    ]
    return document({"repeated": told}) if told else NOTHING


# --- errors -----------------------------------------------------------------------------------------------------------


def of_error(error: errors.IcestreamError) -> Answer:
    status, kind = error_codes.iceberg_error(error)
    more: Object = {"hint": error.hint, "retryable": error.retryable}
    if isinstance(error, errors.CommitConflict) and error.details:
        more["details"] = error.details
    return _refused(status, kind, str(error), more, (_RETRY_AFTER,) if status == 503 else ())


def of_status(status: int, message: str, headers: tuple[Header, ...] = ()) -> Answer:
    """What is refused before the catalog is asked."""
    return _refused(status, _TYPES.get(status, "BadRequestException"), message, {}, headers)


def no_tokens() -> Answer:
    """In the form of OAuth2, which a client expects there; it stops at once, where a 404 says nothing to anybody."""
    document = {
        "error": "unsupported_grant_type",
        "error_description": "this catalog hands out no tokens: give the client a `token` of lake.token_file, not a "
        "`credential`; without lake.token_file it needs neither",
    }
    return Answer(400, orjson.dumps(document), (_JSON,))


def _refused(status: int, kind: str, message: str, more: Object, headers: tuple[Header, ...]) -> Answer:
    document = {"message": _text(message), "type": kind, "code": status, **more}
    return Answer(status, orjson.dumps({"error": document}), (_JSON, *headers))


def _text(message: str) -> str:
    """Half a character in what a client sent must not make an answer impossible."""
    return message.encode("utf-8", "backslashreplace").decode()
