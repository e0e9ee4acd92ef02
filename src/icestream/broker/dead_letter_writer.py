"""Puts messages that failed too often into the dead-letter topic of their subscription.

A letter is stored by a producer of its own for each (subscription, shard), numbered with its source offset, one group
after the other. When a group is stored, the cursor that counts it as acked is written before the next: so after a crash
only the last group can be unknown to its cursor. A start finds it under its numbers and tells the cursor, before
anything else fails (hazard 41). It looks into the topic of the policy before, too: that may have changed in between.

After a seek back a message may fail anew and gets a new letter: the producer's record says of which generation of the
subscription its letters are.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from icestream import errors
from icestream.broker.dead_letter_format import LetterSource, MessageRow, encode_letters, encode_without_note, read_rows
from icestream.broker.dispatch.instruction import DeadLetter
from icestream.broker.records import SubscriptionRecord
from icestream.broker.storage import PersistentStorage, ShardStream
from icestream.broker.topic import Producer, Topic
from icestream.model.block import Numbering
from icestream.model.shard import ShardKey
from icestream.model.subscription import FailurePolicy, PoisonPolicy
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.wal.receipt import Receipt


class InternalProducers(Protocol):
    """The part of the broker that lets a producer in."""

    async def open_inner_producer(self, name: TopicName, producer: str, instance: str) -> Producer: ...

    async def find_inner_producer(self, name: TopicName, producer: str, instance: str) -> Producer | None:
        """As it was when it was last opened. None: there is none, or that was another instance."""


class DeadLetterWriter:
    def __init__(
        self,
        topic: Topic,
        subscription: str,
        record: SubscriptionRecord,
        producing: InternalProducers,
        storage: PersistentStorage,
        address: str,
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._record = record
        self._producing = producing
        self._storage = storage
        self._address = address

    async def buried(self, stream: ShardStream, generation: int) -> list[tuple[int, int]]:
        """Messages [start, end) that the life before has buried last. Their cursor may not know it."""
        found: list[tuple[int, int]] = []
        names = {self._record.failure.dead_letter_topic, self._record.dead_letters_before}
        for topic in [TopicName.parse(name) for name in names if name is not None]:
            producer = await self._producing.find_inner_producer(topic, self._name(stream), str(generation))
            if producer is not None:
                recent = self._storage.recent_batches(_shard_of(producer, stream), producer.id)
                found += [(first, first + rows) for first, rows, _ in recent]
        return found

    async def bury(self, stream: ShardStream, policy: FailurePolicy, letter: DeadLetter, generation: int) -> int:
        """Stores the first messages of the letter; behind which of them, when they are durable."""
        if policy.dead_letter_topic is None:
            raise errors.InvalidInput("the subscription has no dead-letter topic any more")
        topic = TopicName.parse(policy.dead_letter_topic)
        producer = await self._producing.open_inner_producer(topic, self._name(stream), str(generation))
        source = LetterSource(self._shard_name(stream), self._subscription, self._address, _word(policy.poison))
        rows = await read_rows(stream, letter.start, letter.end)
        return await self._store(_shard_of(producer, stream), producer, source, letter, rows)

    def _shard_name(self, stream: ShardStream) -> str:
        """As consumers of Danube know it: the offset in the note is one of this shard."""
        record = self._topic.record
        return self._topic.name.shard_name(stream.key.shard, record.shards, is_partitioned=record.is_partitioned)

    def _name(self, stream: ShardStream) -> str:
        return f"dead-letters/{self._record.id}/{stream.key.shard}"

    async def _store(
        self, key: ShardKey, producer: Producer, source: LetterSource, letter: DeadLetter, rows: list[MessageRow]
    ) -> int:
        numbering = Numbering(producer.id, producer.epoch, letter.start)
        rows, stored = self._submit(key, rows, source, letter, numbering)
        (result,) = await stored
        if isinstance(result, errors.IcestreamError):
            raise result
        await self._storage.wait_durable()  # the cursor will say that the message is done with, in every sync mode
        metrics.DEAD_LETTERS.inc(len(rows))
        return letter.start + len(rows)

    def _submit(
        self, key: ShardKey, rows: list[MessageRow], source: LetterSource, letter: DeadLetter, numbering: Numbering
    ) -> tuple[list[MessageRow], Receipt]:
        """All of them where they fit one batch, else the first, and that one without the note where it must be."""
        for count in (len(rows), 1):
            with suppress(errors.MessageTooLarge):
                block = encode_letters(rows[:count], source, letter, numbering)
                return rows[:count], self._storage.store_messages(key, block)
        return rows[:1], self._storage.store_messages(key, encode_without_note(rows[0], numbering))


def _word(poison: PoisonPolicy) -> str:
    """Danube's, which has no dash."""
    return poison.value.replace("-", "_")


def _shard_of(producer: Producer, stream: ShardStream) -> ShardKey:
    return producer.topic.shard_key(stream.key.shard % producer.topic.record.shards)
