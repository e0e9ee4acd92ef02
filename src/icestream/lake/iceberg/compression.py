"""Large answers go out compressed where the client takes gzip: the document of a table grows with its snapshots.

Small ones do not: a packet is not worth the time. The fastest level is used, for it takes most of the redundancy away.
A large body is compressed in a thread: the loop would stand meanwhile.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import Final

from icestream import limits
from icestream.lake.iceberg.responses import Answer

_LEVEL: Final = 1
_HEADERS: Final = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


async def compressed(answer: Answer, accepted: str | None) -> Answer:
    """The answer as it is sent to a client with this Accept-Encoding header."""
    size = len(answer.body)
    if size < limits.CATALOG_GZIP_BYTES_MIN or not accepts_gzip(accepted):
        return answer
    if size < limits.CATALOG_GZIP_INLINE_BYTES_MAX:
        body = gzip.compress(answer.body, _LEVEL, mtime=0)
    else:
        body = await asyncio.to_thread(gzip.compress, answer.body, _LEVEL, mtime=0)
    return answer._replace(body=body, headers=(*answer.headers, *_HEADERS))


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
