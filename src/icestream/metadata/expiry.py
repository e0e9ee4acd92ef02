"""Proposes that keys expire when their deadline has passed. Sleeps exactly until then: an idle store does nothing.

`check` is called after applied commands and costs a comparison; it wakes the task if there is a deadline earlier than
the one it sleeps for. Renewing a key only moves its deadline: the task notices when it wakes. The same task ends leases
(leases.py), whose deadlines are not in the log.

A new leader continues from the last stamp in its log (store_time.py). In a cluster with keys that have a deadline, an
idle leader writes a stamp every METADATA_STAMP_MS: no key lives longer than that because the leader changed.
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
    """The expiry task of one leadership."""

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
        self._seen_lease_revision = 0
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Wakes the task if deadlines or leases have changed so that it must act earlier."""
        deadline_ms = self._machine.next_deadline_ms
        if deadline_ms is not None and (self._waits_for_ms is None or deadline_ms < self._waits_for_ms):
            self._changed.set()
        if self._machine.lease_revision != self._seen_lease_revision:
            self._changed.set()

    async def run(self) -> None:
        """Runs until the store is closed or has stopped."""
        with contextlib.suppress(errors.IcestreamError):
            await self._run()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._seen_lease_revision = self._machine.lease_revision
            ended, lease_ms = self._leases.find_expired()
            self._waits_for_ms = deadline_ms = self._machine.next_deadline_ms
            stamp_ms = self._machine.time_ms + limits.METADATA_STAMP_MS if self._has_others() and deadline_ms else None
            due = [ms for ms in (deadline_ms, lease_ms, stamp_ms) if ms is not None]
            left_ms = min(due, default=-1) - self._time.now_ms()
            if not due:
                await self._changed.wait()
            elif left_ms > 0:
                await self._wait_for_change(left_ms / 1000 + _ROUNDING_SECONDS)
            else:
                await self._expire(ended)

    async def _expire(self, ended: KeysAtRevisions) -> None:
        """Proposes the expiry of ended leases and of keys beyond their deadline, as many as fit a command."""
        keys = ended + self._machine.expired(self._time.now_ms(), limits.METADATA_EXPIRE_KEYS_MAX)
        keys = keys[: limits.METADATA_EXPIRE_KEYS_MAX]
        try:
            with self._leases.ending(keys):
                await self._submit(cmd.ExpireTtlKeys(keys))
        # Nothing is lost by waiting: the command names revisions, so a key that was changed meanwhile does not expire.
        except (errors.Refused, errors.OutcomeUnknown):
            await self._clock.sleep(limits.METADATA_RETRY_SECONDS)

    async def _wait_for_change(self, seconds: float) -> None:
        waits = {asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
