"""Takes snapshots when the log has grown enough, in slices, while commands are being applied (hazard 28).

Nodes of a cluster take theirs at the same entry of the log, where the leader has proposed a TakeSnapshot, so that they
can compare the SHA-256 of their states (cluster/state_comparison.py). A node without such an entry takes its own when
the log is twice as long as it should be.

A slice is followed by a pause of the same length, so a snapshot takes at most half of the loop's time. The file is
written in larger pieces than slices, because each is a hand-over between threads. The loop waits for no sync meanwhile.

A failed snapshot (a full disk) costs only its attempt: the log stays as long as it is, and the next attempt comes when
it has grown further; a requested one, for example for a new member (trap 14), after a pause. A snapshot during which
the members changed is followed by another: a new member can start only from a snapshot that contains it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.core import Core
from icestream.metadata.log_store import LogMark, LogStore
from icestream.metadata.node import Node
from icestream.metadata.snapshot import Frozen
from icestream.metadata.snapshot_file import SnapshotHead, SnapshotWriter, snapshot_digest
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload

_log = get_logger("metadata")


class Every(NamedTuple):
    """How much the log grows before a snapshot is due. Zero entries: by bytes alone."""

    size_bytes: int
    entries: int = 0


class Moment(NamedTuple):
    """The frozen state at one index."""

    frozen: Frozen
    head: SnapshotHead
    mark: LogMark
    installs: int


class SnapshotTask:
    """The snapshots of one node: when one is due, and taking it."""

    def __init__(self, node: Node, core: Core, log: LogStore, offload: Offload, clock: Clock, every: Every) -> None:
        self._node = node
        self._core = core
        self._log = log
        self._offload = offload
        self._clock = clock
        self._every = every
        self._next_try_bytes = self._next_try_ns = 0
        self._running = self._wanted = self._asking = False
        self._task: asyncio.Task[None] | None = None
        self.propose: Callable[[cmd.Command], Awaitable[cmd.Answer]] = _not_accepted_yet
        self.on_taken: Callable[[int, bytes], None] = lambda index, digest: None

    @property
    def log(self) -> LogStore:
        return self._log

    @property
    def is_running(self) -> bool:
        return self._running

    def request(self) -> None:
        """Requests a snapshot as soon as possible, whatever the size of the log."""
        self._wanted = True
        self.check()

    def check(self) -> None:
        """Begins a snapshot if one is due; called after each slice of applied commands."""
        node = self._node
        # A state that is not ready or is being replaced is not the state at `applied_index`.
        if self._running or not node.is_ready or node.installs.are_loading:
            return
        if node.applied_index == self._log.covered_index:
            return
        if self._wanted and self._clock.monotonic_ns() >= self._next_try_ns:
            self._wanted = False
            self._begin(is_wanted=True)
        elif self._log.plan.planned_bytes < self._next_try_bytes:
            return
        # A member of a cluster waits for the common mark up to twice the interval: snapshots at different entries
        # cannot be compared. Without a leader no mark comes, and the log must not grow without bound.
        elif self._is_due(1 if node.is_alone else 2):
            self._begin()
        elif node.leads and not self._asking and self._is_due(1):
            self._asking = True
            node.tasks.start(self._ask(), "metadata-snapshot-mark")

    def _is_due(self, times: int) -> bool:
        """Whether the log has grown to `times` times the interval."""
        entries = self._node.applied_index - self._log.covered_index
        if self._every.entries and entries >= times * self._every.entries:
            return True
        return self._log.is_snapshot_due(times * self._every.size_bytes)

    async def _ask(self) -> None:
        """Proposes a TakeSnapshot: every node begins its snapshot when it applies the entry."""
        try:
            await self.propose(cmd.TakeSnapshot())
        except errors.IcestreamError as error:
            _log.debug("cannot propose a common snapshot", error=str(error))
        finally:
            self._asking = False

    def begin_at_mark(self) -> None:
        """Called when a TakeSnapshot is applied; ignored during replay."""
        if not self._running and self._node.is_ready:
            self._begin()

    def _begin(self, *, is_wanted: bool = False) -> None:
        self._running = True
        moment = self._freeze()
        self._task = self._node.tasks.start(self._run(moment, is_wanted=is_wanted), "metadata-snapshot")
        # A callback and not `finally`: the task may be cancelled before its first step.
        self._task.add_done_callback(lambda _: moment.frozen.end())

    async def _run(self, moment: Moment, *, is_wanted: bool) -> None:
        try:
            await self._take(moment)
        except OSError as error:
            _log.warning("cannot write a snapshot of the metadata store", error=str(error))
            # By growth and not by time: without new commands another attempt would gain nothing.
            self._next_try_bytes = self._log.plan.planned_bytes + self._every.size_bytes // 4
            if is_wanted:
                self._wanted = True
                self._next_try_ns = self._clock.monotonic_ns() + int(limits.METADATA_SNAPSHOT_RETRY_SECONDS * 1e9)
                self._node.tasks.start(self._again(), "metadata-snapshot-again")
        finally:
            self._running = False
        # The snapshot has the members of the moment when it began.
        self._wanted = self._wanted or moment.head.conf != self._node.conf
        self.check()

    async def _again(self) -> None:
        await self._clock.sleep(limits.METADATA_SNAPSHOT_RETRY_SECONDS)
        self.check()

    async def take_now(self) -> None:
        """Takes a snapshot of the applied state; waits for a running one first. Raises DiskFull if it fails."""
        index = self._node.applied_index
        # A running snapshot may have begun before `index`: then a second one is needed.
        for _ in range(2):
            if self._task is not None:
                await asyncio.wait({self._task})
            if self._log.covered_index < index:
                self.request()
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._log.covered_index < index:
            raise errors.DiskFull("the snapshot of the metadata store failed", hint="the broker's log has the reason")

    async def take(self) -> None:
        """Takes a snapshot of the present state."""
        await self._take(self._freeze())

    def _freeze(self) -> Moment:
        node = self._node
        head = SnapshotHead(node.applied_index, node.applied_term, self._log.log_id, node.conf)
        return Moment(Frozen(node.machine), head, self._log.mark(), node.installs.count)

    async def _take(self, moment: Moment) -> None:
        frozen, head, mark, installs = moment
        node = self._node
        self._log.expect_traffic(True)
        try:
            writer = await self._log.begin_snapshot(head)
            try:
                await self._write(frozen, writer)
                if node.installs.count != installs:
                    # A received snapshot has replaced the state: this one is outdated.
                    await self._offload.run(writer.abandon)
                    return
                await self._log.finish_snapshot(writer, mark)
            except BaseException:
                # Through the offload, behind its pending writes: a descriptor closed under a write may be reused.
                await self._offload.run(writer.abandon)
                raise
        finally:
            frozen.end()
            self._log.expect_traffic(False)
        if node.installs.count == installs:
            # Only now, when the file has its name: from here on the core sends this snapshot to followers, and forgets
            # entries.
            self._core.snapshot(head.index, head.conf, self._log.snapshots[0].descriptor)
            # A trail of entries stays for followers that are slightly behind: without it each of them would need the
            # snapshot.
            await self._compact(head.index if node.is_alone else max(head.index - limits.METADATA_TRAIL_ENTRIES, 0))
            self.on_taken(head.index, snapshot_digest(self._log.snapshots[0].name))

    async def _compact(self, index: int) -> None:
        """Compacts the core's log in slices: hundreds of thousands of entries may have arrived meanwhile."""
        slice_entries = limits.METADATA_COMPACT_SLICE
        for upto in range(self._core.status()["first"] + slice_entries, index, slice_entries):
            self._core.compact(upto)
            await asyncio.sleep(0)
        self._core.compact(index)

    async def _write(self, frozen: Frozen, writer: SnapshotWriter) -> None:
        """Encodes and writes the state in slices, with a pause after each."""
        piece, size = [], 0
        begun_ns = self._clock.monotonic_ns()
        for data in frozen.slices():
            took_ns = self._clock.monotonic_ns() - begun_ns
            piece.append(data)
            size += len(data)
            if size >= limits.METADATA_SNAPSHOT_PIECE_BYTES:
                await self._offload.run(partial(writer.add, b"".join(piece)))
                piece, size = [], 0
            # As long as the slice took: the loop serves commands for at least half of the time, whatever the machine.
            await self._clock.sleep(took_ns / 1e9)
            begun_ns = self._clock.monotonic_ns()
        await self._offload.run(partial(writer.add, b"".join(piece)))


async def _not_accepted_yet(command: cmd.Command) -> cmd.Answer:
    """The default of `propose`, until the store is connected."""
    raise errors.NotReady("the metadata store does not accept proposals yet")
