"""The answers to the PUBLISH frames of one connection: in the order of the frames, each when all its parts are settled.

A producer that is too fast for its topic is answered late: so it slows down, and whatever else it says on its
connection is still heard. How much may wait for an answer is bounded; the connection reads no more then (hazard 35).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from icestream import errors, limits
from icestream.frontends.native.notifier import Notifier
from icestream.rpc import document, frame
from icestream.rpc.frame import Done, Kind, Outcome
from icestream.wal.appender import Placed
from icestream.wal.producers import Duplicate
from icestream.wal.receipt import Receipt

Part = Done | Receipt


class PendingResponse:
    """One frame: its parts, settled or still to be."""

    __slots__ = ("late", "left", "number", "parts", "size")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size + limits.ANSWER_COST_BYTES
        self.parts: list[Part] = []
        self.left = 1  # unsettled parts, the end of the frame, and the time to wait
        self.late: asyncio.TimerHandle | None = None


class PublishResponses:
    def __init__(self, send: Callable[[int, int, bytes], None]) -> None:
        """`send`: kind, number and body of a frame."""
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingResponse] = deque()
        self._bytes = 0
        self.settled = Notifier()  # beats with every part

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._bytes >= limits.CONNECTION_IN_FLIGHT_BYTES_MAX

    def begin(self, number: int, size: int) -> PendingResponse:
        answer = PendingResponse(number, size)
        self._waiting.append(answer)
        return answer

    def add(self, answer: PendingResponse, part: Part) -> None:
        answer.parts.append(part)
        if not isinstance(part, Done):
            answer.left += 1
            part.add_done_callback(partial(self._settle, answer))

    def end(self, answer: PendingResponse, late_ms: int) -> None:
        """The frame has no further part. It is answered `late_ms` from now at the earliest."""
        self._bytes += answer.size
        if late_ms:
            answer.left += 1
            answer.late = self._loop.call_later(late_ms / 1000, self._ring, answer)
        self._settle(answer)

    def _ring(self, answer: PendingResponse) -> None:
        answer.late = None
        self._settle(answer)

    def _settle(self, answer: PendingResponse, _: object = None) -> None:
        answer.left -= 1
        waiting = self._waiting
        while waiting and not waiting[0].left:
            first = waiting.popleft()
            self._bytes -= first.size
            self._send(Kind.PUBLISHED, first.number, _encode(first.parts))
        self.settled.beat()

    async def finish(self) -> None:
        """Until everything is answered. Nobody is slowed any more."""
        for answer in list(self._waiting):
            if answer.late is not None:
                answer.late.cancel()
                self._ring(answer)
        while self._waiting:
            await self.settled.wait()

    def abandon(self, answer: PendingResponse) -> None:
        """A frame that was not taken as a whole gets no answer: what became of it is not known."""
        self._waiting.remove(answer)
        self.settled.beat()

    def close(self) -> None:
        """Nobody is there any more who could be answered."""
        for answer in self._waiting:
            if answer.late is not None:
                answer.late.cancel()

    @staticmethod
    def refused(error: errors.IcestreamError) -> Done:
        is_after = isinstance(error, errors.AfterRefused)
        return Done(Outcome.AFTER_REFUSED if is_after else Outcome.REFUSED, -1, document.encode_error(error))


def _encode(parts: list[Part]) -> bytes:
    first = parts[0]
    if len(parts) == 1 and isinstance(first, Receipt) and first.exception() is None:
        (result,) = first.result()
        if isinstance(result, Placed):
            return frame.encode_stored(result.base_offset)
    return frame.encode_done([one if isinstance(one, Done) else outcome(one) for one in parts])


def outcome(receipt: Receipt) -> Done:
    """What became of one batch."""
    error = receipt.exception()
    if isinstance(error, errors.OutcomeUnknown):
        return Done(Outcome.UNKNOWN, -1, document.encode_error(error))
    if error is not None:
        return PublishResponses.refused(error)
    (result,) = receipt.result()
    match result:
        case Placed(base_offset, _):
            return Done(Outcome.STORED, base_offset)
        case Duplicate(int() as base_offset, _):
            return Done(Outcome.DUPLICATE, base_offset)
        case Duplicate():
            return Done(Outcome.DUPLICATE_FORGOTTEN, -1)
        case _:
            return PublishResponses.refused(result)
