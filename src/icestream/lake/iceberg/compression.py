"""Compresses large responses with gzip if the client accepts it: the metadata of a table grows with its snapshots.

Small responses are not compressed: that would not save a packet. The fastest level removes most of the redundancy. A
large body is compressed in a thread, because it would block the event loop.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import Final

from icestream import limits
from icestream.lake.iceberg.responses import IcebergResponse

_LEVEL: Final = 1
_HEADERS: Final = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


async def compress(response: IcebergResponse, accepted: str | None) -> IcebergResponse:
    """The response as it is sent to a client with this Accept-Encoding header."""
    size = len(response.body)
    if size < limits.CATALOG_GZIP_BYTES_MIN or not accepts_gzip(accepted):
        return response
    if size < limits.CATALOG_GZIP_INLINE_BYTES_MAX:
        body = gzip.compress(response.body, _LEVEL, mtime=0)
    else:
        body = await asyncio.to_thread(gzip.compress, response.body, _LEVEL, mtime=0)
    return response._replace(body=body, headers=(*response.headers, *_HEADERS))


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
