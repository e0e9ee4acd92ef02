"""Writes messages that failed too often to the dead-letter topic of their subscription, each once (hazard 41).

Each shard of a subscription has an internal producer in the dead-letter topic. It stores letters group by group, with
the offset of the message as sequence number. After a group the cursor that counts it as acked is written before the
next group is stored: so after a crash only the last group can be missing in the cursor. A start finds it by its
sequence numbers and adds it to the cursor, before another message can fail. It searches the topic of the former policy
too, because the policy may have changed in between.

After a seek back a message may fail again and gets a second letter: the instance of the internal producer is the
generation of the subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from icestream import errors
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.dead_letter_format import LetterSource, MessageRow, encode_letters, encode_without_note, read_rows
from icestream.broker.dispatch.instruction import DeadLetter
from icestream.broker.records import StoredIdentity, SubscriptionRecord
from icestream.broker.storage import PersistentStorage, ShardStream
from icestream.model.block import Numbering
from icestream.model.shard import ShardKey
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.wal.receipt import Receipt


class InternalProducers(Protocol):
    """The broker, as far as it opens internal producers."""

    @property
    def check_dead_letters(self) -> Callable[[TopicName, StoredIdentity | None], None]:
        """Raises PermissionDenied if letters may not be written to this topic, for the principal that named it."""

    async def open_internal_producer(
        self, name: TopicName, producer: str, instance: str, *, dead_letters_of: str = ""
    ) -> BrokerProducer: ...

    async def find_internal_producer(self, name: TopicName, producer: str, instance: str) -> BrokerProducer | None:
        """The producer as this instance last opened it; None if it never did, or another instance has since."""


class DeadLetterWriter:
    """Stores the dead letters of one subscription."""

    def __init__(
        self,
        topic: BrokerTopic,
        subscription: str,
        record: SubscriptionRecord,
        producers: InternalProducers,
        storage: PersistentStorage,
        address: str,
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._record = record
        self._producers = producers
        self._storage = storage
        self._address = address

    async def find_written(self, stream: ShardStream, generation: int) -> list[tuple[int, int]]:
        """Messages [start, end) whose dead letters were written last before a restart. The cursor may lack them."""
        ranges: list[tuple[int, int]] = []
        names = {self._record.failure.dead_letter_topic, self._record.dead_letters_before}
        for topic in [TopicName.parse(name) for name in names if name is not None]:
            producer = await self._producers.find_internal_producer(topic, self._producer_name(stream), str(generation))
            if producer is not None:
                recent = self._storage.recent_batches(_shard_of(producer, stream), producer.id)
                ranges += [(first, first + rows) for first, rows, _ in recent]
        return ranges

    async def write(self, stream: ShardStream, policy: FailurePolicy, letter: DeadLetter, generation: int) -> int:
        """Stores the first messages of the range; returns the offset after them, once they are durable.

        Raises PositionGone if the messages cannot be read any more, or the error that prevents the write now.
        """
        if policy.dead_letter_topic is None:
            raise errors.InvalidInput(
                f"subscription {self._subscription} no longer has a dead-letter topic",
                hint=f"name one: `icestream sub policy {self._topic.name} {self._subscription} dead_letter_topic=…`",
            )
        topic = TopicName.parse(policy.dead_letter_topic)
        # Opened for each group: sequence numbers are offsets, with holes between the groups, and only a new epoch may
        # begin at any number. And the policy may name another topic by now, or that topic may have been deleted.
        # Decided again for the principal that named the topic: its right may have ended since (hazard 115).
        subscription = self._topic.subscriptions.get(self._subscription)
        record = subscription.record if subscription is not None else self._record
        self._producers.check_dead_letters(topic, record.dead_letters_by)
        producer = await self._producers.open_internal_producer(
            topic, self._producer_name(stream), str(generation), dead_letters_of=str(self._topic.name)
        )
        source = LetterSource(
            self._shard_name(stream), self._subscription, self._address, _danube_policy_name(policy.poison)
        )
        rows = await read_rows(stream, letter.start, letter.end)
        return await self._store(_shard_of(producer, stream), producer, source, letter, rows)

    def _shard_name(self, stream: ShardStream) -> str:
        """The name that Danube's consumers use: the offset in the headers is an offset of this shard."""
        record = self._topic.record
        return self._topic.name.shard_name(stream.key.shard, record.shards, is_partitioned=record.is_partitioned)

    def _producer_name(self, stream: ShardStream) -> str:
        return f"dead-letters/{self._record.id}/{stream.key.shard}"

    async def _store(
        self, key: ShardKey, producer: BrokerProducer, source: LetterSource, letter: DeadLetter, rows: list[MessageRow]
    ) -> int:
        """Stores rows of a letter; returns the offset after the last stored one. Raises the error of a refusal."""
        numbering = Numbering(producer.id, producer.epoch, letter.start)
        rows, receipt = self._submit(key, rows, source, letter, numbering)
        (result,) = await receipt
        if isinstance(result, errors.IcestreamError):
            raise result
        # The cursor will count the message as acked, so its letter must be durable in every sync mode.
        await self._storage.wait_durable()
        metrics.DEAD_LETTERS.inc(len(rows))
        return letter.start + len(rows)

    def _submit(
        self, key: ShardKey, rows: list[MessageRow], source: LetterSource, letter: DeadLetter, numbering: Numbering
    ) -> tuple[list[MessageRow], Receipt]:
        """Stores all rows if they fit one batch, else the first; without the note if it does not fit otherwise."""
        # A message may be as large as a batch can be, so that the note does not fit any more.
        for count in (len(rows), 1):
            with suppress(errors.MessageTooLarge):
                block = encode_letters(rows[:count], source, letter, numbering)
                return rows[:count], self._storage.store_messages(key, block)
        return rows[:1], self._storage.store_messages(key, encode_without_note(rows[0], numbering))


def _danube_policy_name(poison: PoisonPolicy) -> str:
    """Danube's spelling, with an underscore."""
    return poison.value.replace("-", "_")


def _shard_of(producer: BrokerProducer, stream: ShardStream) -> ShardKey:
    """The shard of the dead-letter topic that takes the letters of this shard: always the same, so that they stay in
    order and a start finds the last ones."""
    return producer.topic.shard_key(stream.key.shard % producer.topic.record.shards)
