"""A message of a subscription: a row of what was delivered. Nothing is decoded before somebody looks at it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime
from typing import Any, Final, cast

from icestream.client.batch import MessageId
from icestream.client.delivered import Delivered
from icestream.client.instant import instant
from icestream.model import envelope


class Noted:
    """What `ack` and `nack` return: it may be awaited, and is done already. They leave at the end of the tick."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        nothing: Iterator[Any] = iter(())
        return cast("Generator[Any, None, None]", nothing)


NOTED: Final = Noted()


class Message:
    """A message that a subscription delivered. Ack it when it is done with, or nack it when it failed."""

    __slots__ = ("_delivered", "_row")

    def __init__(self, delivered: Delivered, row: int) -> None:
        self._delivered = delivered
        self._row = row

    # --- what becomes of it ---

    def ack(self) -> Noted:
        """It is done with: it does not come again."""
        self._delivered.consumer.ack_row(self._delivered, self._row)
        return NOTED

    def nack(self, delay: float = 0.0) -> Noted:
        """It failed: it comes again, after `delay` seconds or later if the subscription's policy says so."""
        self._delivered.consumer.nack_row(self._delivered, self._row, delay)
        return NOTED

    # --- where it stands ---

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self._delivered.consumer.topic

    @property
    def shard(self) -> int:
        """The shard of the topic that holds it; messages are in order in a shard."""
        return self._delivered.shard

    @property
    def offset(self) -> int:
        """Its number in its shard, from 0."""
        return self._delivered.offset(self._row)

    @property
    def id(self) -> MessageId:
        """Topic, shard and offset: as `Producer.send` returned it."""
        return MessageId(self.topic, self.shard, self.offset)

    @property
    def redelivery_count(self) -> int:
        """How many deliveries of it failed before."""
        return self._delivered.attempt

    @property
    def is_current(self) -> bool:
        """False: the connection on which it came is lost. It comes again, perhaps to another consumer."""
        return self._delivered.is_current

    # --- what it says ---

    @property
    def payload(self) -> bytes:
        """What was published; empty when there was nothing."""
        payloads = self._delivered.payloads
        if payloads is None:
            payloads = self._delivered.load_payloads()
        return payloads[self._row]

    @property
    def key(self) -> bytes | None:
        """The key that chose its shard; None when it has none."""
        return cast("bytes | None", self._delivered.values(envelope.KEY)[self._row])

    @property
    def headers(self) -> dict[str, str]:
        """Names and values that were published with it."""
        return cast("dict[str, str]", self._delivered.values(envelope.HEADERS)[self._row] or {})

    @property
    def publish_time_us(self) -> int | None:
        """As its producer has it, in microseconds since 1970."""
        return cast("int | None", self._delivered.values(envelope.PUBLISH_TIME)[self._row])

    @property
    def publish_time(self) -> datetime | None:
        """When its producer published it, by the producer's clock, in UTC. None when that is not known."""
        time_us = self.publish_time_us
        return None if time_us is None else instant(time_us)

    @property
    def append_time_us(self) -> int:
        """When it was stored, in microseconds since 1970."""
        return self._delivered.append_time_us

    @property
    def append_time(self) -> datetime | None:
        """When the broker stored it, in UTC."""
        return instant(self._delivered.append_time_us)

    @property
    def producer_name(self) -> str | None:
        """The name of its producer."""
        return cast("str | None", self._delivered.values(envelope.PRODUCER_NAME)[self._row])

    @property
    def content_type(self) -> str | None:
        """The content type of the payload, where its producer named one."""
        return cast("str | None", self._delivered.values(envelope.CONTENT_TYPE)[self._row])

    @property
    def schema_id(self) -> int | None:
        """The id of the schema that its payload was checked with, where the topic has one."""
        return cast("int | None", self._delivered.values(envelope.SCHEMA_ID)[self._row])

    @property
    def schema_version(self) -> int | None:
        """The version of that schema."""
        return cast("int | None", self._delivered.values(envelope.SCHEMA_VERSION)[self._row])

    def value(self, column: envelope.Column) -> object:
        """Any other column of icestream.model.envelope."""
        return self._delivered.values(column)[self._row]

    def __repr__(self) -> str:
        return f"<Message {self.topic} shard {self.shard} offset {self.offset}>"
