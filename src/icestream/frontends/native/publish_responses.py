"""The responses to the PUBLISH frames of one connection: sent in frame order, each once all its parts are settled.

The response to a producer that exceeds its topic's publish rate is delayed: that slows the producer down, while its
other requests on the same connection are still served. The bytes that wait for a response are bounded; at the bound the
connection stops reading (hazard 35).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from icestream import errors, limits
from icestream.broker.publish_group import RejectedBatch
from icestream.broker.publish_result import PublishOutcome, PublishResult
from icestream.frontends.native.notifier import Notifier
from icestream.rpc import document, frame
from icestream.rpc.frame import FrameKind, Outcome, PartResult

Part = PartResult | PublishResult


class PendingResponse:
    """The response to one PUBLISH frame: its parts, settled or in flight."""

    __slots__ = ("delay_timer", "number", "parts", "size", "unsettled")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size + limits.ANSWER_COST_BYTES
        self.parts: list[Part] = []
        self.unsettled = 1  # parts in flight, plus one for the end of the frame, plus one for the delay
        self.delay_timer: asyncio.TimerHandle | None = None


class PublishResponses:
    def __init__(self, send: Callable[[int, int, bytes], None]) -> None:
        """`send`: kind, number and body of a frame."""
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingResponse] = deque()
        self._bytes = 0
        self.settled = Notifier()  # notifies with every settled part

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._bytes >= limits.CONNECTION_IN_FLIGHT_BYTES_MAX

    def begin(self, number: int, size: int) -> PendingResponse:
        response = PendingResponse(number, size)
        self._waiting.append(response)
        return response

    def add(self, response: PendingResponse, part: Part) -> None:
        response.parts.append(part)
        if not isinstance(part, PartResult):
            response.unsettled += 1
            part.add_done_callback(partial(self._settle, response))

    def end(self, response: PendingResponse, delay_ms: int) -> None:
        """Marks the frame as complete. Its response is sent `delay_ms` from now at the earliest."""
        self._bytes += response.size
        if delay_ms:
            response.unsettled += 1
            response.delay_timer = self._loop.call_later(delay_ms / 1000, self._on_delay_over, response)
        self._settle(response)

    def _on_delay_over(self, response: PendingResponse) -> None:
        response.delay_timer = None
        self._settle(response)

    def _settle(self, response: PendingResponse, _: object = None) -> None:
        response.unsettled -= 1
        waiting = self._waiting
        while waiting and not waiting[0].unsettled:
            first = waiting.popleft()
            self._bytes -= first.size
            self._send(FrameKind.PUBLISHED, first.number, _encode(first.parts))
        self.settled.notify()

    async def finish(self) -> None:
        """Waits until every response is sent; delays end at once."""
        # A delay slows a producer down; a stop has no reason to wait for it.
        for response in list(self._waiting):
            if response.delay_timer is not None:
                response.delay_timer.cancel()
                self._on_delay_over(response)
        while self._waiting:
            await self.settled.wait()

    def abandon(self, response: PendingResponse) -> None:
        """Drops the response to a frame that was not published completely: the client does not learn its outcome."""
        self._waiting.remove(response)
        self.settled.notify()

    def close(self) -> None:
        """Cancels the delays, once the client has disconnected."""
        for response in self._waiting:
            if response.delay_timer is not None:
                response.delay_timer.cancel()

    @staticmethod
    def refused(error: errors.IcestreamError) -> PartResult:
        is_after = isinstance(error, errors.AfterRefused)
        return PartResult(Outcome.AFTER_REFUSED if is_after else Outcome.REFUSED, -1, document.encode_error(error))


def _encode(parts: list[Part]) -> bytes:
    first = parts[0]
    if len(parts) == 1 and isinstance(first, PublishResult) and first.outcome is PublishOutcome.STORED:
        assert first.base_offset is not None
        return frame.encode_stored(first.base_offset)
    return frame.encode_part_results([part if isinstance(part, PartResult) else _wire_outcome(part) for part in parts])


def encode_outcome(result: PublishResult | RejectedBatch) -> bytes:
    """The result of one batch as a part of a PUBLISHED frame."""
    return frame.encode_part_results([_wire_outcome(result)])


def encode_refusal(error: errors.IcestreamError) -> bytes:
    """The outcome of a batch that was refused, or whose outcome is unknown, as a part of a PUBLISHED frame."""
    outcome = PublishOutcome.UNKNOWN if isinstance(error, errors.OutcomeUnknown) else PublishOutcome.REFUSED
    return encode_outcome(RejectedBatch(outcome, error=error))


def _wire_outcome(result: PublishResult | RejectedBatch) -> PartResult:
    """The result of one batch in the form of the wire."""
    error = result.error
    if error is not None:
        if result.outcome is PublishOutcome.UNKNOWN:
            return PartResult(Outcome.UNKNOWN, -1, document.encode_error(error))
        return PublishResponses.refused(error)
    if result.base_offset is None:  # a duplicate so old that its offset is no longer known
        return PartResult(Outcome.DUPLICATE_FORGOTTEN, -1)
    is_stored = result.outcome is PublishOutcome.STORED
    return PartResult(Outcome.STORED if is_stored else Outcome.DUPLICATE, result.base_offset)
