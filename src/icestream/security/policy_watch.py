"""Keeps the access control of a node at the records of the metadata store.

    load      before the node accepts clients: a linearizable read, so that a node that was away when security was
              switched on does not begin open (hazard 112)
    follow    each change is applied as it arrives: sessions whose credential ended are ended, holds are decided again
    tick      while security is on: ends sessions with an expired credential, and confirms that this node is current

A node is *current* if a linearizable read succeeded and everything that it shows is applied here. The age of the last
confirmation decides (hazard 113):

    below login_grace_ms    all is as usual
    beyond it               no logins and no new producers and consumers: NotReady
    beyond hold_grace_ms    open producers and consumers are closed, too: a right may have been revoked meanwhile
    confirmed again         as usual; clients open again

While security is off nothing is read or timed; the watch alone waits for the switch.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from icestream import errors, limits
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Changes, Resync
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.waiters import Waiters
from icestream.security import security_records as records
from icestream.security.access_control import AccessControl
from icestream.security.account_directory import StoredUser
from icestream.security.principal import CallerIdentity
from icestream.security.security_state import SecurityState

_log = get_logger("security")


@dataclass(frozen=True, slots=True)
class PolicyWatchOptions:
    login_grace_ms: int = limits.ACCESS_LOGIN_GRACE_MS
    hold_grace_ms: int = limits.ACCESS_HOLD_GRACE_MS


class PolicyWatch:
    def __init__(
        self, store: MetadataStore, clock: Clock, control: AccessControl, options: PolicyWatchOptions | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._control = control
        self._options = options or PolicyWatchOptions()
        self.state = SecurityState()
        self._loaded_revision = 0
        self.applied_revision = 0  # of the last change that is in force here
        self._changed = Waiters()
        self._confirmed_ns = clock.monotonic_ns()
        self._now_us, self._now_ns = clock.wall_us(), clock.monotonic_ns()
        self._are_holds_closed = False

    # --- AccountDirectory: of the present state, which is replaced when all records are read again ---

    def find_user(self, name: str) -> StoredUser | None:
        return self.state.find_user(name)

    def find_service(self, name: str) -> int | None:
        return self.state.find_service(name)

    def is_revoked(self, token_id: str) -> bool:
        return self.state.is_revoked(token_id)

    def key_ring(self) -> bytes:
        return self.state.wrapped_keys

    # --- reading ---

    async def load(self) -> int:
        """Reads all records and applies them; returns the revision from which `follow` continues."""
        while True:
            begun_ns = self._clock.monotonic_ns()
            revision = await self._store.revision()
            entries = await self._store.list_all(records.SECURITY)
            changes = await self._store.get(records.CHANGES)
            # The pages are read one after the other. Without a change meanwhile they are those of one revision.
            if changes is None or changes.mod_revision <= revision:
                break
        self.state = SecurityState.load((key, entry.value, entry.mod_revision) for key, entry in entries)
        for key, problem in self.state.problems.items():
            _log.warning("a record of security gives no right: it cannot be decoded", key=key, reason=problem)
        self._loaded_revision = revision
        await self._apply(revision)
        self._confirm(begun_ns)
        return revision

    async def follow(self, revision: int) -> None:
        """Applies every change after this revision, until cancelled or until the store is closed."""
        while True:
            try:
                async for changes in self._store.watch(records.SECURITY, revision):
                    await self._take(changes)
            except errors.LogClosed:
                return
            except errors.PersistentStorageError as error:
                # The confirmations stop with the watch, so that the graces below apply until it runs again.
                _log.warning("the watch of the security records failed", reason=str(error))
                await self._clock.sleep(limits.ACCESS_TICK_SECONDS)
                revision = await self._reload(revision)

    async def _reload(self, revision: int) -> int:
        try:
            return await self.load()
        except errors.PersistentStorageError:
            return revision

    async def _take(self, changes: Changes | Resync) -> None:
        if isinstance(changes, Resync):
            await self.load()
            return
        if changes.revision <= self._loaded_revision:
            return  # in what was read already: an older value must not come back, not even for a moment
        for event in changes.events:
            self.state.apply(event.key, event.value, event.revision)
            if (problem := self.state.problems.get(event.key)) is not None:
                _log.warning("a record of security gives no right: it cannot be decoded", key=event.key, reason=problem)
        await self._apply(changes.revision)

    async def _apply(self, revision: int) -> None:
        was_enabled = self._control.is_enabled
        await self._control.apply(self.state.policy(revision), self._find_end)
        self.applied_revision = revision
        if self.state.is_enabled and not was_enabled:
            self._confirmed_ns = self._clock.monotonic_ns()  # while security is off, nothing is confirmed
            _log.info("security is on: what no grant allows is denied", revision=revision)
        self._changed.wake()

    def _find_end(self, identity: CallerIdentity) -> errors.IcestreamError | None:
        return self.state.find_end(identity, self._monotone_us())

    async def until_applied(self, revision: int) -> None:
        """Waits until the change of this revision is in force on this node."""
        while self.applied_revision < revision:
            await self._changed.wait()

    async def until_current(self) -> None:
        """Waits until this node has applied every change that was acknowledged before. Raises NotReady."""
        changes = await self._store.get(records.CHANGES)
        if changes is not None:
            await self.until_applied(changes.mod_revision)

    # --- time ---

    async def tick(self) -> None:
        """Ends expired sessions and confirms that this node is current, until cancelled."""
        while True:
            while not self.state.is_enabled:
                await self._changed.wait()
            self._control.end_expired(self._monotone_us())
            await self._check_current()
            self._control.end_expired(self._monotone_us())  # the check may have waited as long as a tick
            await self._clock.sleep(limits.ACCESS_TICK_SECONDS)

    def _monotone_us(self) -> int:
        """The wall clock, but never back: a step back must not prolong a credential."""
        elapsed_us = (self._clock.monotonic_ns() - self._now_ns) // 1_000
        self._now_us = max(self._clock.wall_us(), self._now_us + elapsed_us)
        self._now_ns = self._clock.monotonic_ns()
        return self._now_us

    async def _check_current(self) -> None:
        """Confirms that this node is current, or applies the graces."""
        begun_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(limits.ACCESS_TICK_SECONDS):
                await self.until_current()
        except (errors.PersistentStorageError, TimeoutError) as error:
            await self._apply_graces(str(error) or "no answer of a leader")
        else:
            self._confirm(begun_ns)

    def _confirm(self, begun_ns: int) -> None:
        """Notes that everything before `begun_ns` is applied here."""
        self._confirmed_ns = max(begun_ns, self._confirmed_ns)
        self._are_holds_closed = False
        if self._control.paused is not None:
            self._control.resume()
            _log.info("the security records are current again: logins are possible")

    async def _apply_graces(self, reason: str) -> None:
        age_ms = (self._clock.monotonic_ns() - self._confirmed_ns) // 1_000_000
        if age_ms < self._options.login_grace_ms:
            return
        error = errors.NotReady(
            f"this node has had no leader of the metadata store for {age_ms // 1000} s: rights may have changed",
            hint="connect to another node, or wait until most of the nodes are up",
        )
        if self._control.paused is None:
            _log.warning("no leader of the metadata store: new logins are refused", age_ms=age_ms, reason=reason)
        self._control.pause(error)
        if age_ms >= self._options.hold_grace_ms and not self._are_holds_closed:
            self._are_holds_closed = True
            closed = await self._control.close_holds(error)
            _log.warning("no leader of the metadata store: closed producers and consumers", count=closed)
