"""Puts messages that failed too often into the dead-letter topic of their subscription.

A letter is stored by a producer of its own for each (subscription, shard), numbered with its source offset, one group
after the other. When a group is stored, the cursor that counts it as acked is written before the next: so after a crash
only the last group can come a second time, and it is found under its numbers and not stored again (hazard 41).
"""

from __future__ import annotations

from typing import Protocol

from icestream import errors
from icestream.broker.dead_letters import Row, Source, encode_as_it_is, encode_letters, read_rows
from icestream.broker.dispatch.instruction import DeadLetter
from icestream.broker.records import SubscriptionRecord
from icestream.broker.storage import PersistentStorage, ShardStream
from icestream.broker.topic import Producer, Topic
from icestream.model.block import Numbering
from icestream.model.shard import ShardKey
from icestream.model.subscription import FailurePolicy
from icestream.model.topic_name import TopicName
from icestream.observability import metrics


class Producing(Protocol):
    """The part of the broker that lets a producer in."""

    async def open_inner_producer(self, name: TopicName, producer: str) -> Producer: ...


class Burial:
    def __init__(
        self,
        topic: Topic,
        subscription: str,
        record: SubscriptionRecord,
        producing: Producing,
        storage: PersistentStorage,
        address: str,
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._record = record
        self._producing = producing
        self._storage = storage
        self._address = address

    async def bury(self, stream: ShardStream, policy: FailurePolicy, letter: DeadLetter) -> int:
        """Stores the first messages of the letter; behind which of them, when they are durable."""
        if policy.dead_letter_topic is None:
            raise errors.InvalidInput("the subscription has no dead-letter topic any more")
        name = f"dead-letters/{self._record.id}/{stream.key.shard}"
        producer = await self._producing.open_inner_producer(TopicName.parse(policy.dead_letter_topic), name)
        key = producer.topic.shard_key(stream.key.shard % producer.topic.record.shards)
        end = letter.end
        for first, rows, _ in self._storage.recent_batches(key, producer.id):
            if first <= letter.start < first + rows:
                return min(end, first + rows)  # stored before, by a life that ended before its cursor was written
            if letter.start < first:
                end = min(end, first)
        source = Source(str(self._topic.name), self._subscription, self._address, policy.poison.value)
        return await self._store(key, producer, source, letter, await read_rows(stream, letter.start, end))

    async def _store(
        self, key: ShardKey, producer: Producer, source: Source, letter: DeadLetter, rows: list[Row]
    ) -> int:
        numbering = Numbering(producer.id, producer.epoch, letter.start)
        try:
            stored = self._storage.store_messages(key, encode_letters(rows, source, letter, numbering))
        except errors.MessageTooLarge:
            rows = rows[:1]
            stored = self._storage.store_messages(key, encode_as_it_is(rows[0], numbering))
        (result,) = await stored
        if isinstance(result, errors.IcestreamError):
            raise result
        await self._storage.settle()  # the cursor will say that the message is done with, in every sync mode
        metrics.DEAD_LETTERS.inc(len(rows))
        return letter.start + len(rows)
