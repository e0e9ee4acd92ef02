"""Appends on their way: those that wait for offsets, then those that wait until their acks may leave.

queued     has no offsets yet: can still be refused           taken by the appender -> waiting
begun      a part of it has offsets, the rest has no room     stays in front of the queue
waiting    has its offsets and the LSN that releases it       released -> answered
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from icestream import errors
from icestream.wal.appender import Batch, Placed, Result
from icestream.wal.receipt import Receipt


class Request(Receipt):
    """An append, and the receipt for it."""

    __slots__ = ("batches", "lsn", "results", "size")

    def __init__(self, batches: Sequence[Batch], size: int) -> None:
        Receipt.__init__(self)  # once for every batch: super() costs a third of it
        self.batches = batches  # those without offsets
        self.size = size
        self.results: list[Result] = []
        self.lsn = 0


def size_of(batches: Sequence[Batch]) -> int:
    return len(batches[0].block) if len(batches) == 1 else sum([len(batch.block) for batch in batches])


class Requests:
    def __init__(self) -> None:
        self.queue: deque[Request] = deque()
        self.waiting: deque[Request] = deque()
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.queue or self.waiting)

    def add(self, request: Request) -> None:
        self.queue.append(request)
        self.queued_bytes += request.size

    def hand_out(self, requests: list[Request], results: list[Result], released_lsn: int, *, whole: bool) -> None:
        """Gives each request its results; a request that was taken only in part stays in front of the queue."""
        at = 0
        for request in requests:
            wanted = len(request.batches)
            if not whole and at + wanted > len(results):
                break
            self.queue.popleft()
            self.queued_bytes -= request.size
            request.results += results if wanted == len(results) else results[at : at + wanted]
            at += wanted
            self._await_release(request, released_lsn)
        if at < len(results):
            request = self.queue[0]
            request.results += results[at:]
            request.batches = request.batches[len(results) - at :]

    def _await_release(self, request: Request, released_lsn: int) -> None:
        last = request.results[-1] if request.results else None
        if isinstance(last, Placed):  # LSNs rise: what was stored last has the highest, duplicates included
            request.lsn = last.lsn
        else:
            request.lsn = max((one.lsn for one in request.results if isinstance(one, tuple)), default=0)
        if request.lsn > released_lsn:
            self.waiting.append(request)
        else:
            request.settle(request.results)

    def release(self, released_lsn: int) -> None:
        """Acks leave up to this record."""
        waiting = self.waiting
        while waiting and waiting[0].lsn <= released_lsn:
            request = waiting.popleft()
            request.settle(request.results)

    # --- failures ---

    def fail_waiting(self, error: errors.IcestreamError) -> None:
        failed, self.waiting = self.waiting, deque()
        _fail(failed, error)

    def fail_queue(self, error: errors.IcestreamError) -> None:
        failed, self.queue = self.queue, deque()
        self.queued_bytes = 0
        _fail(failed, error)

    def fail_begun(self, error: errors.IcestreamError) -> None:
        """A request that was taken only in part lost that part: the rest of it must not follow on its own."""
        while self.queue and self.queue[0].results:
            request = self.queue.popleft()
            self.queued_bytes -= request.size
            _fail([request], error)

    def refuse(self, error: errors.Refused, released_lsn: int) -> int:
        """Everything queued is refused: what has no offsets yet can be sent again later. How many were."""
        refused, self.queue = self.queue, deque()
        self.queued_bytes = 0
        for request in refused:
            if request.results:
                request.results += [error] * len(request.batches)
                self._await_release(request, released_lsn)
            else:
                request.fail(error)
        return len(refused)


def _fail(requests: Iterable[Request], error: errors.IcestreamError) -> None:
    for request in requests:
        request.fail(error)
