"""Keys for one table: a role that is assumed with a session policy (STS `AssumeRole`).

The keys expire after VENDED_KEYS_SECONDS, the shortest time that AWS allows; a right that was revoked ends with them at
the latest (hazard 111). Keys of the same caller, table and policy are handed out again for VENDED_KEYS_REUSED_SECONDS,
because an engine loads a table many times and AWS bounds the calls of an account.
"""

from __future__ import annotations

import re
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from cachebox import LRUCache

from icestream import errors, limits
from icestream.catalogs.aws_signature import AwsKeys, AwsRequest, SigningScope, sign
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.xml_answer import element_text

if TYPE_CHECKING:
    import httpx2

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_=,.@-]")
_NAME_CHARACTERS_MAX: Final = 64
_HINT: Final = "check table_role_arn of storage.iceberg_config.object_store, and who may assume it"


class TableRole:
    """Assumes one role for many tables."""

    def __init__(self, options: StoreOptions, keys: StoreKeys, caller: StorageCaller) -> None:
        """`caller`: with the deadline and the circuit breaker of the token service. Nothing is connected yet."""
        assert options.table_role_arn is not None
        self._role_arn = options.table_role_arn
        self._url = f"{sts_endpoint(options).rstrip('/')}/"
        self._scope = SigningScope(options.region or "us-east-1", "sts")
        self._request_seconds = options.request_seconds
        self._keys = keys
        self._caller = caller
        self._http: httpx2.AsyncClient | None = None
        self._assumed: LRUCache[tuple[str, str], tuple[AwsKeys, int]] = LRUCache(limits.VENDED_KEYS_KEPT_MAX)

    @property
    def partition(self) -> str:
        """The part of AWS that the role is in: `aws`, `aws-cn`, `aws-us-gov`."""
        return self._role_arn.split(":")[1]

    async def assume(self, policy: str, principal: str) -> AwsKeys:
        """Returns keys that open what the policy says. `principal`: for the log of the store. Raises AccessDenied,
        StorageUnavailable, UnexpectedAnswer."""
        now_ns = self._caller.clock.monotonic_ns()
        key = policy, principal
        cached: tuple[AwsKeys, int] | None = self._assumed.get(key)
        if cached is not None and now_ns < cached[1]:
            return cached[0]
        keys = await self._caller.read("assume the role of a table", lambda: self._ask(policy, principal))
        self._assumed.insert(key, (keys, now_ns + int(limits.VENDED_KEYS_REUSED_SECONDS * 1e9)))
        return keys

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _ask(self, policy: str, principal: str) -> AwsKeys:
        form = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._role_arn,
            "RoleSessionName": _NOT_IN_NAMES.sub("-", principal)[-_NAME_CHARACTERS_MAX:],
            "DurationSeconds": str(limits.VENDED_KEYS_SECONDS),
            "Policy": policy,
        }
        body = urlencode(form).encode()
        headers = {"content-type": "application/x-www-form-urlencoded"}
        request = AwsRequest("POST", self._url, headers, sha256(body).hexdigest())
        headers |= sign(request, await self._keys.current(), self._scope, self._caller.clock.wall_us())
        status, answer = await self._send(body, headers)
        if status >= 500 or status == 429:
            raise errors.StorageUnavailable(f"{self._url} answers with status {status}", hint=_HINT)
        if status != 200:
            raise errors.AccessDenied(
                f"{self._url} refuses the role {self._role_arn} (status {status}, {element_text(answer, 'Code')})",
                hint=_HINT,
            )
        return _parse_keys(answer, self._url)

    async def _send(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Raises StorageUnavailable: to assume a role changes nothing, so it may be repeated."""
        import httpx2

        if self._http is None:
            self._http = httpx2.AsyncClient(timeout=self._request_seconds, follow_redirects=False, trust_env=False)
        try:
            async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
                answer = bytearray()
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > limits.STS_ANSWER_BYTES_MAX:
                        raise errors.UnexpectedAnswer(
                            f"{self._url}: response exceeds {limits.STS_ANSWER_BYTES_MAX} bytes"
                        )
                return response.status_code, bytes(answer)
        except httpx2.TransportError as error:
            raise errors.StorageUnavailable(
                f"{self._url} cannot be reached: {str(error) or type(error).__name__}",
                hint="check sts_endpoint of storage.iceberg_config.object_store",
            ) from None


def sts_endpoint(options: StoreOptions) -> str:
    """Returns where roles are assumed: stores that are not AWS answer at the address of the store itself."""
    return options.sts_endpoint or options.endpoint or f"https://sts.{options.region or 'us-east-1'}.amazonaws.com"


def _parse_keys(answer: bytes, url: str) -> AwsKeys:
    expires = element_text(answer, "Expiration")
    key, secret, token = (element_text(answer, name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
    try:
        expires_ms = int(datetime.fromisoformat(expires).timestamp() * 1000)
    except ValueError:
        expires_ms = 0
    if not (key and secret and token and expires_ms):
        raise errors.UnexpectedAnswer(f"{url}: response without credentials", hint="is it a token service (STS)?")
    return AwsKeys(key, secret, token, expires_ms)
