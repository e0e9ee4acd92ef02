"""A producer for callers that block. Any thread may use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType

from icestream.client.batch import MessageId
from icestream.client.loop_thread import LoopThread
from icestream.client.producer import Payload, Producer, bytes_of


class BlockingProducer:
    """Sends messages to a topic, with calls that block. `BlockingClient.producer` makes one; any thread may use it."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    @property
    def topic(self) -> str:
        """The topic that it sends to."""
        return self._producer.topic

    @property
    def name(self) -> str:
        """Its name: another producer of the same name fences it."""
        return self._producer.name

    def send(
        self,
        payload: Payload,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        publish_time: datetime | int | None = None,
    ) -> MessageId:
        """Sends a message and returns when it is stored, with its place. `send_all` is far faster for many.

        `key`, `headers` and `publish_time` are as those of `Producer.send`.
        """
        return self._thread.run(self._send(payload, key, headers, publish_time))

    async def _send(
        self,
        payload: Payload,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
        publish_time: datetime | int | None,
    ) -> MessageId:
        await self._producer.ready()
        return await self._producer.send(payload, key=key, headers=headers, publish_time=publish_time)

    def send_all(self, payloads: Iterable[Payload], *, key: bytes | str | None = None) -> list[MessageId]:
        """Sends them together; returns when all are stored. Raises the first error, when all are settled.

        Payloads that are not bytes are refused before anything is sent.
        """
        return self._thread.run(self._send_all([bytes_of(payload) for payload in payloads], key))

    async def _send_all(self, payloads: list[bytes], key: bytes | str | None) -> list[MessageId]:
        sent: list[asyncio.Future[MessageId]] = []
        try:
            for payload in payloads:
                await self._producer.ready()
                sent.append(self._producer.send(payload, key=key))
        finally:
            await asyncio.gather(*sent, return_exceptions=True)
        return [one.result() for one in sent]

    def flush(self) -> None:
        """Waits until everything that other threads have sent so far is stored or has failed."""
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        """Waits until everything is stored or has failed, then leaves."""
        self._thread.run(self._producer.close())

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
