"""One short HTTP request to a port of this machine: whether a server answers, and for which instance of a broker."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from icestream import errors, limits
from icestream.runtime.instance import HEADER
from icestream.runtime.listener_tls import ListenerTls, own_client_context

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a process listens, and where it is reached


class ProbeAnswer(NamedTuple):
    """The status of the answer, and the instance id in its header (None if it has none)."""

    status: int
    instance: str | None  # None: the answer names none


async def probe(
    host: str,
    port: int,
    path: str = "/livez",
    seconds: float = limits.PROBE_SECONDS_MAX,
    tls: ListenerTls | None = None,
) -> ProbeAnswer:
    """Sends the request. `tls`: the certificate that the server there has; None for plain text.

    A listener that requires certificates of clients refuses the probe, which has none: then the end of its handshake is
    the answer, with status 200. Raises ConnectionLost if no HTTP answer arrives within the time.
    """
    host = _EVERYWHERE.get(host, host)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
            head = await _head(host, port, request, None if tls is None else own_client_context(tls.pem.chain))
    except TimeoutError:
        raise errors.ConnectionLost(f"{address} does not answer within {seconds:g} s") from None
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        if tls is not None and tls.pem.is_client_required and not isinstance(error, ConnectionRefusedError):
            return ProbeAnswer(200, None)
        raise errors.ConnectionLost(f"{address} does not answer: {error}") from None
    answer = parse_head(head)
    if answer is None:
        raise errors.ConnectionLost(f"{address} does not answer in HTTP")
    return answer


async def _head(host: str, port: int, request: str, context: ssl.SSLContext | None) -> bytes:
    """Sends the request and returns the head of the answer; its body is not read."""
    reader, writer = await asyncio.open_connection(host, port, limit=limits.HTTP_HEAD_BYTES_MAX, ssl=context)
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
