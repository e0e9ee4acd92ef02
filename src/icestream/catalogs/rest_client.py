"""HTTP to a REST catalog: one request, one answer, and what is known about a request that got none.

A request that was never sent (no connection) changed nothing. One that was sent and not answered may have. Redirects
are not followed: they would carry the token elsewhere. Credentials are in headers only, and none of them is logged.

Our own catalog is asked by the instance of its broker (runtime/instance.py): where another broker has taken the port,
nothing is done there, and the answer is ForeignBroker.
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

_TOKEN_LIFETIME_SECONDS: Final = 3600.0  # of a token that does not say
_ANSWER_BYTES_MAX: Final = limits.CATALOG_DOCUMENT_BYTES_MAX + limits.MIB
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
    def __init__(self, options: RestOptions, clock: Clock, instance: Callable[[], str] | None = None) -> None:
        """`instance`: of the broker whose own catalog this is; empty while it is not known."""
        self._options = options
        self._instance = instance or str
        self._clock = clock
        self._http: httpx2.AsyncClient | None = None
        self._token = options.token
        self._token_until_ns: int | None = None  # None: it does not end
        self._fetching = asyncio.Lock()

    @property
    def base(self) -> str:
        return self._options.uri.rstrip("/").removesuffix("/v1")

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> RestResponse:
        """Once; and once more with a fresh token, where the first one was refused."""
        url = f"{self.base}/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else orjson.dumps(body)
        token = await self._valid_token()
        instance = self._instance()
        headers = {**(headers or {}), HEADER: instance} if instance else headers or {}
        answer = await self._exchange(method, url, data, self._with_token(token, headers))
        if answer.status < 400 or answer.instance is not None:  # else it may not be connected to its broker yet
            check_instance(instance, answer.instance, urlsplit(self.base).netloc)
        if answer.status in (401, 419) and self._options.credential is not None and self._options.token is None:
            fresh = await self._valid_token(refused=token)
            answer = await self._exchange(method, url, data, self._with_token(fresh, headers))
        return answer

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def _with_token(self, token: str | None, headers: Mapping[str, str]) -> dict[str, str]:
        authorization = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return {"Content-Type": "application/json", **self._options.headers, **authorization, **headers}

    # --- tokens ---

    async def _valid_token(self, refused: str | None = None) -> str | None:
        if self._options.credential is None or self._options.token is not None:
            return self._token
        async with self._fetching:
            ends_ns = self._token_until_ns
            is_old = ends_ns is not None and self._clock.monotonic_ns() >= ends_ns
            if self._token is None or is_old or self._token == refused:
                await self._fetch_token(self._options.credential)
        return self._token

    async def _fetch_token(self, credential: str) -> None:
        """OAuth2 client credentials, as Iceberg's clients send them. Some servers read the head, some the body."""
        client, _, secret = credential.rpartition(":")
        form = {"grant_type": "client_credentials", "client_id": client, "client_secret": secret}
        form["scope"] = self._options.scope
        head = {"Content-Type": "application/x-www-form-urlencoded", **self._options.headers}
        if client:
            pair = base64.b64encode(f"{client}:{secret}".encode()).decode()
            head["Authorization"] = f"Basic {pair}"
        url = self._options.token_uri or f"{self.base}/v1/oauth/tokens"
        answer = await self._exchange("POST", url, urlencode(form).encode(), head)
        if answer.status in (400, 401, 403):
            raise errors.AccessDenied(
                f"{url} gives no token for the credential (status {answer.status})",
                hint="check `credential` and `scope` of storage.iceberg_config.catalog",
            )
        try:
            reply = decode_response(answer, {}, url)
        except errors.StorageUnavailable as error:  # asking for a token changes nothing
            raise errors.StorageUnavailable(error.message, hint=error.hint) from None
        token, lifetime = reply.get("access_token"), reply.get("expires_in")
        if not isinstance(token, str):
            raise errors.UnexpectedAnswer(f"{url} answers without an access_token", hint="check `token_uri`")
        seconds = float(lifetime) if isinstance(lifetime, int | float) else _TOKEN_LIFETIME_SECONDS
        margin = min(limits.TOKEN_MARGIN_SECONDS, seconds / 2)
        self._token = token
        self._token_until_ns = self._clock.monotonic_ns() + int((seconds - margin) * 1e9)

    # --- the wire ---

    async def _exchange(self, method: str, url: str, data: bytes | None, headers: Mapping[str, str]) -> RestResponse:
        import httpx2

        client = self._client()
        try:
            async with client.stream(method, url, content=data, headers=headers) as response:
                body = bytearray()
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _ANSWER_BYTES_MAX:
                        raise errors.UnexpectedAnswer(f"{self.base} answers with more than {_ANSWER_BYTES_MAX} bytes")
                return RestResponse(response.status_code, bytes(body), response.headers.get(HEADER))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise errors.StorageUnavailable(
                f"{self.base} cannot be reached: {_words(error)}",
                hint="is the catalog running, and is `uri` right?",
            ) from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise errors.StorageUnavailable(
                f"{self.base} did not answer to the end: {_words(error)}",
                hint="look at the catalog, and at what lies between",
                is_ambiguous=True,
            ) from None
        except httpx2.InvalidURL as error:
            raise errors.InvalidInput(f"{url} is no URL: {error}") from None

    def _client(self) -> httpx2.AsyncClient:
        """At the first request: the library is only loaded where there is a catalog elsewhere."""
        import httpx2

        if self._http is None:
            self._http = httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._options.request_seconds),
                limits=httpx2.Limits(max_connections=_CONNECTIONS_MAX, max_keepalive_connections=_CONNECTIONS_MAX),
                follow_redirects=False,
                trust_env=False,
            )
        return self._http


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
