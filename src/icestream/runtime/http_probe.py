"""One short HTTP request to a port of this machine: whether a server answers, and for which instance of a broker."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from icestream import errors, limits
from icestream.runtime.instance import HEADER

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a process listens, and where it is reached


class ProbeAnswer(NamedTuple):
    """The status of the answer, and the instance id in its header (None if it has none)."""

    status: int
    instance: str | None  # None: the answer names none


async def probe(host: str, port: int, path: str = "/livez", seconds: float = limits.PROBE_SECONDS_MAX) -> ProbeAnswer:
    """Sends the request. Raises ConnectionLost if no HTTP answer arrives within the time."""
    host = _EVERYWHERE.get(host, host)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            head = await _head(host, port, f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
    except TimeoutError:
        raise errors.ConnectionLost(f"{address} does not answer within {seconds:g} s") from None
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        raise errors.ConnectionLost(f"{address} does not answer: {error}") from None
    answer = parse_head(head)
    if answer is None:
        raise errors.ConnectionLost(f"{address} does not answer in HTTP")
    return answer


async def _head(host: str, port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=limits.HTTP_HEAD_BYTES_MAX)
    try:
        writer.write(request.encode("ascii"))
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


def parse_head(head: bytes) -> ProbeAnswer | None:
    """Status and instance of the head of an answer; None if it is not HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not (parts[1].isascii() and parts[1].isdigit()):
        return None
    fields = (line.partition(":") for line in lines)
    instance = next((value.strip() for name, _, value in fields if name.strip().lower() == HEADER.lower()), None)
    return ProbeAnswer(int(parts[1]), instance)
