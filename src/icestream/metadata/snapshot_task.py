"""Takes snapshots when the log has grown enough, a slice at a time, while commands go on being applied (hazard 28).

A snapshot that fails (a full disk) costs nothing but its attempt: the log stays as long as it is, and the next attempt
comes when it has grown further.
"""

from __future__ import annotations

import asyncio
from functools import partial

from icestream import errors, limits
from icestream.metadata.core import Core
from icestream.metadata.log_store import LogStore
from icestream.metadata.node import Node
from icestream.metadata.snapshot import Frozen
from icestream.metadata.snapshot_file import SnapshotHead, SnapshotWriter
from icestream.observability.log import get_logger
from icestream.runtime.tasks import Offload

_log = get_logger("metadata")


class SnapshotTask:
    def __init__(self, node: Node, core: Core, log: LogStore, offload: Offload, every_bytes: int) -> None:
        self._node = node
        self._core = core
        self._log = log
        self._offload = offload
        self._every_bytes = every_bytes
        self._next_try_bytes = 0
        self._running = self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """As soon as one can be begun, whatever the size of the log."""
        self._wanted = True
        self.look()

    def look(self) -> None:
        """Called after each slice of applied commands."""
        if self._running or not self._node.is_ready or self._log.plan.planned_bytes < self._next_try_bytes:
            return
        is_due = self._wanted or self._log.is_snapshot_due(self._every_bytes)
        if is_due and self._node.applied_index > self._log.covered_index:
            self._running, self._wanted = True, False
            self._task = self._node.tasks.start(self._run(), "metadata-snapshot")

    async def _run(self) -> None:
        try:
            await self.take()
        except OSError as error:
            _log.warning("a snapshot of the metadata store failed", error=str(error))
            self._next_try_bytes = self._log.plan.planned_bytes + self._every_bytes // 4
        finally:
            self._running = False

    async def take_now(self) -> None:
        """A snapshot of what is applied now; waits for one that is under way. Raises DiskFull when it fails."""
        wanted = self._node.applied_index
        for _ in range(2):
            if self._task is not None:
                await asyncio.wait({self._task})
            if self._log.covered_index < wanted:
                self.request()
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._log.covered_index < wanted:
            raise errors.DiskFull("the snapshot was not taken", hint="the log of the node says why")

    async def take(self) -> None:
        """A snapshot of the state as it is now."""
        node = self._node
        index, conf, mark, installs = node.applied_index, node.conf, self._log.mark(), node.installs
        head = SnapshotHead(index, node.applied_term, self._log.log_id, conf)
        frozen = Frozen(node.machine)
        try:
            writer = await self._log.begin_snapshot(head)
            try:
                await self._write(frozen, writer)
                if node.installs != installs:
                    # the state of another node took its place: this one is history
                    await self._offload.run(writer.give_up)
                    return
                await self._log.finish_snapshot(writer, mark)
            except BaseException:
                # behind what may still be written: a descriptor that is closed under a write could be another file's
                await self._offload.run(writer.give_up)
                raise
        finally:
            frozen.end()
        if node.installs == installs:
            self._core.snapshot(index, conf, self._log.snapshots[0].descriptor)
            self._core.compact(index if node.is_alone else max(index - limits.METADATA_TRAIL_ENTRIES, 0))

    async def _write(self, frozen: Frozen, writer: SnapshotWriter) -> None:
        for data in frozen.slices():
            if data:
                await self._offload.run(partial(writer.add, data))
            await asyncio.sleep(0)
