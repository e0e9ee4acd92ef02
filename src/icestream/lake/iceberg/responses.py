"""Responses of Iceberg's REST protocol: JSON documents, and errors in its one format.

    {"error": {"message": …, "type": …, "code": <status>}}      type and status from error_codes.py; clients use both

Icestream adds `hint`, `retryable`, and `details` for programs (the tables in conflict, the current positions of a
topic's table).
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from icestream import error_codes, errors, limits
from icestream.catalog.operations.table_commits import CommittedTable
from icestream.catalog.operations.view_operations import LoadedView
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.lake.iceberg.access import NO_TABLE_ACCESS, TableAccess

Header = tuple[bytes, bytes]

_JSON: Final[Header] = (b"content-type", b"application/json")
_GZIP_LEVEL: Final = 1  # the fastest level removes most of the redundancy
_GZIP_HEADERS: Final = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
_RETRY_AFTER: Final[Header] = (b"retry-after", b"1")
_ERROR_HEADERS: Final[dict[int, tuple[Header, ...]]] = {
    401: ((b"www-authenticate", b'Bearer realm="icestream"'),),
    503: (_RETRY_AFTER,),
}
# Iceberg's exceptions for errors of HTTP itself.
_TYPES: Final = {
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    503: "ServiceUnavailableException",
}


class IcebergResponse(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()


NO_CONTENT: Final = IcebergResponse(204)


def json_response(value: Any) -> IcebergResponse:
    return IcebergResponse(200, orjson.dumps(value), (_JSON,))


# --- tables and views -------------------------------------------------------------------------------------------------


def table_response(
    table: CommittedTable, only_referenced: bool = False, access: TableAccess = NO_TABLE_ACCESS
) -> IcebergResponse:
    """A committed table. The pieces of its document are joined once, and never parsed."""
    metadata = table.table.with_referenced_snapshots() if only_referenced else table.table
    tag = (b"etag", entity_tag(table.location, only_referenced).encode())
    extra = b"" if table.repeated is None else b',"repeated":%d' % table.repeated
    return IcebergResponse(200, _metadata_document(table.location, metadata.pieces(), extra, access), (_JSON, tag))


def staged_table_response(metadata: TableMetadata, access: TableAccess = NO_TABLE_ACCESS) -> IcebergResponse:
    """A staged table, which is not committed yet and has no metadata file."""
    document = b"".join((b'{"metadata":', *metadata.pieces(), *_access_fields(access), b"}"))
    return IcebergResponse(200, document, (_JSON,))


def view_table_response(metadata: TableMetadata, tag: str, access: TableAccess) -> IcebergResponse:
    """A table in a view of the lake. Its document is in no file; the location that it names is that of none."""
    # PyIceberg chooses its file system by this location, and where it is missing by the name of the warehouse.
    location = f"{metadata.location}/metadata/view-{metadata.uuid}.metadata.json"
    document = _metadata_document(location, metadata.pieces(), b"", access)
    return IcebergResponse(200, document, (_JSON, (b"etag", tag.encode())))


def credentials_response(storage_credentials: bytes) -> IcebergResponse:
    """The response to a request for credentials; `storage_credentials` is JSON."""
    return IcebergResponse(200, b'{"storage-credentials":' + storage_credentials + b"}", (_JSON,))


def _access_fields(access: TableAccess) -> tuple[bytes, ...]:
    if access == NO_TABLE_ACCESS:
        return (b',"config":', access.config)
    return (b',"config":', access.config, b',"storage-credentials":', access.storage_credentials)


def view_response(view: LoadedView) -> IcebergResponse:
    return IcebergResponse(200, _metadata_document(view.location, view.view.pieces(), b""), (_JSON,))


def _metadata_document(
    location: str, pieces: Sequence[bytes], extra: bytes, access: TableAccess = NO_TABLE_ACCESS
) -> bytes:
    head = b'{"metadata-location":' + orjson.dumps(location) + b',"metadata":'
    return b"".join((head, *pieces, extra, *_access_fields(access), b"}"))


def entity_tag(location: str, only_referenced: bool) -> str:
    """The ETag of a table. A metadata file never changes, so its name identifies its content."""
    name = hashlib.blake2s(location.encode(), digest_size=16).hexdigest()
    return f'"{name}-refs"' if only_referenced else f'"{name}"'


def identifiers_response(namespace: Sequence[str], names: Sequence[str], token: str | None) -> IcebergResponse:
    entries = [{"namespace": namespace, "name": name} for name in names]
    return json_response({"identifiers": entries, "next-page-token": token})


def namespaces_response(parent: Sequence[str], names: Sequence[str], token: str | None) -> IcebergResponse:
    return json_response({"namespaces": [[*parent, name] for name in names], "next-page-token": token})


def transaction_response(tables: Mapping[Identifier, CommittedTable]) -> IcebergResponse:
    """The response to a transaction: 204, or the tables in which it repeats an earlier commit (hazards 14, 47).

    Only rounds of the pipeline can be repeats, and only the pipeline reads this body; other clients ignore it.
    """
    entries: list[Object] = [
        {"namespace": identifier.namespace, "name": identifier.name, "snapshot-id": table.repeated}
        for identifier, table in tables.items()
        if table.repeated is not None
    ]
    return json_response({"repeated": entries}) if entries else NO_CONTENT


# --- errors -----------------------------------------------------------------------------------------------------------


def error_response(error: errors.IcestreamError) -> IcebergResponse:
    status, kind = error_codes.iceberg_error(error)
    extra: Object = {"hint": error.hint, "retryable": error.retryable}
    if isinstance(error, errors.CommitConflict) and error.details:
        extra["details"] = error.details
    return _error_document(status, kind, str(error), extra, _ERROR_HEADERS.get(status, ()))


def status_response(status: int, message: str, headers: tuple[Header, ...] = ()) -> IcebergResponse:
    """The error for a request that is rejected before it reaches the catalog."""
    return _error_document(status, _TYPES.get(status, "BadRequestException"), message, {}, headers)


def token_response(document: Mapping[str, Any], status: int = 200) -> IcebergResponse:
    """A response of the token endpoint, in OAuth2's format: a client shows its errors."""
    headers: tuple[Header, ...] = (_JSON, (b"pragma", b"no-cache"))
    if status == 401:
        headers += ((b"www-authenticate", b'Basic realm="icestream"'),)
    return IcebergResponse(status, orjson.dumps(document), headers)


