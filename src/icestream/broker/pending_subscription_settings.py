"""What an operator has settled for subscriptions that nobody has made yet: they begin with it.

Danube's operators do it in this order, policy first, so that not one message is treated otherwise. It goes with the
topic, and is used up by the first subscription of the name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.metadata.command import Delete
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName, check_name


class PendingSubscriptionSettings:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, topic: TopicName, subscription: str) -> records.PendingSubscription | None:
        key = records.pending_subscription_key(topic, subscription)
        entry = await self._store.get(key)
        return None if entry is None else records.decode(records.PendingSubscription, key, entry.value)

    async def change(self, topic: TopicName, subscription: str, **changed: Any) -> None:
        check_name("subscription", subscription)
        found = await self.get(topic, subscription)
        if found is None:
            found = records.PendingSubscription()
            await self._check_room(topic)
        planned = msgspec.structs.replace(found, **changed)
        await self._store.put(records.pending_subscription_key(topic, subscription), records.encode(planned))

    async def _check_room(self, topic: TopicName) -> None:
        there = await self._store.list_all(records.pending_subscription_key(topic, ""))
        if len(there) >= limits.PLANNED_SUBSCRIPTIONS_MAX:
            raise errors.PolicyReached(
                f"topic {topic} has settings for {len(there)} subscriptions that do not exist",
                hint="subscribe first, then settle the others",
            )

    @staticmethod
    def used_up(topic: TopicName, subscription: str) -> Delete:
        """To be done in the same step in which the subscription is made."""
        return Delete(records.pending_subscription_key(topic, subscription))
