"""The names of producers and consumers in the metadata store, and how long they are known.

A name keeps its id, and a producer its epoch, over restarts. But clients make names of chance, and every name ever seen
would fill the store (hazards 7 and 28). So a name is known for NAME_AGE_MS after it was last used: its time to live
begins anew when it comes again, and once in a while for whoever is connected. Where nobody is, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.structural_changes import StructuralChanges
from icestream.broker.topic import Topic
from icestream.metadata.command import Operation, PutWithTtl
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("names")


def put_name(key: str, value: bytes) -> PutWithTtl:
    return PutWithTtl(key, value, limits.NAME_AGE_MS)


class NameRegistry:
    def __init__(self, store: MetadataStore, clock: Clock, changes: StructuralChanges, topics: Iterable[Topic]) -> None:
        self._store = store
        self._clock = clock
        self._changes = changes
        self._topics = topics

    async def run(self) -> None:
        """Renews the names of all who are connected, again and again. Between other changes, so that a name of a topic
        that is being deleted does not come back."""
        while True:
            await self._clock.sleep(limits.NAME_RENEWAL_MS / 1000)
            try:
                await self._changes.make(self.renew)
            except errors.IcestreamError as error:  # there are days left to try it again
                _log.warning("names of producers and consumers could not be renewed", error=str(error))

    async def renew(self) -> None:
        found: list[Operation] = []
        for key in self._connected():
            entry = await self._store.get(key)
            if entry is not None:
                found.append(put_name(key, entry.value))
            if len(found) == limits.METADATA_TXN_OPERATIONS_MAX // 4:
                await self._store.txn([], found)
                found = []
        if found:
            await self._store.txn([], found)

    def _connected(self) -> Iterator[str]:
        for topic in self._topics:
            for producer in list(topic.producers):
                yield records.producer_key(topic.name, producer.name)
            for subscription in list(topic.subscriptions.values()):
                for name in list(subscription.consumers):
                    yield records.consumer_key(topic.name, subscription.name, name)


def needs_renewal(entry: Entry, now_ms: int) -> bool:
    """It was not renewed for so long that one who comes should do it."""
    return entry.deadline_ms - now_ms < limits.NAME_AGE_MS - limits.NAME_RENEWAL_MS
