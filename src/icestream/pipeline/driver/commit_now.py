"""`icestream lake commit-now`: a key of the metadata store that the driver watches, so that waiting costs nothing.

Writing the key requests that everything synced now is committed to its table, whatever the age limit. The key has a
time to live: a request that no driver saw does not wait for one that starts much later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icestream import errors, limits
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock

KEY: Final = "/pipeline/commit_now"
TTL_MS: Final = 60_000


async def watch_requests(store: MetadataStore, clock: Clock, expedite: Callable[[], None]) -> None:
    """Calls `expedite` for each request, until it is cancelled. A watch that fails is started again."""
    while True:
        try:
            # The revision first: a request that is written between the two reads is seen by the watch.
            revision = await store.revision()
            if await store.get(KEY) is not None:
                expedite()
            async for _ in store.watch(KEY, revision):
                if await store.get(KEY) is not None:
                    expedite()
        except errors.IcestreamError:
            await clock.sleep(limits.PIPELINE_RETRY_SECONDS_MAX)


async def request_commit(store: MetadataStore) -> None:
    await store.put_with_ttl(KEY, b"", TTL_MS)
