"""`icestream lake commit-now`: a key of the metadata store that the driver watches. Waiting for it costs nothing.

Whoever writes it wants everything that is synced now in its table, whatever the age limit says; the key goes away by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icestream import errors, limits
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock

KEY: Final = "/pipeline/commit_now"
TTL_MS: Final = 60_000


async def watch_requests(store: MetadataStore, clock: Clock, hurry: Callable[[], None]) -> None:
    """Until it is cancelled. A watch that fails is begun again."""
    while True:
        try:
            after = await store.revision()
            if await store.get(KEY) is not None:
                hurry()
            async for _ in store.watch(KEY, after):
                if await store.get(KEY) is not None:
                    hurry()
        except errors.IcestreamError:
            await clock.sleep(limits.PIPELINE_RETRY_SECONDS_MAX)


async def request_commit(store: MetadataStore) -> None:
    await store.put_with_ttl(KEY, b"", TTL_MS)
