"""A GET request to the HTTP port of a broker or lake process."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING

from icestream import errors, limits
from icestream.cli.broker_location import LOOPBACK_OF_WILDCARD, NO_BROKER_HINT
from icestream.settings.text import is_loopback

if TYPE_CHECKING:
    from icestream.settings import Settings


def http_get(
    host: str,
    port: int,
    path: str,
    accept: str = "*/*",
    token: str | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body. Blocks, for seconds at most. `context`: None for plain text. Raises ConnectionLost if the server
    is unreachable or does not speak HTTP.

    `token` is sent by TLS, or on this machine: not in plain text through a network.
    """
    host = LOOPBACK_OF_WILDCARD.get(host, host)
    connection = http_connection(host, port, limits.CLIENT_CONNECT_SECONDS_DEFAULT, context)
    headers = {"Accept": accept}
    if token is not None and (context is not None or is_loopback(host)):
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException) as error:
        scheme = "http" if context is None else "https"
        raise errors.ConnectionLost(
            f"no response from {scheme}://{host}:{port}{path}: {error!r}", hint=NO_BROKER_HINT
        ) from None
    finally:
        connection.close()


def http_connection(host: str, port: int, seconds: float, context: ssl.SSLContext | None) -> HTTPConnection:
    if context is None:
        return HTTPConnection(host, port, timeout=seconds)
    return HTTPSConnection(host, port, timeout=seconds, context=context)


def listener_context(settings: Settings, listener: str) -> ssl.SSLContext | None:
    """For requests to a listener of the node that has these settings: its own certificate is accepted. None for plain
    text. Raises ConfigurationError for a certificate that cannot be read."""
    from icestream.runtime.listener_tls import tls_files, trusting_context  # loads the settings, as few commands do

    files = tls_files(settings, listener)
    return None if files is None else trusting_context(files)
