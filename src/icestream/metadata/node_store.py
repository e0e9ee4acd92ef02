"""The metadata store of a node: the state machine behind its own durable log.

Reads are answered from the applied state. With one voter that is linearizable: commands are applied and answered in one
order on one loop, what is answered is applied, and what is applied is synced. (With several voters a read will first
ask the core for the read index.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal, refused_identity
from icestream.metadata.entry import Entry
from icestream.metadata.expiry import Expiry
from icestream.metadata.log_format import Identity
from icestream.metadata.log_recovery import MetadataReport
from icestream.metadata.node import Node
from icestream.metadata.snapshot_task import SnapshotTask
from icestream.metadata.store import Entries, MetadataStore
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
    ) -> None:
        self.node = node
        self.snapshots = snapshots
        self.identity = identity
        self.report = report
        self._clock = clock
        self._held = held
        self._time: StoreTime | None = None
        self._expiry: Expiry | None = None
        self._closed = False
        node.on_applied = self._applied

    @property
    def is_ready(self) -> bool:
        return self.node.is_ready

    @property
    def stopped(self) -> errors.IcestreamError | None:
        return self.node.stopped

    async def ready(self) -> None:
        await self.node.until_ready()

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        self.node.check_serving()
        rejected = refused_identity(client, sequence) or refusal(command)
        if rejected is not None:
            return rejected
        envelope = cmd.Envelope(cmd.VERSION, client, sequence, self._now().now_ms(), command)
        return await self.node.propose(cmd.encode_envelope(envelope))

    def _now(self) -> StoreTime:
        """The time of a ready node: only then the highest stamp of its log is known."""
        if self._time is None:
            self._time = StoreTime(self._clock, self.node.machine.time_ms)
        return self._time

    def _applied(self) -> None:
        """After each slice of applied commands."""
        if self._expiry is not None:
            self._expiry.look()
        elif self.node.is_ready and self.node.machine.next_deadline_ms is not None:
            self._expiry = Expiry(self.node.machine, self._clock, self._now(), self.submit)
            self.node.tasks.start(self._expiry.run(), "metadata-expiry")
        self.snapshots.look()

    async def get(self, key: str) -> Entry | None:
        self.node.check_serving()
        return self.node.machine.get(key)

    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        self.node.check_serving()
        return self.node.machine.page(prefix, after, min(limit, limits.METADATA_LIST_MAX))

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        self.node.check_serving()
        return self.node.hub.watch(prefix, after)

    async def revision(self) -> int:
        self.node.check_serving()
        return self.node.machine.revision

    async def close(self) -> None:
        """Finishes what was taken, then the log, the thread, the lock."""
        if self._closed:
            return
        self._closed = True
        await self.node.close()
        for one in self._held:
            one.close()
