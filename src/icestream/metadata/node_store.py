"""The metadata store of a node: the state machine behind its own durable log.

Reads are answered from the applied state. For a node without peers that is linearizable as it is: commands are applied
and answered in one order on one loop, an answered command is applied, and an applied one is synced. With peers a read
first requests the read index (node.read), unless the caller accepts less:

    LINEARIZABLE   everything that was acknowledged anywhere before the read began
    SESSION        everything that was acknowledged here: a write is acknowledged when the local state has it
    STALE          the local state, however old; no message to another node

Commands go to the leader (routing.py), which stamps the time. Only the leader lets keys expire and knows the end of
leases (leases.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal, refused_identity
from icestream.metadata.entry import Entry
from icestream.metadata.expiry import Expiry
from icestream.metadata.leases import Leases
from icestream.metadata.log_format import Identity
from icestream.metadata.log_recovery import MetadataReport
from icestream.metadata.node import Node
from icestream.metadata.proposals import AnswerFuture
from icestream.metadata.routing import Forward, ForwardRenewal, Routing
from icestream.metadata.snapshot_task import SnapshotTask
from icestream.metadata.store import Consistency, Entries, MetadataStore
from icestream.metadata.store_time import StoreTime
from icestream.metadata.watch import Changes, Resync
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload


class Leadership:
    """The leadership handle of seed 004: which node leads, without other details of consensus."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def is_leader(self) -> bool:
        """True if this node is the leader and has applied everything of former leaders."""
        return self._node.leads

    @property
    def leader(self) -> int:
        """The id of the leader as far as this node knows, 0 if there is none."""
        return self._node.leader

    @property
    def term(self) -> int:
        return self._node.status()["term"]

    async def until_leader(self) -> None:
        """Waits until this node is the leader."""
        await self._node.until(lambda: self._node.leads)

    async def hand_over(self, to: int = 0) -> None:
        """Transfers leadership to voter `to`, by default to the most advanced one, without waiting for an election.

        Returns without an error if leadership does not move: the caller looks at `is_leader`.
        """
        node = self._node
        target = to or self._most_advanced_voter()
        if not node.leads or not target or target == node.id:
            return
        node.transfer(target)
        with contextlib.suppress(errors.IcestreamError):
            await node.until(lambda: not node.leads, limits.METADATA_CLOSE_SECONDS_MAX)

    def _most_advanced_voter(self) -> int:
        progress, voters = self._node.status()["progress"], self._node.members.voters
        others = [
            (match, node_id) for node_id, (match, _, is_active) in progress.items() if is_active and node_id in voters
        ]
        return max([other for other in others if other[1] != self._node.id], default=(0, 0))[1]


