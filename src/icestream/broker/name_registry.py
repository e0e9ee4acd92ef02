"""The names of producers and consumers in the metadata store, and their expiry.

A name keeps its id, and a producer its epoch, over restarts. But clients generate random names, and keeping every name
ever used would fill the store (hazards 7 and 28). So a name expires NAME_AGE_MS after its last use: its time to live is
renewed when it connects, and periodically while it is connected. Without connections nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.structural_changes import StructuralChanges
from icestream.metadata.command import Operation, PutWithTtl
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("names")


def put_name(key: str, value: bytes) -> PutWithTtl:
    """The operation that writes a name, or renews its time to live."""
    return PutWithTtl(key, value, limits.NAME_AGE_MS)


class NameRegistry:
    """Renews the names of connected producers and consumers."""

    def __init__(
        self, store: MetadataStore, clock: Clock, changes: StructuralChanges, topics: Iterable[BrokerTopic]
    ) -> None:
        self._store = store
        self._clock = clock
        self._changes = changes
        self._topics = topics

    async def run(self) -> None:
        """Renews the names of all connected clients periodically, until cancelled."""
        while True:
            await self._clock.sleep(limits.NAME_RENEWAL_MS / 1000)
            try:
                # As a structural change, so that a name of a topic that is being deleted is not written again.
                await self._changes.run(self.renew)
            except errors.IcestreamError as error:  # the names live for days: the next renewal is early enough
                _log.warning("names of producers and consumers could not be renewed", error=str(error))

    async def renew(self) -> None:
        """Renews the time to live of all connected names, in transactions of bounded size."""
        renewals: list[Operation] = []
        for key in self._connected_keys():
            entry = await self._store.get(key)
            if entry is not None:  # else its subscription was deleted: a renewal would restore the name
                renewals.append(put_name(key, entry.value))
            if len(renewals) == limits.METADATA_TXN_OPERATIONS_MAX // 4:
                await self._store.txn([], renewals)
                renewals = []
        if renewals:
            await self._store.txn([], renewals)

    def _connected_keys(self) -> Iterator[str]:
        for topic in self._topics:
            for producer in list(topic.producers):
                yield records.producer_key(topic.name, producer.name)
            for subscription in list(topic.subscriptions.values()):
                for name in list(subscription.consumers):
                    yield records.consumer_key(topic.name, subscription.name, name)


def needs_renewal(entry: Entry, now_ms: int) -> bool:
    """True if a name that connects now should be written again, because its last renewal is long ago."""
    return entry.deadline_ms - now_ms < limits.NAME_AGE_MS - limits.NAME_RENEWAL_MS