def _error_document(
    status: int, kind: str, message: str, extra: Object, headers: tuple[Header, ...]
) -> IcebergResponse:
    document = {"message": _text(message), "type": kind, "code": status, **extra}
    return IcebergResponse(status, orjson.dumps({"error": document}), (_JSON, *headers))


def _text(message: str) -> str:
    """The message with lone surrogates escaped: input of a client that it quotes may contain them."""
    return message.encode("utf-8", "backslashreplace").decode()


async def compress(response: IcebergResponse, accepted: str | None) -> IcebergResponse:
    """The response as it is sent to a client with this Accept-Encoding header: with gzip if it is large, because the
    metadata of a table grows with its snapshots."""
    size = len(response.body)
    # Compressing a small response would not save a packet.
    if size < limits.CATALOG_GZIP_BYTES_MIN or not accepts_gzip(accepted):
        return response
    if size < limits.CATALOG_GZIP_INLINE_BYTES_MAX:
        body = gzip.compress(response.body, _GZIP_LEVEL, mtime=0)
    else:
        # A large body would block the event loop.
        body = await asyncio.to_thread(gzip.compress, response.body, _GZIP_LEVEL, mtime=0)
    return response._replace(body=body, headers=(*response.headers, *_GZIP_HEADERS))


def accepts_gzip(accepted: str | None) -> bool:
    """Whether an Accept-Encoding header names gzip (or everything) with a weight above 0."""
    weights: dict[str, float] = {}
    for part in (accepted or "").lower().split(","):
        coding, _, parameter = part.partition(";")
        name, _, value = parameter.strip().partition("=")
        try:
            weights[coding.strip()] = float(value) if name.strip() == "q" else 1.0
        except ValueError:
            return False
    return weights.get("gzip", weights.get("*", 0.0)) > 0
