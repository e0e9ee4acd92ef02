"""Message and Gap, as a subscription delivers them. A message is a row of a delivery, decoded on first access."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from icestream.client.batch import MessageId
from icestream.client.delivered_rows import DeliveredRows
from icestream.client.timestamps import to_datetime
from icestream.model import envelope
from icestream.model.shard import GapState


class CompletedAck:
    """The result of `ack` and `nack`: an awaitable that is done already. The frames leave at the end of the tick."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        nothing: Iterator[Any] = iter(())
        return cast("Generator[Any, None, None]", nothing)


COMPLETED_ACK: Final = CompletedAck()


class Gap(NamedTuple):
    """Offsets [start, end) of a shard that hold no message, and why."""

    shard: int
    start: int
    end: int
    state: GapState
    reason: str


Gap.shard.__doc__ = "The shard of the topic."
Gap.start.__doc__ = "The first offset that holds no message."
Gap.end.__doc__ = "The offset behind the last one that holds no message."
Gap.state.__doc__ = "Why the offsets are empty: never used, lost, dropped by retention, …"
Gap.reason.__doc__ = "Why there is no message, as text."


class Message:
    """A message that a subscription delivered. Ack it when it is done with, or nack it when it failed."""

    __slots__ = ("_delivered", "_row")

    def __init__(self, delivered: DeliveredRows, row: int) -> None:
        self._delivered = delivered
        self._row = row

    # --- acknowledging ---

    def ack(self) -> CompletedAck:
        """Acknowledges the message: it was processed and is not delivered again."""
        self._delivered.consumer.ack_row(self._delivered, self._row)
        return COMPLETED_ACK

    def nack(self, delay: float = 0.0) -> CompletedAck:
        """Rejects the message: it is delivered again after `delay` seconds, or later if the subscription's policy says
        so."""
        self._delivered.consumer.nack_row(self._delivered, self._row, delay)
        return COMPLETED_ACK

    # --- position ---

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
        """How many earlier deliveries of this message failed."""
        return self._delivered.attempt

    @property
    def is_current(self) -> bool:
        """False if the connection that delivered it is lost: it is delivered again, perhaps to another consumer."""
        return self._delivered.is_current

    # --- content ---

    @property
    def payload(self) -> bytes:
        """The payload as it was published; empty if there was none."""
        payloads = self._delivered.payloads
        if payloads is None:
            payloads = self._delivered.load_payloads()
        return payloads[self._row]

    @property
    def key(self) -> bytes | None:
        """The key that selects its shard; None if it has none."""
        return cast("bytes | None", self._delivered.values(envelope.KEY)[self._row])

    @property
    def headers(self) -> dict[str, str]:
        """Names and values that were published with it."""
        return cast("dict[str, str]", self._delivered.values(envelope.HEADERS)[self._row] or {})

    @property
    def publish_time_us(self) -> int | None:
        """When it was published, by the producer's clock, in microseconds since 1970."""
        return cast("int | None", self._delivered.values(envelope.PUBLISH_TIME)[self._row])

    @property
    def publish_time(self) -> datetime | None:
        """When it was published, by the producer's clock, in UTC; None if that is not known."""
        time_us = self.publish_time_us
        return None if time_us is None else to_datetime(time_us)

    @property
    def append_time_us(self) -> int:
        """When it was stored, in microseconds since 1970."""
        return self._delivered.append_time_us

    @property
    def append_time(self) -> datetime | None:
        """When the broker stored it, in UTC."""
        return to_datetime(self._delivered.append_time_us)

    @property
    def producer_name(self) -> str | None:
        """The name of its producer."""
        return cast("str | None", self._delivered.values(envelope.PRODUCER_NAME)[self._row])

    @property
    def content_type(self) -> str | None:
        """The content type of the payload, if its producer set one."""
        return cast("str | None", self._delivered.values(envelope.CONTENT_TYPE)[self._row])

    @property
    def schema_id(self) -> int | None:
        """The id of the schema that its payload was validated with, if the topic has one."""
        return cast("int | None", self._delivered.values(envelope.SCHEMA_ID)[self._row])

    @property
    def schema_version(self) -> int | None:
        """The version of that schema."""
        return cast("int | None", self._delivered.values(envelope.SCHEMA_VERSION)[self._row])

    def value(self, column: envelope.EnvelopeColumn) -> object:
        """The value of any column of icestream.model.envelope."""
        return self._delivered.values(column)[self._row]

    def __repr__(self) -> str:
        return f"<Message {self.topic} shard {self.shard} offset {self.offset}>"
