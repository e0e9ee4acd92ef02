"""Reads that must see everything that was answered before they were asked: all of one turn share one read index.

    waiting --begin: a context of its own--> asked --the core answers--> known --applied so far--> done
       ^                                       |
       └──── again: no answer came in time ────┘      under a new context: a late answer to the old one is no answer

A context is never used twice (trap 12). The core forgets reads that it cannot answer (no leader, or one that has not
committed anything in its term), without a word: hence `again`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from icestream import errors
from icestream.metadata.core import ReadState

Read = asyncio.Future[None]
Asked = list[tuple[int, Read]]  # since when, in ticks


class Reads:
    def __init__(self, name: bytes) -> None:
        self._name = name  # of this life of this node: nobody else's contexts begin with it
        self._number = 0
        self._waiting: Asked = []
        self._asked: dict[bytes, tuple[int, Asked]] = {}  # by context: when, in ticks
        self._known: deque[tuple[int, Asked]] = deque()  # by index
        self._now = 0

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def are_under_way(self) -> bool:
        return bool(self._waiting or self._asked)

    def ask(self) -> Read:
        read: Read = asyncio.get_running_loop().create_future()
        self._waiting.append((self._now, read))
        return read

    def begin(self) -> bytes:
        """The context of the read index request that serves all waiting reads."""
        self._number += 1
        context = self._name + self._number.to_bytes(8)
        self._asked[context] = (self._now, self._waiting)
        self._waiting = []
        return context

    def answered(self, states: Iterable[ReadState]) -> None:
        for state in states:
            if (request := self._asked.pop(state.context, None)) is not None:
                self._known.append((state.index, request[1]))

    def applied(self, index: int) -> None:
        """Completes the reads up to this applied index."""
        if not self._known:
            return
        pending: deque[tuple[int, Asked]] = deque()
        for needed, reads in self._known:
            if needed > index:
                pending.append((needed, reads))
                continue
            for _, read in reads:
                if not read.done():
                    read.set_result(None)
        self._known = pending

    def tick(self, patience: int, most: int) -> None:
        """Time passes: what was not answered for `patience` ticks is asked again, `most` ticks at most."""
        self._now += 1
        for context, (asked_at, reads) in tuple(self._asked.items()):
            if self._now - asked_at >= patience:
                del self._asked[context]
                self._waiting += [read for read in reads if not read[1].done()]
        while self._waiting and self._now - self._waiting[0][0] > most:
            _, read = self._waiting.pop(0)
            if not read.done():
                read.set_exception(errors.NotReady("no leader answers", hint="most of the voters must be up"))

    def fail(self, error: errors.IcestreamError) -> None:
        groups = [reads for _, reads in self._known]
        for reads in (self._waiting, *(reads for _, reads in self._asked.values()), *groups):
            for _, read in reads:
                if not read.done():
                    read.set_exception(error)
        self._waiting = []
        self._asked.clear()
        self._known.clear()
