"""The metadata store of a node: the state machine behind its own durable log.

Reads are answered from the applied state. For a node on its own that is linearizable as it is: commands are applied and
answered in one order on one loop, what is answered is applied, and what is applied is synced. With others a read first
asks for the read index (node.read), unless the caller is content with less:

    LINEARIZABLE   everything that was answered anywhere before the read began
    SESSION        everything that was answered here: a write counts as answered when the state here has it
    STALE          what is here, however old; no hop to anybody

Commands go to whoever leads (routing.py), who stamps the time. Only the leader lets keys expire, and knows until when
leases are kept (leases.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal, refused_identity
from icestream.metadata.entry import Entry
from icestream.metadata.expiry import Expiry
from icestream.metadata.leadership import Leadership
from icestream.metadata.leases import Leases
from icestream.metadata.log_format import Identity
from icestream.metadata.log_recovery import MetadataReport
from icestream.metadata.node import Node
from icestream.metadata.proposals import Answer
from icestream.metadata.routing import Forward, ForwardRenewal, Routing
from icestream.metadata.snapshot_task import SnapshotTask
from icestream.metadata.store import Consistency, Entries, MetadataStore
from icestream.metadata.store_time import StoreTime
from icestream.metadata.watch import Changes, Resync
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload


class NodeStore(MetadataStore):
    """Open one with `icestream.metadata.open.open_metadata`."""

    def __init__(
        self,
        node: Node,
        snapshots: SnapshotTask,
        clock: Clock,
        identity: Identity,
        report: MetadataReport,
        held: tuple[Offload, File, Directory],
        name: bytes,
    ) -> None:
        self.node = node
        self.leadership = Leadership(node)
        self.snapshots = snapshots
        self.identity = identity
        self.report = report
        self.forward: Forward = _nobody
        self.forward_renewal: ForwardRenewal = _nobody_renews
        self.before_close: Callable[[], Awaitable[None]] = _nothing
        self.after_close: Callable[[], Awaitable[None]] = _nothing
        self._clock = clock
        self._held = held
        self._routing = Routing(node, clock, name, self)
        self._time: StoreTime | None = None
        self._leases: Leases | None = None
        self._expiry: Expiry | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._closed = False
        self.proposal_seconds = 0.0  # what a command takes, smoothed
        node.on_applied = self._applied
        node.on_leading = self._lead
        node.request_snapshot = snapshots.request
        node.on_snapshot_mark = snapshots.begin_at_mark
        snapshots.propose = self.propose

    @property
    def is_ready(self) -> bool:
        return self.node.is_ready

    @property
    def stopped(self) -> errors.IcestreamError | None:
        return self.node.stopped

    async def ready(self) -> None:
        if self._closed:
            raise errors.LogClosed("the metadata store is closed", hint="the broker is shutting down")
        await self.node.until(lambda: self.node.is_ready)

    # --- commands ---

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        self.node.check_serving()
        rejected = refused_identity(client, sequence) or refusal(command)
        if rejected is not None:
            return rejected
        begun_ns = self._clock.monotonic_ns()
        try:
            if self.node.is_alone:
                return await self.propose(command, client, sequence)
            return await self._routing.submit(command, client, sequence)
        finally:
            took_seconds = (self._clock.monotonic_ns() - begun_ns) / 1e9
            self.proposal_seconds += (took_seconds - self.proposal_seconds) / limits.METADATA_SMOOTHED_OVER

    async def propose(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        """Proposes on this node only. Raises NotReady if it is not the leader."""
        return await self.begin(command, client, sequence)

    def begin(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> Answer:
        """The same; the answer comes later."""
        if self._time is None:
            raise errors.NotReady("this node is not the leader", hint="send the request to the leader")
        envelope = cmd.Envelope(cmd.VERSION, client, sequence, self._time.now_ms(), command)
        return self.node.propose(cmd.encode_envelope(envelope))

    async def renew(self, key: str, revision: int) -> bool:
        self.node.check_serving()
        if self.node.is_alone:
            return await self.renew_here(key, revision)
        return await self._routing.renew(key, revision)

    async def renew_here(self, key: str, revision: int) -> bool:
        """Renews on this node only. Raises NotReady if it is not, or was not continuously, the leader."""
        leases = self._leases
        if leases is None:
            raise errors.NotReady("this node is not the leader", hint="send the request to the leader")
        is_noted = leases.renew(key, revision)
        await self._until_current(Consistency.LINEARIZABLE)  # it led when that was noted
        if self._leases is not leases:
            raise errors.NotReady("leadership was lost during the call", hint="the call is retried automatically")
        return is_noted and leases.is_held(key, revision)

    # --- the lead ---

    def _lead(self, leads: bool) -> None:
        """The time of a leader: only now the highest stamp of the log is known."""
        if self._expiring is not None:
            self._expiring.cancel()
        self._time = self._leases = self._expiry = self._expiring = None
        if leads:
            stamp_ms = self.node.machine.time_ms
            if self.node.is_alone or not stamp_ms:
                self._time = StoreTime.from_wall(self._clock, stamp_ms)
            else:
                self._time = StoreTime.going_on(self._clock, stamp_ms, self.node.applied_ns)
            self._leases = Leases(self.node.machine, self._time)

    def _applied(self) -> None:
        """After each slice of applied commands."""
        if self._expiry is not None:
            self._expiry.look()
        elif self._time is not None and self._leases is not None and self._have_deadlines():
            self._expiry = Expiry(
                self.node.machine, self._clock, self._time, self._leases, self.propose, self._has_others
            )
            self._expiring = self.node.tasks.start(self._expiry.run(), "metadata-expiry")
        self.snapshots.look()

    def _has_others(self) -> bool:
        return self.node.members.has_others

    def _have_deadlines(self) -> bool:
        return self.node.machine.next_deadline_ms is not None or bool(self.node.machine.leases)

    # --- reads ---

    async def get(self, key: str, consistency: Consistency = Consistency.LINEARIZABLE) -> Entry | None:
        await self._until_current(consistency)
        return self.node.machine.get(key)

    async def list(
        self,
        prefix: str,
        after: str = "",
        limit: int = limits.METADATA_LIST_MAX,
        consistency: Consistency = Consistency.LINEARIZABLE,
    ) -> Entries:
        await self._until_current(consistency)
        return self.node.machine.page(prefix, after, min(limit, limits.METADATA_LIST_MAX))

    async def _until_current(self, consistency: Consistency) -> None:
        self.node.check_serving()
        if consistency is Consistency.LINEARIZABLE and not self.node.is_alone:
            await self.node.read()

    async def until_revision(self, revision: int) -> None:
        self.node.check_serving()
        await self.node.until(lambda: self.node.machine.revision >= revision)

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        self.node.check_serving()
        return self.node.hub.watch(prefix, after)

    async def revision(self) -> int:
        await self._until_current(Consistency.LINEARIZABLE)
        return self.node.machine.revision

    async def close(self) -> None:
        """Finishes what was taken, then the log, the thread, the lock."""
        if self._closed:
            return
        self._closed = True
        await self.before_close()
        await self.node.close()
        await self.after_close()
        for resource in self._held:
            resource.close()


async def _nothing() -> None:
    """There is nobody to take leave of."""


async def _nobody(leader: int, envelope: bytes) -> cmd.Answer:
    raise errors.ConnectionLost(f"node {leader:x} cannot be reached from here")


async def _nobody_renews(leader: int, key: str, revision: int) -> bool:
    raise errors.ConnectionLost(f"node {leader:x} cannot be reached from here")
