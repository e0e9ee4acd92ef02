"""A client of the lake process's HTTP API for commands: /api/v1/lake, at the address of the embedded catalog."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from icestream import errors
from icestream.cli.broker_http import http_connection, listener_context
from icestream.cli.broker_location import NO_BROKER_HINT
from icestream.cli.broker_settings import broker_instance
from icestream.runtime.instance import HEADER, check_instance
from icestream.runtime.listener_tls import tls_files
from icestream.settings.derive import lake_uri

if TYPE_CHECKING:
    from icestream.settings import Settings

Document = dict[str, Any]
WAIT_SECONDS: Final = 60.0  # an operation writes a file and a transaction; its outcome may take 20 s to determine


class LakeApi:
    """A client of the lake process. One connection per request: a command makes few."""

    def __init__(self, settings: Settings, command: str = "", *, needs_embedded: bool = True) -> None:
        """`command` names the command in the error. Raises InvalidInput if `needs_embedded` and the tables are in
        another catalog."""
        if needs_embedded and not settings.catalog_embedded:
            raise errors.InvalidInput(
                f"{command or 'this command'} needs the embedded catalog, but the settings name a catalog of type "
                f"`{settings.catalog.type}`",
                hint="only the embedded catalog records which topic a table belongs to; change tables of other "
                "catalogs with an engine, or pass the settings of a node with the embedded catalog",
            )
        self._uri = settings.catalog.uri or ""
        if not settings.catalog_embedded:
            is_tls = tls_files(settings, "lake") is not None
            self._uri = lake_uri(settings.node.bind_host, settings.ports.lake, is_tls=is_tls)
        self._context = listener_context(settings, "lake") if self._uri.startswith("https:") else None
        self._token = read_catalog_token(settings)
        self._instance = broker_instance(settings)

    def check_listens(self) -> None:
        """Raises ConnectionLost if nothing listens at the address of the lake process."""
        uri = urlsplit(self._uri)
        try:
            socket.create_connection((uri.hostname or "", uri.port or 80), timeout=WAIT_SECONDS).close()
        except OSError as error:
            raise self._unreachable(error) from None

    def get(self, path: str, **parameters: object) -> Document:
        """The response to a GET request; parameters that are None are omitted."""
        return self._request("GET", f"{path}?{_query(parameters)}", None)

    def lines(self, path: str, **parameters: object) -> Iterator[Document]:
        """The documents of a response with one JSON document per line, as they arrive; each within WAIT_SECONDS."""
        connection = self._connection()
        try:
            connection.request("GET", f"/api/v1/lake/{path}?{_query(parameters)}", None, self._headers())
            response = self._check_instance(connection.getresponse())
            if response.status >= 400:
                _decode_response(response.status, response.read())
            while line := response.readline():
                yield _decode_response(response.status, line)
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def post(self, path: str, **fields: object) -> Document:
        """The response to a POST request with these fields as JSON; fields that are None are omitted."""
        return self._request("POST", path, {name: value for name, value in fields.items() if value is not None})

    def _request(self, method: str, path: str, body: Document | None) -> Document:
        connection = self._connection()
        try:
            raw = None if body is None else json.dumps(body).encode()
            connection.request(method, f"/api/v1/lake/{path}", raw, self._headers())
            response = self._check_instance(connection.getresponse())
            return _decode_response(response.status, response.read())
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        uri = urlsplit(self._uri)
        return http_connection(uri.hostname or "", uri.port or 80, WAIT_SECONDS, self._context)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        headers |= {HEADER: self._instance} if self._instance else {}
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token is not None else {})

    def _check_instance(self, response: HTTPResponse) -> HTTPResponse:
        """The response. Raises ForeignBroker if it comes from the lake process of another broker."""
        instance = response.getheader(HEADER)
        # An error without an instance proves nothing: the lake process may not be connected to its broker yet.
        if response.status < 400 or instance is not None:
            check_instance(self._instance, instance, urlsplit(self._uri).netloc)
        return response

    def _unreachable(self, error: Exception) -> errors.ConnectionLost:
        return errors.ConnectionLost(f"no response from {self._uri}: {error!r}", hint=NO_BROKER_HINT)


def _query(parameters: Document) -> str:
    return urlencode([(name, value) for name, value in parameters.items() if value is not None], doseq=True)


def _decode_response(status: int, body: bytes) -> Document:
    """The document. Raises the error that a problem document describes; UnexpectedAnswer if it is not JSON."""
    try:
        document: Document = json.loads(body)
    except ValueError:
        raise errors.UnexpectedAnswer(f"response with status {status} is not JSON", hint=NO_BROKER_HINT) from None
    if status < 400:
        return document
    if status == 401:
        detail = str(document.get("detail", ""))
        raise errors.AccessDenied(detail, hint="log in: icestream security login NAME; or set lake.token_file")
    raise problem_error(document)


def problem_error(problem: Document) -> errors.IcestreamError:
    """The error that a problem document of the API describes."""
    detail, hint = str(problem.get("detail", "")), str(problem.get("hint", ""))
    return errors.BY_CODE.get(str(problem.get("code")), errors.UnexpectedAnswer)(detail, hint=hint)


def read_catalog_token(settings: Settings) -> str | None:
    """The token of the lake process: that of the embedded catalog in the settings, else the first of the token file
    (of the broker, a context or the login), if that is readable; None without one."""
    if settings.catalog.token is not None and settings.catalog_embedded:
        return settings.catalog.token.get_secret_value()
    path: Path | None = settings.lake.token_file
    try:
        lines = path.read_text(encoding="ascii").splitlines() if path is not None else []
    except (OSError, UnicodeDecodeError):
        return None
    return next((token for line in lines if (token := line.strip()) and not token.startswith("#")), None)
