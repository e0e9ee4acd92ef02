"""A subscription for callers that block: an iterator that waits for the next message. Any thread may use it.

Messages are taken over from the client's thread many at a time. One thread fetches, the others wait for what it brings.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from icestream import errors, limits
from icestream.client.acks import delay_ms_of
from icestream.client.asked import Gap
from icestream.client.consumer import Consumer
from icestream.client.delivered import Delivered
from icestream.client.loop_thread import LoopThread
from icestream.client.message import NOTED, Message, Noted
from icestream.client.stalls import Stall
from icestream.client.whence import Whence

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch


class BlockingMessage(Message):
    """A message whose ack goes over to the client's thread."""

    __slots__ = ("_thread",)

    def __init__(self, delivered: Delivered, row: int, thread: LoopThread) -> None:
        super().__init__(delivered, row)
        self._thread = thread

    def ack(self) -> Noted:
        """It is done with: it does not come again."""
        self._go_over(super().ack)
        return NOTED

    def nack(self, delay: float = 0.0) -> Noted:
        """It failed: it comes again, after `delay` seconds or later if the subscription's policy says so."""
        delay_ms_of(delay)
        self._go_over(super().nack, delay)
        return NOTED

    def _go_over(self, call: Callable[..., object], *arguments: object) -> None:
        """What is known to be wrong is raised here; a subscription that ends in between needs no acks any more."""
        self._delivered.consumer.check_open()
        self._thread.call_soon(_quietly, call, *arguments)


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    with suppress(errors.IcestreamError):
        call(*arguments)


class BlockingSubscription:
    """Messages of a topic: an iterator that waits for the next one. `BlockingClient.subscribe` makes one; any thread
    may use it."""

    def __init__(self, thread: LoopThread, consumer: Consumer, deduplicates: bool) -> None:
        self._thread = thread
        self._consumer = consumer
        self._deduplicates = deduplicates
        self._changed = threading.Condition()
        self._messages: deque[Message] = deque()  # taken over
        self._is_fetching = False

    # --- messages ---

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when the time is over, or the subscription was closed."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            seconds = None if end is None else max(0.0, end - monotonic())
            with self._changed:
                message = self._next_here()
                if message is not None:
                    return message
                if self._is_fetching:
                    if not self._changed.wait(seconds):
                        return None
                    continue
                self._is_fetching = True
            if not self._fetch(seconds):
                return None

    def _next_here(self) -> Message | None:
        while self._messages:
            message = self._messages.popleft()
            # one whose connection is lost comes again; where that is dropped, this is the only one
            if message.is_current or self._deduplicates:
                return message
        return None

    def _fetch(self, seconds: float | None) -> bool:
        """False: the time is over, or the subscription was closed."""
        taken: list[Message] = []
        try:
            taken = self._thread.run(self._take(seconds))
        finally:
            with self._changed:
                self._messages.extend(taken)
                self._is_fetching = False
                self._changed.notify_all()
        return bool(taken)

    async def _take(self, seconds: float | None) -> list[Message]:
        try:
            async with asyncio.timeout(seconds):
                chunk = await self._consumer.take_over(limits.CLIENT_SYNC_CHUNK)
        except TimeoutError:
            return []
        if chunk is None:
            return []
        delivered, first, end = chunk
        return [BlockingMessage(delivered, row, self._thread) for row in range(first, end)]

    def batches(self, max_messages: int = 10_000) -> Iterator[ArrowBatch]:
        """Messages as Arrow, with the columns of the topic's table; each batch has `ack()`. Needs pyarrow."""
        from icestream.client.blocking_arrow import blocking_batches

        return blocking_batches(self._thread, self._consumer, max_messages)

    # --- acks ---

    def ack_through(self, message: Message) -> None:
        """Acks this message and everything before it in its shard, where one consumer gets everything in order."""

        async def note() -> None:
            self._consumer.ack_through(message)

        self._thread.run(note())

    def flush(self) -> None:
        """Waits until the broker has counted every ack so far."""
        self._thread.run(self._consumer.flush())

    # --- where it stands ---

    def seek(self, start: Whence, *, shard: int | None = None) -> None:
        """Everything from there on is delivered again, or for the first time, to all consumers of the subscription."""
        self._thread.run(self._consumer.seek(start, shard=shard))
        with self._changed:
            self._messages.clear()

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
    def gaps(self) -> list[Gap]:
        """Offsets that hold no message, as the broker declared them; the newest 1,000."""
        return list(self._consumer.gaps)

    @property
    def stalls(self) -> list[Stall]:
        """What keeps messages from coming now: shard, offset, reason and hint of each; empty while nothing does. The
        iteration raises SubscriptionStalled for it, see `stall_timeout` of `Client.subscribe`."""
        return self._consumer.stalls

    def close(self) -> None:
        """Sends the acks, then leaves. Threads that wait for a message get None."""
        self._thread.run(self._consumer.close())
        with self._changed:
            self._messages.clear()

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
