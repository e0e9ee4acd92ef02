"""Bytes of a log file over HTTP, for tasks of the pipeline that run on another machine than the broker.

    GET /wal/NUMBER?from=POSITION&to=POSITION&lease=NAME        Authorization: Bearer TOKEN
    200    the bytes [from, to), a copy (hazard 15); at most LOG_RANGE_BYTES_MAX per request
    400    no positions, a larger range, or bytes after the last synced record
    403    not the token of this lease, which the driver gets with it (docs/adr/0077)
    404    the log never had a file with this number
    410    the file was recycled, or the lease does not cover it any more: the round is over (hazard 29)
    503    the broker is starting

The reader verifies the records: a range may begin and end anywhere.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus

from icestream import errors, limits
from icestream.broker.pipeline_service import PipelineService
from icestream.observability.http_listener import Response, error_response
from icestream.observability.http_request import Request

CONTENT_TYPE = "application/octet-stream"


async def log_range(ingest: PipelineService | None, request: Request) -> Response:
    """Answers a request for bytes of a log file. `ingest`: None while the broker starts, and for a broker in memory."""
    if ingest is None:
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, "no log is open")
    lease = request.query.get("lease", [""])[-1]
    if not _is_allowed(request, ingest.round_token(lease)):
        return _response(HTTPStatus.FORBIDDEN, "missing token, or not the one of this lease")
    # ASCII digits only, and few enough for 64 bits: `int` alone accepts signs, spaces and other digits.
    number = request.path.removeprefix("/wal/")
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        return _response(HTTPStatus.NOT_FOUND, "not the number of a log file")
    try:
        start, end = _position(request, "from"), _position(request, "to")
        if end - start > limits.LOG_RANGE_BYTES_MAX:
            raise errors.InvalidInput(
                f"range of {end - start} bytes exceeds the limit of {limits.LOG_RANGE_BYTES_MAX}",
                hint="request smaller ranges",
            )
        copy = await ingest.copy(lease, int(number), start, end)
        return Response(HTTPStatus.OK, copy, CONTENT_TYPE, is_recognised=True)
    except errors.StaleRead as error:
        return _response(HTTPStatus.GONE, str(error))
    except errors.IcestreamError as error:
        return error_response(error)


def _is_allowed(request: Request, token: str) -> bool:
    """True if the request has the token. Compared in constant time: an attacker must not find it byte by byte."""
    scheme, _, presented_token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(presented_token.strip().encode(), token.encode())


def _position(request: Request, name: str) -> int:
    """A position in the file from the query. Raises InvalidInput."""
    text = request.query.get(name, [""])[-1]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise errors.InvalidInput(
            f"`{name}` is not a position in the file: {text[:40]!r}", hint="0 or a positive number of bytes"
        )
    return int(text)


def _response(status: HTTPStatus, message: str) -> Response:
    return Response(status, f"{message}\n".encode())
