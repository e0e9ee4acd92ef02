"""Object lock of S3: until when the store keeps an object. By requests that are signed here, because obstore has none.

    check_bucket  GET ?object-lock            the bucket has object lock
    retention     GET /KEY?retention          what an object is locked with; None without a lock
    extend        PUT /KEY?retention          locks an object at least so long; shortens and weakens nothing
    put_new       PUT /KEY, x-amz-object-lock-mode, x-amz-object-lock-retain-until-date, If-None-Match: *
                                              a new object, locked from its first moment; False if its name is taken

A lock belongs to the version of an object that is the current one at the request. The mode GOVERNANCE is lifted by
accounts with the right s3:BypassGovernanceRetention, COMPLIANCE by none. Dates have seconds; ours are rounded up.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import quote

from icestream import errors, limits
from icestream.catalogs.aws_signature import AwsRequest, SigningScope, sign
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.xml_answer import element_text

if TYPE_CHECKING:
    import httpx2

LockMode = Literal["governance", "compliance"]
_STRENGTH: Final = {"governance": 0, "compliance": 1}
_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_DEFAULT_REGION: Final = "us-east-1"
_NO_LOCK: Final = ("NoSuchObjectLockConfiguration", "ObjectLockConfigurationNotFoundError")
_LOCK_HINT: Final = (
    "create the bucket with object lock (and its versions) enabled, name it as the target, or set "
    "backup.object_lock.mode=off"
)


class ObjectRetention(NamedTuple):
    """How an object is locked, and until when, in ms since 1970."""

    mode: LockMode
    until_ms: int

    def covers(self, wanted: ObjectRetention) -> bool:
        """Whether this lock is as long and as strong as another one."""
        return self.until_ms >= wanted.until_ms and _STRENGTH[self.mode] >= _STRENGTH[wanted.mode]

    def extended(self, wanted: ObjectRetention) -> ObjectRetention:
        """The lock that is as long and as strong as both."""
        return ObjectRetention(
            max(self.mode, wanted.mode, key=_STRENGTH.__getitem__), max(self.until_ms, wanted.until_ms)
        )


def retention_date(until_ms: int) -> str:
    """The date of a lock as S3 has it, not before this time."""
    return datetime.fromtimestamp(-(-until_ms // 1_000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def retention_text(retention: ObjectRetention | None) -> str:
    """A lock, in words."""
    if retention is None:
        return "not locked"
    return f"locked until {retention_date(retention.until_ms)} ({retention.mode})"


def encode_retention(retention: ObjectRetention) -> bytes:
    """The body of PutObjectRetention."""
    return (
        f'<Retention xmlns="{_NAMESPACE}"><Mode>{retention.mode.upper()}</Mode>'
        f"<RetainUntilDate>{retention_date(retention.until_ms)}</RetainUntilDate></Retention>"
    ).encode()


def decode_retention(answer: bytes) -> ObjectRetention | None:
    """What GetObjectRetention answers; None for an empty answer. Raises UnexpectedAnswer."""
    mode, date = element_text(answer, "Mode").lower(), element_text(answer, "RetainUntilDate")
    if not mode and not date:
        return None
    try:
        until = datetime.fromisoformat(date)
    except ValueError:
        until = None
    if mode not in ("governance", "compliance") or until is None or until.tzinfo is None:
        raise errors.UnexpectedAnswer(f"not the retention of an object: mode {mode[:40]!r} until {date[:40]!r}")
    return ObjectRetention("governance" if mode == "governance" else "compliance", int(until.timestamp() * 1_000))


def bucket_url(options: StoreOptions, bucket: str) -> str:
    """The address of a bucket, as obstore has it: an endpoint without `path_style` is that of the bucket itself."""
    if options.endpoint is None:
        return f"https://s3.{options.region or _DEFAULT_REGION}.amazonaws.com/{bucket}"
    endpoint = options.endpoint.rstrip("/")
    return f"{endpoint}/{bucket}" if options.path_style else endpoint


class ObjectLocks:
    """The object lock of one bucket. Nothing is connected yet."""

    def __init__(
        self, options: StoreOptions, bucket: str, key_of: Callable[[str], str], keys: StoreKeys, caller: StorageCaller
    ) -> None:
        """`key_of`: the key of an object by its name."""
        self.bucket = bucket
        self.key_of = key_of
        self.url = bucket_url(options, bucket)
        self.scope = SigningScope(options.region or _DEFAULT_REGION, "s3")
        self.keys = keys
        self.caller = caller
        self._request_seconds = options.request_seconds

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[LockRequests]:
        """Requests over connections that are closed in the end."""
        import httpx2

        async with httpx2.AsyncClient(timeout=self._request_seconds, follow_redirects=False, trust_env=False) as client:
            yield LockRequests(self, client)


class LockRequests:
    """The requests, described at the head of the module. Each raises AccessDenied, StorageUnavailable and
    UnexpectedAnswer, and BackupDamaged if the object does not exist."""

    def __init__(self, locks: ObjectLocks, client: httpx2.AsyncClient) -> None:
        self._locks = locks
        self._client = client

    async def check_bucket(self) -> None:
        """Raises ConfigurationError if the bucket has no object lock."""
        status, answer = await self._call("look at the object lock of the bucket", "GET", "?object-lock")
        bucket = self._locks.bucket
        if status == 200 and element_text(answer, "ObjectLockEnabled") == "Enabled":
            return
        code = element_text(answer, "Code")
        if status in (401, 403):
            raise errors.AccessDenied(
                f"bucket {bucket} does not tell whether it has object lock (status {status}, {code})",
                hint="grant s3:GetBucketObjectLockConfiguration to the keys of object_store",
            )
        raise errors.ConfigurationError(
            f"bucket {bucket} has no object lock (status {status}{', ' if code else ''}{code})", hint=_LOCK_HINT
        )

    async def retention(self, name: str) -> ObjectRetention | None:
        status, answer = await self._call(f"read the lock of {name}", "GET", self._path(name, "?retention"))
        if status == 200:
            return decode_retention(answer)
        if status in (400, 404) and element_text(answer, "Code") in _NO_LOCK:
            return None
        raise self._error(name, "s3:GetObjectRetention", status, answer)

    async def extend(self, name: str, wanted: ObjectRetention) -> None:
        existing = await self.retention(name)
        if existing is not None and existing.covers(wanted):
            return
        body = encode_retention(wanted if existing is None else existing.extended(wanted))
        status, answer = await self._call(f"lock {name}", "PUT", self._path(name, "?retention"), body)
        if status in (200, 204):
            return
        if status == 403 and existing is not None:
            raise errors.AccessDenied(
                f"bucket {self._locks.bucket} keeps {name} {retention_text(existing)}, not "
                f"{retention_text(wanted)} ({element_text(answer, 'Code')})",
                hint="grant s3:PutObjectRetention; a mode that becomes stronger needs a new target, or "
                "s3:BypassGovernanceRetention by other tools",
            )
        raise self._error(name, "s3:PutObjectRetention", status, answer)

    async def put_new(self, name: str, data: bytes, retention: ObjectRetention) -> bool:
        headers = {
            "if-none-match": "*",
            "x-amz-object-lock-mode": retention.mode.upper(),
            "x-amz-object-lock-retain-until-date": retention_date(retention.until_ms),
        }
        status, answer = await self._call(f"write {name}", "PUT", self._path(name), data, headers)
        if status == 412:
            return False
        if status not in (200, 201):
            raise self._error(name, "s3:PutObject and s3:PutObjectRetention", status, answer)
        return True

    def _path(self, name: str, query: str = "") -> str:
        return f"/{quote(self._locks.key_of(name), safe='/-_.~')}{query}"

    def _error(self, name: str, right: str, status: int, answer: bytes) -> errors.IcestreamError:
        code, bucket = element_text(answer, "Code"), self._locks.bucket
        if status in (401, 403):
            return errors.AccessDenied(
                f"bucket {bucket} refuses {right} for {name} ({code})",
                hint=f"grant {right} to the keys of object_store",
            )
        if status == 404:
            return errors.BackupDamaged(f"object {name} in bucket {bucket} does not exist ({code})")
        return errors.UnexpectedAnswer(f"bucket {bucket}: {right} for {name} is answered with status {status} ({code})")

    async def _call(
        self, operation: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Every request may be repeated: a lock that is there is covered, a name that is taken is compared."""
        return await self._locks.caller.read(operation, lambda: self._attempt(method, path, body, headers or {}))

    async def _attempt(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        import httpx2

        locks = self._locks
        url = locks.url + path
        if body:  # S3 asks for a checksum of whatever has to do with locks
            checksum = hashlib.md5(body, usedforsecurity=False).digest()
            headers = {**headers, "content-md5": base64.b64encode(checksum).decode()}
        request = AwsRequest(method, url, headers, hashlib.sha256(body).hexdigest())
        signature = sign(request, await locks.keys.current(), locks.scope, locks.caller.clock.wall_us())
        try:
            async with self._client.stream(
                method, url, content=body or None, headers={**headers, **signature}
            ) as response:
                answer = bytearray()
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > limits.OBJECT_LOCK_ANSWER_BYTES_MAX:
                        raise errors.UnexpectedAnswer(
                            f"{locks.url}: response exceeds {limits.OBJECT_LOCK_ANSWER_BYTES_MAX} bytes"
                        )
                status = response.status_code
        except httpx2.TransportError as error:
            raise errors.StorageUnavailable(
                f"{locks.url} cannot be reached: {str(error) or type(error).__name__}",
                hint="is the object store running, and are `endpoint` and `region` right?",
            ) from None
        # 501: a store that has no object lock. 409: another request writes this name right now.
        if (status >= 500 and status != 501) or status in (409, 429):
            raise errors.StorageUnavailable(f"{locks.url} answers with status {status}", hint="it is tried again")
        return status, bytes(answer)
