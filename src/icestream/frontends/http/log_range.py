"""Bytes of a log file over HTTP, for tasks of the pipeline that run on another machine than the broker.

    GET /wal/NUMBER?from=POSITION&to=POSITION&lease=NAME        Authorization: Bearer TOKEN
    200    the bytes [from, to), a copy (hazard 15); at most LOG_RANGE_BYTES_MAX: who wants more asks for the next piece
    400    no positions, more than that, or bytes behind the last synced record
    403    not the token of this broker's life: the backlog tells it
    404    no file of this log ever had the number
    410    the file was used again, or the lease holds it no longer: the round is over (hazard 29)
    503    the broker still starts

The records in it are verified by who reads them: a piece may begin and end anywhere.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus

from icestream import error_codes, errors, limits
from icestream.broker.pipeline_service import PipelineService
from icestream.observability.http_listener import Response
from icestream.observability.http_request import Request

CONTENT_TYPE = "application/octet-stream"


async def log_range(ingest: PipelineService | None, request: Request) -> Response:
    """`ingest` is None while the broker starts, and for one in memory."""
    if ingest is None:
        return _said(HTTPStatus.SERVICE_UNAVAILABLE, "there is no log that could be read")
    if not _is_allowed(request, ingest.place.token):
        return _said(HTTPStatus.FORBIDDEN, "this needs the token that the broker tells the pipeline")
    number = request.path.removeprefix("/wal/")
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        return _said(HTTPStatus.NOT_FOUND, "a log file is named by its number")
    try:
        start, end = _position(request, "from"), _position(request, "to")
        if end - start > limits.LOG_RANGE_BYTES_MAX:
            raise errors.InvalidInput(f"{end - start} bytes", hint=f"ask for {limits.LOG_RANGE_BYTES_MAX} at a time")
        lease = request.query.get("lease", [""])[-1]
        return Response(HTTPStatus.OK, await ingest.copy(lease, int(number), start, end), CONTENT_TYPE)
    except errors.StaleRead as error:
        return _said(HTTPStatus.GONE, str(error))
    except errors.IcestreamError as error:
        return _said(HTTPStatus(error_codes.http_status(error)), str(error))


def _is_allowed(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _position(request: Request, name: str) -> int:
    given = request.query.get(name, [""])[-1]
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise errors.InvalidInput(f"`{name}` is no position in the file")
    return int(given)


def _said(status: HTTPStatus, message: str) -> Response:
    return Response(status, f"{message}\n".encode())
