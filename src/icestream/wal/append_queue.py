"""Appends between `submit` and their acknowledgement.

queued     no offsets assigned: can still be refused                  taken by the appender -> unreleased
begun      a part has offsets, the rest does not fit the files        stays at the front of the queue
unreleased offsets assigned, waits for its LSN to be released         released -> settled
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from icestream import errors
from icestream.wal.appender import AppendBatch, AppendGroup, Placed, Result
from icestream.wal.receipt import Receipt


class AppendRequest(Receipt):
    """One call of `append` or `submit`, and the receipt for it."""

    __slots__ = ("batches", "lsn", "results", "size")

    def __init__(self, batches: Sequence[AppendBatch | AppendGroup], size: int) -> None:
        Receipt.__init__(self)  # once for every batch: super() costs a third of it
        self.batches = batches  # those without offsets
        self.size = size
        self.results: list[Result] = []
        self.lsn = 0  # released with this record


def total_block_bytes(batches: Sequence[AppendBatch | AppendGroup]) -> int:
    """The bytes of the batches' blocks. One batch is the common case and costs no loop."""
    return batches[0].size_bytes if len(batches) == 1 else sum([batch.size_bytes for batch in batches])


class AppendQueue:
    """All appends of one log that are not settled yet, in the order of their submission."""

    def __init__(self) -> None:
        self.queue: deque[AppendRequest] = deque()
        self.unreleased: deque[AppendRequest] = deque()
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.queue or self.unreleased)

    def add(self, request: AppendRequest) -> None:
        self.queue.append(request)
        self.queued_bytes += request.size

    def assign_results(
        self, requests: list[AppendRequest], results: list[Result], released_lsn: int, *, is_complete: bool
    ) -> None:
        """Distributes the appender's results over the requests, in order.

        `is_complete`: there is a result for every batch. Otherwise a request with only some of its results stays at
        the front of the queue with the rest of its batches.
        """
        start = 0
        for request in requests:
            count = len(request.batches)
            if not is_complete and start + count > len(results):
                break
            self.queue.popleft()
            self.queued_bytes -= request.size
            request.results += results if count == len(results) else results[start : start + count]
            start += count
            self._await_release(request, released_lsn)
        # The files had room for a part of this request. Its results are kept with it; it is settled only when all are
        # there.
        if start < len(results):
            request = self.queue[0]
            request.results += results[start:]
            request.batches = request.batches[len(results) - start :]

    def _await_release(self, request: AppendRequest, released_lsn: int) -> None:
        last = request.results[-1] if request.results else None
        if isinstance(last, Placed):  # LSNs rise, so the batch stored last has the highest, duplicates included
            request.lsn = last.lsn
        else:
            request.lsn = max((result.lsn for result in request.results if isinstance(result, tuple)), default=0)
        # A request of duplicates only may be released already: its batches were stored by an earlier request.
        if request.lsn > released_lsn:
            self.unreleased.append(request)
        else:
            request.settle(request.results)

    def release(self, released_lsn: int) -> None:
        """Settles every request whose records are all at or below `released_lsn`: the acknowledgements leave."""
        unreleased = self.unreleased
        while unreleased and unreleased[0].lsn <= released_lsn:
            request = unreleased.popleft()
            request.settle(request.results)

    # --- failures ---

    def fail_unreleased(self, error: errors.IcestreamError) -> None:
        failed, self.unreleased = self.unreleased, deque()
        _fail(failed, error)

    def fail_queue(self, error: errors.IcestreamError) -> None:
        failed, self.queue = self.queue, deque()
        self.queued_bytes = 0
        _fail(failed, error)

    def fail_begun(self, error: errors.IcestreamError) -> None:
        """Fails the request whose first part was rolled back: the rest of it must not be stored on its own."""
        while self.queue and self.queue[0].results:
            request = self.queue.popleft()
            self.queued_bytes -= request.size
            _fail([request], error)

    def refuse_queue(self, error: errors.Refused, released_lsn: int) -> int:
        """Refuses everything without offsets and returns the number of requests. The senders can retry later."""
        refused, self.queue = self.queue, deque()
        self.queued_bytes = 0
        for request in refused:
            if request.results:
                # The first part has offsets and will be acknowledged: only the batches without offsets are refused.
                request.results += [error] * len(request.batches)
                self._await_release(request, released_lsn)
            else:
                request.fail(error)
        return len(refused)


def _fail(requests: Iterable[AppendRequest], error: errors.IcestreamError) -> None:
    for request in requests:
        request.fail(error)
