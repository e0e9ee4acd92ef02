"""A look at the broker's own HTTP."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException

from icestream import errors, limits
from icestream.cli.connection import EVERYWHERE, HINT


def http_get(host: str, port: int, path: str, accept: str = "*/*") -> tuple[int, bytes]:
    """Status and body. Raises ConnectionLost when nobody answers there, or not in HTTP. Blocks, for some seconds."""
    connection = HTTPConnection(EVERYWHERE.get(host, host), port, timeout=limits.CLIENT_CONNECT_SECONDS_DEFAULT)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException) as error:
        raise errors.ConnectionLost(f"http://{host}:{port}{path} does not answer: {error!r}", hint=HINT) from None
    finally:
        connection.close()
