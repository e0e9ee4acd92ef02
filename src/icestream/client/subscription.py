"""A subscription, as its user sees it. How it works: consumer.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from icestream import errors
from icestream.client.asked import Gap
from icestream.client.consumer import Consumer
from icestream.client.message import Message, Noted
from icestream.client.stalls import Stall
from icestream.client.whence import Whence

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch


class Subscription:
    """Messages of a topic, as one consumer of a subscription gets them: an async iterator of `Message`.

    `Client.subscribe` makes one; it is opened by `async with` or `await`. A lost connection only pauses it: what was
    not acked comes again. The iteration ends when it is closed, and raises when it cannot go on.
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
        """Waits for messages and returns those that are there, at most so many. Empty: the subscription was closed."""
        return await self._consumer.take(max_messages)

    def batches(self, max_messages: int = 10_000) -> AsyncIterator[ArrowBatch]:
        """Messages as Arrow, with the columns of the topic's table; each batch has `ack()`. Needs pyarrow."""
        return self._consumer.batches(max_messages)

    @property
    def stalls(self) -> list[Stall]:
        """What keeps messages from coming now: shard, offset, reason and hint of each; empty while nothing does. The
        iteration raises SubscriptionStalled for it, see `stall_timeout` of `Client.subscribe`."""
        return self._consumer.stalls

    @property
    def waiting_messages(self) -> int:
        """How many messages came and were not taken yet."""
        return self._consumer.waiting_messages

    # --- acks ---

    def ack_through(self, message: Message) -> Noted:
        """Acks this message and everything before it in its shard. Only where one consumer gets everything in order
        (`exclusive`, `failover`); raises InvalidInput otherwise."""
        return self._consumer.ack_through(message)

    async def flush(self) -> None:
        """Waits until the broker has counted every ack so far. Raises ConnectionLost when it did not say so."""
        await self._consumer.flush()

    # --- where it stands ---

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
        """Of each shard, the offset below which everything was acked when the subscription was opened."""
        return self._consumer.positions

    @property
    def is_active(self) -> bool:
        """Whether messages come to this consumer: in a failover subscription one consumer has its turn."""
        return self._consumer.is_active

    @property
    def gaps(self) -> Sequence[Gap]:
        """Offsets that hold no message, as the broker declared them; the newest 1,000."""
        return self._consumer.gaps

    @property
    def error(self) -> errors.IcestreamError | None:
        """Why it has ended by itself. None: it has not."""
        return self._consumer.error

    async def seek(self, start: Whence, *, shard: int | None = None) -> None:
        """Everything from there on is delivered again, or for the first time, to all consumers of the subscription."""
        await self._consumer.seek(start, shard=shard)

    async def close(self) -> None:
        """Sends the acks, then leaves: what was not acked goes to other consumers, or comes again."""
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
