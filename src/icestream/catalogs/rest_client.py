"""HTTP client of a REST catalog: one request, one response, or an error that says whether it may have been applied.

A request that could not be sent (no connection) changed nothing. A request that was sent and got no complete response
may have been applied. Redirects are not followed: they would send the token to another server. Credentials are in
headers only, and are never logged.

Requests to our own catalog carry the instance id of its broker (runtime/instance.py): if another broker listens on the
port now, it refuses them, and ForeignBroker is raised.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import orjson

from icestream import errors, limits
from icestream.catalogs.rest_response import RestResponse, decode_response
from icestream.runtime.clock import Clock
from icestream.runtime.instance import HEADER, check_instance

if TYPE_CHECKING:
    import httpx2

_TOKEN_LIFETIME_SECONDS: Final = 3600.0  # of a token whose response has no `expires_in`
_RESPONSE_BYTES_MAX: Final = limits.CATALOG_DOCUMENT_BYTES_MAX + limits.MIB
_CONNECTIONS_MAX: Final = 16


@dataclass(frozen=True)
class RestOptions:
    uri: str
    warehouse: str | None = None
    token: str | None = field(default=None, repr=False)
    credential: str | None = field(default=None, repr=False)
    token_uri: str | None = None
    scope: str = "catalog"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000


class RestClient:
    """Sends requests to one server, with its token."""

    def __init__(self, options: RestOptions, clock: Clock, instance: Callable[[], str] | None = None) -> None:
        """`instance`: the instance id of the broker whose embedded catalog this is; empty while it is unknown."""
        self._options = options
        self._instance = instance or str
        self._clock = clock
        self._http: httpx2.AsyncClient | None = None
        self._token = options.token
        self._token_until_ns: int | None = None  # None: the token does not expire
        self._token_lock = asyncio.Lock()

    @property
    def base(self) -> str:
        return self._options.uri.rstrip("/").removesuffix("/v1")

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> RestResponse:
        """Sends a request; once more with a fresh token if the first token was refused.

        Raises StorageUnavailable without a complete response, AccessDenied without a token.
        """
        url = f"{self.base}/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else orjson.dumps(body)
        token = await self._valid_token()
        instance = self._instance()
        headers = {**(headers or {}), HEADER: instance} if instance else headers or {}
        response = await self._exchange(method, url, data, self._with_token(token, headers))
        # An error without an instance id may come from a lake process that is not connected to its broker yet.
        if response.status < 400 or response.instance is not None:
            check_instance(instance, response.instance, urlsplit(self.base).netloc)
        if response.status in (401, 419) and self._options.credential is not None and self._options.token is None:
            fresh = await self._valid_token(refused=token)
            response = await self._exchange(method, url, data, self._with_token(fresh, headers))
        return response

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def _with_token(self, token: str | None, headers: Mapping[str, str]) -> dict[str, str]:
        authorization = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return {"Content-Type": "application/json", **self._options.headers, **authorization, **headers}

    # --- tokens ---

    async def _valid_token(self, refused: str | None = None) -> str | None:
        """Returns the token of the settings, or a fetched one that is still valid and is not the `refused` one."""
        if self._options.credential is None or self._options.token is not None:
            return self._token
        async with self._token_lock:
            ends_ns = self._token_until_ns
            is_old = ends_ns is not None and self._clock.monotonic_ns() >= ends_ns
            if self._token is None or is_old or self._token == refused:
                await self._fetch_token(self._options.credential)
        return self._token

    async def _fetch_token(self, credential: str) -> None:
        """Requests a token with OAuth2 client credentials, as Iceberg's clients do. Raises AccessDenied,
        UnexpectedAnswer."""
        client, _, secret = credential.rpartition(":")
        # The credentials are in the header and in the body: some servers read the one, some the other.
        form = {"grant_type": "client_credentials", "client_id": client, "client_secret": secret}
        form["scope"] = self._options.scope
        headers = {"Content-Type": "application/x-www-form-urlencoded", **self._options.headers}
        if client:
            pair = base64.b64encode(f"{client}:{secret}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        url = self._options.token_uri or f"{self.base}/v1/oauth/tokens"
        response = await self._exchange("POST", url, urlencode(form).encode(), headers)
        if response.status in (400, 401, 403):
            raise errors.AccessDenied(
                f"{url} refuses a token for the credential (status {response.status})",
                hint="check `credential` and `scope` of storage.iceberg_config.catalog",
            )
        try:
            reply = decode_response(response, {}, url)
        except errors.StorageUnavailable as error:  # not ambiguous: a request for a token changes nothing
            raise errors.StorageUnavailable(error.message, hint=error.hint) from None
        token, lifetime = reply.get("access_token"), reply.get("expires_in")
        if not isinstance(token, str):
            raise errors.UnexpectedAnswer(f"{url}: response without an access_token", hint="check `token_uri`")
        seconds = float(lifetime) if isinstance(lifetime, int | float) else _TOKEN_LIFETIME_SECONDS
        # Renewed before it expires: a request takes time, and clocks differ.
        margin = min(limits.TOKEN_MARGIN_SECONDS, seconds / 2)
        self._token = token
        self._token_until_ns = self._clock.monotonic_ns() + int((seconds - margin) * 1e9)

    # --- HTTP ---

    async def _exchange(self, method: str, url: str, data: bytes | None, headers: Mapping[str, str]) -> RestResponse:
        """Sends a request and reads the whole response. Raises StorageUnavailable; ambiguous if the request may have
        been received."""
        import httpx2

        client = self._client()
        try:
            async with client.stream(method, url, content=data, headers=headers) as response:
                body = bytearray()
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _RESPONSE_BYTES_MAX:
                        raise errors.UnexpectedAnswer(f"{self.base}: response exceeds {_RESPONSE_BYTES_MAX} bytes")
                return RestResponse(response.status_code, bytes(body), response.headers.get(HEADER))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise errors.StorageUnavailable(
                f"{self.base} cannot be reached: {_error_text(error)}",
                hint="is the catalog running, and is `uri` right?",
            ) from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise errors.StorageUnavailable(
                f"{self.base}: incomplete response: {_error_text(error)}",
                hint="check the catalog, and proxies before it",
                is_ambiguous=True,
            ) from None
        except httpx2.InvalidURL as error:
            raise errors.InvalidInput(f"{url} is not a valid URL: {error}") from None

    def _client(self) -> httpx2.AsyncClient:
        """Returns the HTTP client, created with the first request: nodes without another catalog never import it."""
        import httpx2

        if self._http is None:
            self._http = httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._options.request_seconds),
                limits=httpx2.Limits(max_connections=_CONNECTIONS_MAX, max_keepalive_connections=_CONNECTIONS_MAX),
                follow_redirects=False,
                trust_env=False,
            )
        return self._http


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
