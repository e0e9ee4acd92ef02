"""Subscription: the public face of a consumer (consumer.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from icestream import errors
from icestream.client.consumer import Consumer
from icestream.client.message import CompletedAck, Gap, Message
from icestream.client.stalls import Stall
from icestream.client.start_position import StartPosition

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch


class Subscription:
    """Messages of a topic, as one consumer of a subscription gets them: an async iterator of `Message`.

    `Client.subscribe` makes one; it is opened by `async with` or `await`. A lost connection only pauses it: unacked
    messages are redelivered. The iteration ends when it is closed, and raises when it cannot continue.
    """

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    # --- messages ---

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._consumer

    async def __anext__(self) -> Message:
        return await self._consumer.__anext__()

    async def take(self, max_messages: int) -> list[Message]:
        """Waits for messages, and returns those that have arrived, at most `max_messages`. Empty if it was closed."""
        return await self._consumer.take(max_messages)

    def batches(self, max_messages: int = 10_000) -> AsyncIterator[ArrowBatch]:
        """Messages as Arrow, with the columns of the topic's table; each batch has `ack()`. Needs pyarrow."""
        return self._consumer.batches(max_messages)

    @property
    def stalls(self) -> list[Stall]:
        """The current stalls: shard, offset, reason and hint of each; empty while messages are delivered. The iteration
        raises SubscriptionStalled for them, see `stall_timeout` of `Client.subscribe`."""
        return self._consumer.stalls

    @property
    def waiting_messages(self) -> int:
        """How many messages arrived and were not taken yet."""
        return self._consumer.waiting_messages

    # --- acks ---

    def ack_through(self, message: Message) -> CompletedAck:
        """Acks this message and everything before it in its shard. Only for `exclusive` and `failover` subscriptions,
        which deliver in order; raises InvalidInput otherwise."""
        return self._consumer.ack_through(message)

    async def flush(self) -> None:
        """Waits until the broker has applied every ack so far. Raises ConnectionLost if it did not confirm that."""
        await self._consumer.flush()

    # --- position and state ---

    @property
    def topic(self) -> str:
        """The topic whose messages these are."""
        return self._consumer.topic

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._consumer.name

    @property
    def consumer(self) -> str:
        """The name of this consumer among those of the subscription."""
        return self._consumer.consumer

    @property
    def positions(self) -> Sequence[int]:
        """The offset of each shard below which everything was acked when the subscription was opened."""
        return self._consumer.positions

    @property
    def is_active(self) -> bool:
        """True if messages are delivered to this consumer: a failover subscription has one active consumer."""
        return self._consumer.is_active

    @property
    def gaps(self) -> Sequence[Gap]:
        """Offsets without a message, as reported by the broker; the newest 1,000."""
        return self._consumer.gaps

    @property
    def error(self) -> errors.IcestreamError | None:
        """Why the subscription has failed; None if it has not."""
        return self._consumer.error

    async def seek(self, start: StartPosition, *, shard: int | None = None) -> None:
        """Moves the subscription: everything from `start` on is delivered, again or for the first time, to all of its
        consumers."""
        await self._consumer.seek(start, shard=shard)

    async def close(self) -> None:
        """Sends the acks, then closes the consumer: unacked messages go to other consumers, or are redelivered."""
        await self._consumer.close()

    async def __aenter__(self) -> Subscription:
        await self._consumer.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Subscription]:
        return self.__aenter__().__await__()

    def __repr__(self) -> str:
        return f"<Subscription {self.name} of {self.topic}, consumer {self.consumer}>"
