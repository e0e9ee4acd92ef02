"""Linearizable reads: they see every write that was acknowledged before. All reads of one step share one read index.

    waiting --begin: a new context--> requested --the core answers--> indexed --applied up to the index--> done
       ^                                  |
       └──── no answer in time ───────────┘      under a new context: a late answer to the old one is ignored

A context is never used twice (trap 12). The core silently drops reads that it cannot answer (no leader, or a leader
that has not committed anything in its term): hence the retry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from icestream import errors
from icestream.metadata.core import ReadState

Read = asyncio.Future[None]
PendingReads = list[tuple[int, Read]]  # the tick at which each was requested


class Reads:
    """The reads of one node."""

    def __init__(self, name: bytes) -> None:
        self._name = name  # of this run of this node: no other contexts begin with it
        self._number = 0
        self._waiting: PendingReads = []
        self._requested: dict[bytes, tuple[int, PendingReads]] = {}  # by context: when, in ticks
        self._indexed: deque[tuple[int, PendingReads]] = deque()  # by index
        self._now = 0

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def are_under_way(self) -> bool:
        return bool(self._waiting or self._requested)

    def add(self) -> Read:
        """Adds a read; it completes when the applied state is recent enough."""
        read: Read = asyncio.get_running_loop().create_future()
        self._waiting.append((self._now, read))
        return read

    def begin(self) -> bytes:
        """The context of the read index request that serves all waiting reads."""
        self._number += 1
        context = self._name + self._number.to_bytes(8)
        # A read that arrives from now on must not join this request: the leader may have answered it with an older
        # index.
        self._requested[context] = (self._now, self._waiting)
        self._waiting = []
        return context

    def add_indexes(self, states: Iterable[ReadState]) -> None:
        """Takes over the read indexes that the core has answered with."""
        for state in states:
            if (request := self._requested.pop(state.context, None)) is not None:
                self._indexed.append((state.index, request[1]))

    def applied(self, index: int) -> None:
        """Completes the reads up to this applied index."""
        if not self._indexed:
            return
        pending: deque[tuple[int, PendingReads]] = deque()
        for needed, reads in self._indexed:
            if needed > index:
                pending.append((needed, reads))
                continue
            for _, read in reads:
                if not read.done():
                    read.set_result(None)
        self._indexed = pending

    def tick(self, patience: int, most: int) -> None:
        """Counts a tick: repeats requests unanswered for `patience` ticks, fails reads older than `most` ticks."""
        self._now += 1
        for context, (requested_at, reads) in tuple(self._requested.items()):
            if self._now - requested_at >= patience:
                del self._requested[context]
                # Their age stays: a read that is repeated again and again must still fail after `most` ticks.
                self._waiting += [read for read in reads if not read[1].done()]
        while self._waiting and self._now - self._waiting[0][0] > most:
            _, read = self._waiting.pop(0)
            if not read.done():
                read.set_exception(errors.NotReady("no leader answered the read", hint="most of the voters must be up"))

    def fail(self, error: errors.IcestreamError) -> None:
        """Fails all reads: the node stops or closes."""
        groups = [reads for _, reads in self._indexed]
        for reads in (self._waiting, *(reads for _, reads in self._requested.values()), *groups):
            for _, read in reads:
                if not read.done():
                    read.set_exception(error)
        self._waiting = []
        self._requested.clear()
        self._indexed.clear()
