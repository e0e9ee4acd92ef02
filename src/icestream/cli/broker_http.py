"""A look at the HTTP of this node."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException

from icestream import errors, limits
from icestream.cli.broker import EVERYWHERE, HINT


def http_get(host: str, port: int, path: str, accept: str = "*/*", token: str | None = None) -> tuple[int, bytes]:
    """Status and body. Raises ConnectionLost when nobody answers there, or not in HTTP. Blocks, for some seconds."""
    connection = HTTPConnection(EVERYWHERE.get(host, host), port, timeout=limits.CLIENT_CONNECT_SECONDS_DEFAULT)
    headers = {"Accept": accept} if token is None else {"Accept": accept, "Authorization": f"Bearer {token}"}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException) as error:
        raise errors.ConnectionLost(f"http://{host}:{port}{path} does not answer: {error!r}", hint=HINT) from None
    finally:
        connection.close()
