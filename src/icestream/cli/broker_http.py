"""A GET request to the HTTP port of a broker or lake process."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException

from icestream import errors, limits
from icestream.cli.broker_location import LOOPBACK_OF_WILDCARD, NO_BROKER_HINT


def http_get(host: str, port: int, path: str, accept: str = "*/*", token: str | None = None) -> tuple[int, bytes]:
    """Status and body. Blocks, for seconds at most. Raises ConnectionLost if the server is unreachable or does not
    speak HTTP."""
    connection = HTTPConnection(
        LOOPBACK_OF_WILDCARD.get(host, host), port, timeout=limits.CLIENT_CONNECT_SECONDS_DEFAULT
    )
    headers = {"Accept": accept} if token is None else {"Accept": accept, "Authorization": f"Bearer {token}"}
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException) as error:
        raise errors.ConnectionLost(
            f"no response from http://{host}:{port}{path}: {error!r}", hint=NO_BROKER_HINT
        ) from None
    finally:
        connection.close()
