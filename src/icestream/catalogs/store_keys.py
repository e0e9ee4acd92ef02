"""The keys with which this node itself reaches an S3 store: for requests that it signs, and to assume a role.

settings        `access_key_id` and its secret
`role_arn`      keys of that role, assumed again before they expire (bucket.py)
otherwise       those of the process: environment, profile or role of the machine, which boto3 finds
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from icestream import errors, limits
from icestream.catalogs.aws_signature import AwsKeys
from icestream.catalogs.bucket import AssumedRole
from icestream.catalogs.store_options import StoreOptions
from icestream.runtime.clock import Clock

_HINT: Final = "set access_key_id of storage.iceberg_config.object_store, or pip install 'icestream[glue]'"


class StoreKeys:
    """Keys that are valid for a while; found again when they are about to expire."""

    def __init__(self, options: StoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._keys: AwsKeys | None = None
        self._until_ms = 0  # when they are looked for again
        self._lock = asyncio.Lock()

    async def current(self) -> AwsKeys:
        """Raises MissingPart if boto3 is needed and not installed, AccessDenied if there are no keys."""
        options = self._options
        if options.role_arn is None and options.access_key_id is not None and options.secret_access_key is not None:
            return AwsKeys(options.access_key_id, options.secret_access_key, options.session_token)
        async with self._lock:
            now_ms = self._clock.wall_us() // 1000
            if self._keys is None or now_ms >= self._until_ms:
                # In a thread: it asks a server.
                self._keys = await asyncio.to_thread(self._assume if options.role_arn is not None else _of_process)
                ends_ms = self._keys.expires_ms
                # Keys of the process may be renewed by others, which do not tell when.
                self._until_ms = (
                    now_ms + limits.PROCESS_KEYS_MS if ends_ms is None else ends_ms - limits.ROLE_KEYS_MARGIN_MS
                )
            return self._keys

    def _assume(self) -> AwsKeys:
        keys = AssumedRole(self._options)()
        expires_ms = int(keys["expires_at"].timestamp() * 1000)
        return AwsKeys(keys["access_key_id"], keys["secret_access_key"], keys["token"], expires_ms)


def _of_process() -> AwsKeys:
    try:
        import boto3
    except ImportError:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            raise errors.MissingPart(
                "the keys of the machine's role need boto3, which is not installed", hint=_HINT
            ) from None
        return AwsKeys(key, secret, os.environ.get("AWS_SESSION_TOKEN"))
    session: Any = boto3.Session()
    credentials = session.get_credentials()
    if credentials is None:
        raise errors.AccessDenied("this process has no keys of an object store", hint=_HINT)
    frozen = credentials.get_frozen_credentials()
    return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)
