"""Serves scan requests of the broker (cold reads): each is run in a task.

The worker attaches to every broker that the link connects to, one after the other. A request that the broker cancels is
cancelled if possible; a read in a thread runs to its end, and its result is discarded.
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
        """Serves requests until it is cancelled."""
        try:
            while True:
                await self._keeper.wait_connected()
                link = self._keeper.link
                if link is not None:
                    await self._serve(link)
                await self._clock.sleep(limits.LINK_RETRY_SECONDS_MIN)
        finally:
            self._cancel_all()

    async def _serve(self, link: Link) -> None:
        try:
            await link.call("scan_serve", {}, lambda event: self._on_event(link, event))
            await link.lost.wait()
        except errors.ConnectionLost:
            return
        except errors.IcestreamError as error:
            _log.warning("broker refused scan_serve, cold reads unavailable", error=str(error))
            await link.lost.wait()
        finally:
            self._cancel_all()

    def _on_event(self, link: Link, event: dict[str, Any]) -> None:
        if event["event"] == "asked":
            request = msgspec.convert(event["asked"], ScanRequest)
            task = asyncio.get_running_loop().create_task(self._run_scan(link, request))
            self._tasks[request.number] = task
            task.add_done_callback(lambda _: self._tasks.pop(request.number, None))
        elif event["event"] == "dropped":
            self._cancel(int(event["number"]))
        elif event["event"] == LOST:
            self._cancel_all()

    def _cancel(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    def _cancel_all(self) -> None:
        for number in list(self._tasks):
            self._cancel(number)

    async def _run_scan(self, link: Link, request: ScanRequest) -> None:
        start_ns = self._clock.monotonic_ns()
        try:
            with span("scan", question=request.question.value, topic=request.topic, shard=request.shard):
                result = await self._answer(request)
        except errors.IcestreamError as error:
            await self._fail(link, request, error)
        except OSError as error:  # of the machine or of a store: a retry may succeed
            _log.error("table temporarily unreadable", topic=request.topic, shard=request.shard, exc_info=error)
            message = f"cannot read the table of topic {request.topic} at the moment: {error}"
            await self._fail(link, request, errors.StorageUnavailable(message, hint="check its disk or object store"))
        except Exception as error:  # noqa: BLE001  # the broker waits for a reply, whatever went wrong
            _log.error("table unreadable", topic=request.topic, shard=request.shard, exc_info=error)
            unreadable = errors.TableUnreadable(
                f"cannot read the table of topic {request.topic}: {error!r}",
                hint=f"run `icestream verify --deep {request.topic}`; see the log of the lake process",
            )
            await self._fail(link, request, unreadable)
        else:
            metrics.SCANS.labels("answered").inc()
            await self._send_result(link, request.number, msgspec.msgpack.encode(result))
        finally:
            metrics.SCAN_SECONDS.inc((self._clock.monotonic_ns() - start_ns) / 1e9)

    async def _send_result(self, link: Link, number: int, data: bytes) -> None:
        for start in range(0, len(data), limits.SCAN_PART_BYTES):
            part = data[start : start + limits.SCAN_PART_BYTES]
            is_last = start + len(part) == len(data)
            try:
                await link.call("scan_answer", {"number": number, "part": part, "is_last": is_last})
            except errors.ConnectionLost:
                return  # the broker sends the request again over the next link

    async def _fail(self, link: Link, request: ScanRequest, error: errors.IcestreamError) -> None:
        metrics.SCANS.labels(error.code).inc()
        failure = {"number": request.number, "code": error.code, "message": error.message, "hint": error.hint}
        try:
            await link.call("scan_failed", failure)
        except errors.ConnectionLost:
            return
