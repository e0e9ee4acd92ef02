"""Producer and consumer ids in the metadata store: an id stays valid over restarts of the broker, and a client that
returns after hours finds its producers and consumers.

    /danube/producers/{id}     RegisteredProducer
    /danube/consumers/{id}     RegisteredConsumer

Ids are small numbers that can be guessed, so each works only for the principal that made it: for every other one it is
an unknown id, before and after a restart of the broker (hazard 106).

Clients choose random names, so these keys have a time to live, like the names themselves (broker/name_registry.py). It
begins anew when a client uses an id whose key is old.
"""

from __future__ import annotations

import msgspec

from icestream import limits
from icestream.broker import records
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.name_registry import put_name
from icestream.metadata.store import MetadataStore
from icestream.model.subscription_options import SubscriptionType
from icestream.runtime.clock import Clock
from icestream.security.principal import ANONYMOUS

PRODUCERS = "/danube/producers/"
CONSUMERS = "/danube/consumers/"


class RegisteredProducer(msgspec.Struct, frozen=True):
    """What is needed to open a producer again by its id alone."""

    topic: str  # without a partition: a producer may send to all
    name: str
    principal: str = ""  # the only one for which the id works (hazard 106); empty: of `anonymous`


class RegisteredConsumer(msgspec.Struct, frozen=True):
    """What is needed to join a subscription again by a consumer id alone."""

    topic: str  # as the client named it: with the partition
    subscription: str
    name: str
    type: SubscriptionType
    key_patterns: tuple[str, ...] = ()
    principal: str = ""  # as above


def owner_of(client: GuardedBroker) -> str:
    """The principal of a session as registrations have it: empty for `anonymous`, so also while security is off."""
    principal = client.session.identity.principal
    return "" if principal is ANONYMOUS else str(principal)


class IdRegistry:
    """Stores and renews the ids of Danube's clients."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        # When this process wrote each key: an id is used with every message, and must not be read or written each time.
        self._written_ms: dict[str, int] = {}

    def now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    async def keep(self, prefix: str, id_: int, registration: RegisteredProducer | RegisteredConsumer) -> None:
        """Writes the registration, unless it is unchanged and was written recently."""
        key, value = f"{prefix}{id_}", records.encode(registration)
        entry = await self._store.get(key)
        if entry is None or entry.value != value or self._is_renewal_due(key):
            await self._store.txn([], [put_name(key, value)])
            self._written_ms[key] = self.now_ms()

    async def renew(self, prefix: str, id_: int) -> None:
        """Extends the time to live of an id that a client has used."""
        await self.renew_key(f"{prefix}{id_}")

    async def renew_key(self, key: str) -> None:
        """Extends the time to live of a key, if it was not written recently and still exists."""
        if self._is_renewal_due(key):
            entry = await self._store.get(key)
            if entry is not None:
                await self._store.txn([], [put_name(key, entry.value)])
                self._written_ms[key] = self.now_ms()

    def _is_renewal_due(self, key: str) -> bool:
        written_ms = self._written_ms.get(key)
        return written_ms is None or self.now_ms() - written_ms >= limits.NAME_RENEWAL_MS

    def forget(self, prefix: str, id_: int) -> None:
        """Drops the renewal time of an id that is not connected any more; its registration stays in the store."""
        self.forget_key(f"{prefix}{id_}")

    def forget_key(self, key: str) -> None:
        self._written_ms.pop(key, None)

    async def producer(self, id_: int) -> RegisteredProducer | None:
        """The registration of a producer id; None if it is not registered, or has expired."""
        key = f"{PRODUCERS}{id_}"
        entry = await self._store.get(key)
        return records.decode(RegisteredProducer, key, entry.value) if entry is not None else None

    async def consumer(self, id_: int) -> RegisteredConsumer | None:
        """The registration of a consumer id; None if it is not registered, or has expired."""
        key = f"{CONSUMERS}{id_}"
        entry = await self._store.get(key)
        return records.decode(RegisteredConsumer, key, entry.value) if entry is not None else None
