"""Arrow batches for callers that block."""

from __future__ import annotations

from collections.abc import Iterator

from icestream.client.acks import delay_ms_of
from icestream.client.arrow import ArrowBatch
from icestream.client.consumer import Consumer
from icestream.client.loop_thread import LoopThread
from icestream.client.message import NOTED, Noted


class BlockingBatch(ArrowBatch):
    """A batch whose ack goes over to the client's thread, and is noted when it returns."""

    __slots__ = ("_thread",)

    def __init__(self, thread: LoopThread, batch: ArrowBatch) -> None:
        super().__init__(batch._data, batch._chunks)
        self._thread = thread

    def ack(self) -> Noted:
        """All messages of the batch are done with: they do not come again."""
        acked = super().ack

        async def note() -> None:
            acked()

        self._thread.run(note())
        return NOTED

    def nack(self, delay: float = 0.0) -> Noted:
        """All messages of the batch failed: they come again, after `delay` seconds or later."""
        delay_ms_of(delay)
        nacked = super().nack

        async def note() -> None:
            nacked(delay)

        self._thread.run(note())
        return NOTED


def blocking_batches(thread: LoopThread, consumer: Consumer, max_messages: int) -> Iterator[ArrowBatch]:
    found = consumer.batches(max_messages)

    async def following() -> ArrowBatch | None:
        return await anext(found, None)

    while (batch := thread.run(following())) is not None:
        yield BlockingBatch(thread, batch)
