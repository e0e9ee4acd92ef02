"""Settings for subscriptions that do not exist yet: a subscription of that name starts with them.

Danube's operators set policies before they subscribe, so that every message is treated by them. The settings are
deleted with the topic, and consumed by the first subscription of the name.
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

    async def change(self, topic: TopicName, subscription: str, **changes: Any) -> None:
        """Changes some of the settings and keeps the others. Raises PolicyReached if the topic has too many."""
        check_name("subscription", subscription)
        settings = await self.get(topic, subscription)
        if settings is None:
            settings = records.PendingSubscription()
            await self._check_count(topic)
        settings = msgspec.structs.replace(settings, **changes)
        await self._store.put(records.pending_subscription_key(topic, subscription), records.encode(settings))

    async def _check_count(self, topic: TopicName) -> None:
        entries = await self._store.list_all(records.pending_subscription_key(topic, ""))
        if len(entries) >= limits.PLANNED_SUBSCRIPTIONS_MAX:
            raise errors.PolicyReached(
                f"topic {topic} has settings for {len(entries)} subscriptions that do not exist",
                hint="subscribe first, then change the settings of further subscriptions",
            )

    @staticmethod
    def consume(topic: TopicName, subscription: str) -> Delete:
        """The operation that deletes the settings; part of the transaction that creates the subscription."""
        return Delete(records.pending_subscription_key(topic, subscription))
