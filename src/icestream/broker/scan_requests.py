"""The queue of scan requests from the broker to the lake process, its only worker (docs/adr/0027).

The lake process connects to the broker as a client, receives the requests as events, and sends each reply in parts. So
the broker opens no socket of its own for reads of tables, and knows no tables.

    no worker attached    a request waits SCAN_AWAY_SECONDS_MAX, then fails with LakeAway: the reader retries later from
                          the same position, and its consumers are informed
    worker attached       at most SCANS_IN_FLIGHT_MAX requests are in flight; the others wait their turn
    worker detached       requests without a reply go to the next worker: they change nothing, so a repetition is safe
    no reply in time      LakeAway after SCAN_SECONDS_MAX; the worker is told to drop the request
    the same request      of several readers at a time is sent once, and all of them get its reply. It is dropped when
                          all of them have left
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.model.scan_messages import ScanKind, ScanRequest, ScanResponse
from icestream.model.shard import ShardKey
from icestream.observability import metrics

SendEvent = Callable[[dict[str, Any]], None]
_reply_decoder = msgspec.msgpack.Decoder(ScanResponse)


class _PendingScan:
    """A request that has no reply yet, with the parts of the reply that have arrived."""

    __slots__ = ("parts", "reply", "request", "size")

    def __init__(self, request: ScanRequest) -> None:
        self.request = request
        self.reply: asyncio.Future[ScanResponse] = asyncio.get_running_loop().create_future()
        self.parts: list[bytes] = []
        self.size = 0


class _Question(NamedTuple):
    """What a request asks for: equal questions have the same answer."""

    kind: ScanKind
    topic: str
    key: ShardKey
    value: int
    bytes_max: int
    topic_filters: tuple[str, ...]


class _SharedScan:
    """A request that is queued or sent, and how many readers wait for its reply."""

    __slots__ = ("readers", "task")

    def __init__(self, task: asyncio.Task[ScanResponse]) -> None:
        self.task = task
        self.readers = 0


class ScanRequests:
    """The queue between the readers of this broker and the lake process."""

    def __init__(self) -> None:
        self._shared: dict[_Question, _SharedScan] = {}
        self._pending: dict[int, _PendingScan] = {}
        self._last_number = 0
        self._slots = asyncio.Semaphore(limits.SCANS_IN_FLIGHT_MAX)
        self._send_event: SendEvent | None = None
        self._worker_attached = asyncio.Event()
        self.had_worker = False  # since the broker started

    @property
    def has_worker(self) -> bool:
        return self._send_event is not None

    # --- the broker's side ---

    async def request(
        self,
        question: ScanKind,
        topic: str,
        key: ShardKey,
        value: int = 0,
        bytes_max: int = 0,
        topic_filters: tuple[str, ...] = (),
    ) -> ScanResponse:
        """Sends a request to the worker, or joins the same request of another reader, and returns its reply.

        Raises LakeAway without a worker or a reply in time, TableUnreadable, or the error that the worker reported.
        """
        pending = _Question(question, topic, key, value, bytes_max, topic_filters)
        shared = self._shared.get(pending)
        if shared is None:
            shared = self._shared[pending] = _SharedScan(
                asyncio.get_running_loop().create_task(self._send_question(pending))
            )
            shared.task.add_done_callback(lambda task: self._on_replied(pending, task))
        else:
            metrics.READS_SHARED.value += 1
        shared.readers += 1
        try:
            # Shielded: a reader that leaves does not take the reply from the others.
            return await asyncio.shield(shared.task)
        finally:
            shared.readers -= 1
            if not shared.readers:
                shared.task.cancel()

    def _on_replied(self, pending: _Question, task: asyncio.Task[ScanResponse]) -> None:
        # Only requests in flight are shared: a later one may find more in the table.
        if (shared := self._shared.get(pending)) is not None and shared.task is task:
            del self._shared[pending]
        if not task.cancelled():
            task.exception()  # it was raised for the readers, if any is left

    async def _send_question(self, pending: _Question) -> ScanResponse:
        # Waits for the worker inside of a slot: while the lake process is away, at most SCANS_IN_FLIGHT_MAX requests
        # wait for it, and each of the others fails after its turn instead of all of them arriving at once.
        async with self._slots:
            try:
                async with asyncio.timeout(limits.SCAN_AWAY_SECONDS_MAX):
                    await self._worker_attached.wait()
            except TimeoutError:
                raise _lake_away("the lake process is not connected") from None
            self._last_number += 1
            return await self._await_reply(
                ScanRequest(
                    self._last_number, pending.kind, pending.topic, *pending.key, pending.value, pending.bytes_max,
                    [*pending.topic_filters],
                )
            )  # fmt: skip

    async def _await_reply(self, request: ScanRequest) -> ScanResponse:
        pending = self._pending[request.number] = _PendingScan(request)
        try:
            self._send(pending)
            async with asyncio.timeout(limits.SCAN_SECONDS_MAX):
                return await pending.reply
        except TimeoutError:
            raise _lake_away(f"the lake process did not reply within {limits.SCAN_SECONDS_MAX:g} s") from None
        finally:
            del self._pending[request.number]
            # The reader was cancelled or timed out: the worker need not finish the scan.
            if (not pending.reply.done() or pending.reply.cancelled()) and self._send_event is not None:
                self._send_event({"event": "dropped", "number": request.number})

    def _send(self, pending: _PendingScan) -> None:
        pending.parts, pending.size = [], 0  # parts of a reply that a former worker began do not count
        if self._send_event is not None:
            self._send_event({"event": "asked", "asked": msgspec.to_builtins(pending.request)})

    # --- the worker's side ---

    def attach_worker(self, send_event: SendEvent) -> None:
        """Sends requests to this worker from now on, beginning with those that have no reply. Replaces the former."""
        # A second worker replaces the first: after a restart the old connection of the lake process may not have been
        # noticed as lost yet.
        self._send_event = send_event
        self.had_worker = True
        self._worker_attached.set()
        for pending in list(self._pending.values()):
            self._send(pending)

    def detach_worker(self, send_event: SendEvent) -> None:
        """Does nothing if another worker has been attached since."""
        if self._send_event is send_event:
            self._send_event = None
            self._worker_attached.clear()

    def accept_part(self, number: int, part: bytes, is_last: bool) -> None:
        """Adds a part to the reply of a request; drops it if the request is no longer pending."""
        pending = self._pending.get(number)
        if pending is None or pending.reply.done():
            return
        pending.parts.append(part)
        pending.size += len(part)
        if pending.size > limits.SCAN_ANSWER_BYTES_MAX:  # the worker is bounded too; a faulty one must not fill memory
            self.fail(number, errors.DecodeError(f"scan reply exceeds {limits.SCAN_ANSWER_BYTES_MAX} bytes"))
        elif is_last:
            try:
                pending.reply.set_result(_reply_decoder.decode(b"".join(pending.parts)))
            except msgspec.MsgspecError as error:
                self.fail(number, errors.DecodeError(f"scan reply of the lake process cannot be decoded: {error}"))

    def fail(self, number: int, error: errors.IcestreamError) -> None:
        """Fails a request with the error that the worker reported."""
        pending = self._pending.get(number)
        if pending is not None and not pending.reply.done():
            pending.reply.set_exception(error)


def _lake_away(message: str) -> errors.LakeAway:
    metrics.READ_WAITS.value += 1
    return errors.LakeAway(message, hint="it is restarted automatically; `icestream doctor` checks it")
