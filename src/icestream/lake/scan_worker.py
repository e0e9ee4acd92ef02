"""The lake process at the broker's desk: takes questions about tables, answers each in a task of its own.

It goes to the desk of every broker that the link leads to, one after the other. A question that the broker dropped is
not begun; what is being read is read to its end, and nobody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from icestream import errors, limits
from icestream.model.scan_messages import ScanRequest, ScanResponse
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.spans import span
from icestream.rpc.link import LOST, Link
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import Clock

_log = get_logger("scan")


class ScanWorker:
    def __init__(
        self, keeper: LinkKeeper, answer: Callable[[ScanRequest], Awaitable[ScanResponse]], clock: Clock
    ) -> None:
        self._keeper = keeper
        self._answer = answer
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._keeper.wait_connected()
                link = self._keeper.link
                if link is not None:
                    await self._attend(link)
                await self._clock.sleep(limits.LINK_RETRY_SECONDS_MIN)
        finally:
            self._drop_all()

    async def _attend(self, link: Link) -> None:
        try:
            await link.call("scan_serve", {}, lambda event: self._told(link, event))
            await link.lost.wait()
        except errors.ConnectionLost:
            return
        except errors.IcestreamError as error:
            _log.warning("the broker asks nothing about tables", error=str(error))
            await link.lost.wait()
        finally:
            self._drop_all()

    def _told(self, link: Link, event: dict[str, Any]) -> None:
        if event["event"] == "asked":
            asked = msgspec.convert(event["asked"], ScanRequest)
            task = asyncio.get_running_loop().create_task(self._carry_out(link, asked))
            self._tasks[asked.number] = task
            task.add_done_callback(lambda _: self._tasks.pop(asked.number, None))
        elif event["event"] == "dropped":
            self._drop(int(event["number"]))
        elif event["event"] == LOST:
            self._drop_all()

    def _drop(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    def _drop_all(self) -> None:
        for number in list(self._tasks):
            self._drop(number)

    async def _carry_out(self, link: Link, asked: ScanRequest) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            with span("scan", question=asked.question.value, topic=asked.topic, shard=asked.shard):
                found = await self._answer(asked)
        except errors.IcestreamError as error:
            await self._fail(link, asked, error)
        except OSError as error:  # of the machine or of a store: a retry may succeed
            _log.error("a table cannot be read now", topic=asked.topic, shard=asked.shard, exc_info=error)
            message = f"the table of topic {asked.topic} cannot be read now: {error}"
            await self._fail(link, asked, errors.StorageUnavailable(message, hint="look at its disk or object store"))
        except Exception as error:  # noqa: BLE001  # the reader waits for an answer, whatever went wrong
            _log.error("a table could not be read", topic=asked.topic, shard=asked.shard, exc_info=error)
            unreadable = errors.TableUnreadable(
                f"the table of topic {asked.topic} could not be read: {error!r}",
                hint=f"`icestream verify --deep {asked.topic}` looks at all of it; the lake process logs more",
            )
            await self._fail(link, asked, unreadable)
        else:
            metrics.SCANS.labels("answered").inc()
            await self._bring(link, asked.number, msgspec.msgpack.encode(found))
        finally:
            metrics.SCAN_SECONDS.inc((self._clock.monotonic_ns() - began_ns) / 1e9)

    async def _bring(self, link: Link, number: int, data: bytes) -> None:
        for at in range(0, len(data), limits.SCAN_PART_BYTES):
            part = data[at : at + limits.SCAN_PART_BYTES]
            is_last = at + len(part) == len(data)
            try:
                await link.call("scan_answer", {"number": number, "part": part, "is_last": is_last})
            except errors.ConnectionLost:
                return  # the next link brings the question again

    async def _fail(self, link: Link, asked: ScanRequest, error: errors.IcestreamError) -> None:
        metrics.SCANS.labels(error.code).inc()
        told = {"number": asked.number, "code": error.code, "message": error.message, "hint": error.hint}
        try:
            await link.call("scan_failed", told)
        except errors.ConnectionLost:
            return
