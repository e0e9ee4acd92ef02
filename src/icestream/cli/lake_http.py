"""The API of the lake process as commands ask it: /api/v1/lake, at the address of the node's own catalog."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from icestream import errors
from icestream.cli.broker import HINT
from icestream.cli.told_settings import instance_of
from icestream.runtime.instance import HEADER, check_instance
from icestream.settings.derive import lake_uri

if TYPE_CHECKING:
    from icestream.settings import Settings

Document = dict[str, Any]
WAIT_SECONDS: Final = 60.0  # an operation writes a file and moves a pointer; an outcome may take 20 s to be known


class LakeApi:
    def __init__(self, settings: Settings, command: str = "", *, needs_own: bool = True) -> None:
        """`command`: what needs it, for people. Raises InvalidInput where the tables are in another catalog, and it
        `needs_own`."""
        if needs_own and not settings.catalog_embedded:
            raise errors.InvalidInput(
                f"{command or 'this'} needs the embedded catalog, and the settings name one of type "
                f"`{settings.catalog.type}`",
                hint="only the catalog inside a node knows which topic a table belongs to; change a table elsewhere "
                "with an engine, or give the settings of a node with its own catalog",
            )
        self._uri = settings.catalog.uri or ""
        if not settings.catalog_embedded:
            self._uri = lake_uri(settings.node.bind_host, settings.ports.lake)
        self._token = own_token(settings)
        self._instance = instance_of(settings)

    def check_listens(self) -> None:
        """Raises ConnectionLost where nobody does."""
        where = urlsplit(self._uri)
        try:
            socket.create_connection((where.hostname or "", where.port or 80), timeout=WAIT_SECONDS).close()
        except OSError as error:
            raise self._silent(error) from None

    def get(self, path: str, **asked: object) -> Document:
        query = urlencode([(name, value) for name, value in asked.items() if value is not None], doseq=True)
        return self._ask("GET", f"{path}?{query}", None)

    def lines(self, path: str, **asked: object) -> Iterator[Document]:
        """An answer of many documents, each as it comes; the next one within WAIT_SECONDS."""
        query = urlencode([(name, value) for name, value in asked.items() if value is not None], doseq=True)
        connection = self._connection()
        try:
            connection.request("GET", f"/api/v1/lake/{path}?{query}", None, self._headers())
            answer = self._checked(connection.getresponse())
            if answer.status >= 400:
                _read(answer.status, answer.read())
            while line := answer.readline():
                yield _read(answer.status, line)
        except (OSError, HTTPException) as error:
            raise self._silent(error) from None
        finally:
            connection.close()

    def post(self, path: str, **given: object) -> Document:
        return self._ask("POST", path, {name: value for name, value in given.items() if value is not None})

    def _ask(self, method: str, path: str, body: Document | None) -> Document:
        connection = self._connection()
        try:
            raw = None if body is None else json.dumps(body).encode()
            connection.request(method, f"/api/v1/lake/{path}", raw, self._headers())
            answer = self._checked(connection.getresponse())
            return _read(answer.status, answer.read())
        except (OSError, HTTPException) as error:
            raise self._silent(error) from None
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        where = urlsplit(self._uri)
        return HTTPConnection(where.hostname or "", where.port or 80, timeout=WAIT_SECONDS)

    def _headers(self) -> dict[str, str]:
        said = {"Accept": "application/json", "Content-Type": "application/json"}
        said |= {HEADER: self._instance} if self._instance else {}
        return said | ({"Authorization": f"Bearer {self._token}"} if self._token is not None else {})

    def _checked(self, answer: HTTPResponse) -> HTTPResponse:
        """Raises ForeignBroker where the lake process of another broker answers. An error without an instance proves
        nothing: the lake process may not be connected to its broker yet."""
        instance = answer.getheader(HEADER)
        if answer.status < 400 or instance is not None:
            check_instance(self._instance, instance, urlsplit(self._uri).netloc)
        return answer

    def _silent(self, error: Exception) -> errors.ConnectionLost:
        return errors.ConnectionLost(f"{self._uri} does not answer: {error!r}", hint=HINT)


def _read(status: int, body: bytes) -> Document:
    try:
        found: Document = json.loads(body)
    except ValueError:
        raise errors.UnexpectedAnswer(f"status {status}, and no JSON", hint=HINT) from None
    if status < 400:
        return found
    if status == 401:
        detail = str(found.get("detail", ""))
        raise errors.AccessDenied(detail, hint="set storage.iceberg_config.catalog.token, or lake.token_file")
    raise error_of(found)


def error_of(problem: Document) -> errors.IcestreamError:
    """What the API told as a problem."""
    detail, hint = str(problem.get("detail", "")), str(problem.get("hint", ""))
    return errors.BY_CODE.get(str(problem.get("code")), errors.UnexpectedAnswer)(detail, hint=hint)


def own_token(settings: Settings) -> str | None:
    """Of the node's own catalog: as the settings say, else the first of its own file, where that can be read."""
    if settings.catalog.token is not None and settings.catalog_embedded:
        return settings.catalog.token.get_secret_value()
    path: Path | None = settings.lake.token_file
    try:
        lines = path.read_text(encoding="ascii").splitlines() if path is not None else []
    except (OSError, UnicodeDecodeError):
        return None
    return next((token for line in lines if (token := line.strip()) and not token.startswith("#")), None)
