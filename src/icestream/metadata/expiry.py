"""Proposes that keys expire when their deadline has passed. Sleeps exactly until then: an idle store does nothing.

`look` is called after applied commands and costs a comparison; it wakes the task when a deadline came that is earlier
than the one it sleeps for. A key that is renewed only moves its deadline: the task finds that out when it wakes. The
same task ends leases (leases.py), whose deadlines are not in the log.

A node that takes over goes on from the last stamp in its log (store_time.py). Where there are others and keys with a
deadline, an idle leader writes one every METADATA_STAMP_MS: no key lives longer than that because the lead changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.leases import KeysAtRevisions, Leases
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.store_time import StoreTime
from icestream.runtime.clock import Clock

# Milliseconds are rounded down: this much more, and the deadline has passed when the sleep is over.
_ROUNDING_SECONDS = 0.0005


class Expiry:
    def __init__(
        self,
        machine: StateMachine,
        clock: Clock,
        time: StoreTime,
        leases: Leases,
        submit: Callable[[cmd.Command], Awaitable[cmd.Answer]],
        has_others: Callable[[], bool] = lambda: False,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._time = time
        self._leases = leases
        self._submit = submit
        self._has_others = has_others
        self._waits_for_ms: int | None = None
        self._known_leases = 0
        self._news = asyncio.Event()

    def look(self) -> None:
        deadline_ms = self._machine.next_deadline_ms
        if deadline_ms is not None and (self._waits_for_ms is None or deadline_ms < self._waits_for_ms):
            self._news.set()
        if self._machine.lease_revision != self._known_leases:
            self._news.set()

    async def run(self) -> None:
        """Runs until the store is closed or has stopped."""
        with contextlib.suppress(errors.IcestreamError):
            await self._run()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            self._known_leases = self._machine.lease_revision
            ended, lease_ms = self._leases.look()
            self._waits_for_ms = deadline_ms = self._machine.next_deadline_ms
            stamp_ms = self._machine.time_ms + limits.METADATA_STAMP_MS if self._has_others() and deadline_ms else None
            due = [ms for ms in (deadline_ms, lease_ms, stamp_ms) if ms is not None]
            left_ms = min(due, default=-1) - self._time.now_ms()
            if not due:
                await self._news.wait()
            elif left_ms > 0:
                await self._news_or(left_ms / 1000 + _ROUNDING_SECONDS)
            else:
                await self._expire(ended)

    async def _expire(self, ended: KeysAtRevisions) -> None:
        keys = ended + self._machine.expired(self._time.now_ms(), limits.METADATA_EXPIRE_KEYS_MAX)
        keys = keys[: limits.METADATA_EXPIRE_KEYS_MAX]
        try:
            with self._leases.ending(keys):
                await self._submit(cmd.ExpireTtlKeys(keys))
        except (errors.Refused, errors.OutcomeUnknown):
            await self._clock.sleep(limits.METADATA_RETRY_SECONDS)

    async def _news_or(self, seconds: float) -> None:
        waits = {asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