class NodeStore(MetadataStore):
    """The metadata store in a broker process. `icestream.metadata.open.open_metadata` opens it."""

    def __init__(
        self,
        node: Node,
        snapshots: SnapshotTask,
        clock: Clock,
        identity: Identity,
        report: MetadataReport,
        resources: tuple[Offload, File, Directory],
        name: bytes,
    ) -> None:
        """`resources`: the thread, the lock and the directory of the log, closed with the store. `name`: the token
        of the client ids under which this node sends commands to the leader, new at each start."""
        self.node = node
        self.leadership = Leadership(node)
        self.snapshots = snapshots
        self.identity = identity
        self.report = report
        # Set by the cluster of this node (cluster/cluster_node.py); a node without peers keeps the defaults.
        self.forward: Forward = _no_route
        self.forward_renewal: ForwardRenewal = _no_renewal_route
        self.before_close: Callable[[], Awaitable[None]] = _do_nothing
        self.after_close: Callable[[], Awaitable[None]] = _do_nothing
        self._clock = clock
        self._resources = resources
        self._routing = Routing(node, clock, name, self)
        self._time: StoreTime | None = None
        self._leases: Leases | None = None
        self._expiry: Expiry | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._closed = False
        self.proposal_seconds = 0.0  # moving average of the time that a command takes
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
            elapsed_seconds = (self._clock.monotonic_ns() - begun_ns) / 1e9
            self.proposal_seconds += (elapsed_seconds - self.proposal_seconds) / limits.METADATA_SMOOTHED_OVER

    async def propose(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        """Proposes on this node only. Raises NotReady if it is not the leader."""
        return await self.begin(command, client, sequence)

    def begin(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> AnswerFuture:
        """Like `propose`, but returns the future of the answer."""
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
        # A linearizable read proves that this node still led after the renewal was noted (leases.py).
        await self._wait_current(Consistency.LINEARIZABLE)
        # The leadership in which the renewal was noted has ended: the next leader does not know of it.
        if self._leases is not leases:
            raise errors.NotReady("leadership was lost during the call", hint="the call is retried automatically")
        return is_noted and leases.is_held(key, revision)

    # --- leadership ---

    def _lead(self, leads: bool) -> None:
        """Creates or drops what only a leader has: its time, the ends of leases, the expiry task.

        Called when leadership changes; only then the highest time stamp of the log is known.
        """
        if self._expiring is not None:
            self._expiring.cancel()
        self._time = self._leases = self._expiry = self._expiring = None
        if leads:
            # Alone, only this clock ever stamped. With peers the clock of the former leader may have been ahead: time
            # continues from its last stamp, by the seconds that passed here since then, whatever the wall clock says.
            stamp_ms = self.node.machine.time_ms
            if self.node.is_alone or not stamp_ms:
                self._time = StoreTime.from_wall(self._clock, stamp_ms)
            else:
                self._time = StoreTime.continued(self._clock, stamp_ms, self.node.applied_ns)
            self._leases = Leases(self.node.machine, self._time)

    def _applied(self) -> None:
        """Called after each slice of applied commands.

        Starts or wakes the expiry task, and checks whether a snapshot is due.
        """
        if self._expiry is not None:
            self._expiry.check()
        # Started with the first deadline: most stores have none.
        elif self._time is not None and self._leases is not None and self._have_deadlines():
            self._expiry = Expiry(
                self.node.machine, self._clock, self._time, self._leases, self.propose, self._has_others
            )
            self._expiring = self.node.tasks.start(self._expiry.run(), "metadata-expiry")
        self.snapshots.check()

    def _has_others(self) -> bool:
        return self.node.members.has_others

    def _have_deadlines(self) -> bool:
        return self.node.machine.next_deadline_ms is not None or bool(self.node.machine.leases)

    # --- reads ---

    async def get(self, key: str, consistency: Consistency = Consistency.LINEARIZABLE) -> Entry | None:
        await self._wait_current(consistency)
        return self.node.machine.get(key)

    async def list(
        self,
        prefix: str,
        after: str = "",
        limit: int = limits.METADATA_LIST_MAX,
        consistency: Consistency = Consistency.LINEARIZABLE,
    ) -> Entries:
        await self._wait_current(consistency)
        return self.node.machine.page(prefix, after, min(limit, limits.METADATA_LIST_MAX))

    async def _wait_current(self, consistency: Consistency) -> None:
        """Waits until the local state satisfies the consistency of a read."""
        self.node.check_serving()
        # A single node has the only copy: what is acknowledged is applied here, so no round of messages is needed.
        if consistency is Consistency.LINEARIZABLE and not self.node.is_alone:
            await self.node.read()

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        self.node.check_serving()
        return self.node.hub.watch(prefix, after)

    async def revision(self) -> int:
        await self._wait_current(Consistency.LINEARIZABLE)
        return self.node.machine.revision

    async def close(self) -> None:
        """Finishes accepted commands, then closes the log, the thread and the lock."""
        if self._closed:
            return
        self._closed = True
        await self.before_close()
        await self.node.close()
        await self.after_close()
        for resource in self._resources:
            resource.close()


async def _do_nothing() -> None:
    """The default of `before_close` and `after_close`."""


async def _no_route(leader: int, envelope: bytes) -> cmd.Answer:
    """The default of `forward`: a node without peers has no route to another node."""
    raise errors.ConnectionLost(f"node {leader:x} cannot be reached from here")


async def _no_renewal_route(leader: int, key: str, revision: int) -> bool:
    """The default of `forward_renewal`."""
    raise errors.ConnectionLost(f"node {leader:x} cannot be reached from here")
