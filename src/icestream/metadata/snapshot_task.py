"""Takes snapshots when the log has grown enough, a slice at a time, while commands go on being applied (hazard 28).

A snapshot that fails (a full disk) costs nothing but its attempt: the log stays as long as it is, and the next attempt
comes when it has grown further.
"""

from __future__ import annotations

import asyncio
from functools import partial

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
        self._running = False

    def look(self) -> None:
        """Called after each slice of applied commands."""
        if self._running or not self._node.is_ready or self._log.plan.planned_bytes < self._next_try_bytes:
            return
        if self._log.is_snapshot_due(self._every_bytes) and self._node.applied_index > self._log.covered_index:
            self._running = True
            self._node.tasks.start(self._run(), "metadata-snapshot")

    async def _run(self) -> None:
        try:
            await self.take()
        except OSError as error:
            _log.warning("a snapshot of the metadata store failed", error=str(error))
            self._next_try_bytes = self._log.plan.planned_bytes + self._every_bytes // 4
        finally:
            self._running = False

    async def take(self) -> None:
        """A snapshot of the state as it is now."""
        node = self._node
        index, conf, mark = node.applied_index, node.conf, self._log.mark()
        head = SnapshotHead(index, node.applied_term, self._log.log_id, conf)
        frozen = Frozen(node.machine)
        try:
            writer = await self._log.begin_snapshot(head)
            try:
                await self._write(frozen, writer)
                await self._log.finish_snapshot(writer, mark)
            except BaseException:
                # behind what may still be written: a descriptor that is closed under a write could be another file's
                await self._offload.run(writer.give_up)
                raise
        finally:
            frozen.end()
        self._core.snapshot(index, conf, self._log.snapshots[0].descriptor)
        self._core.compact(index)

    async def _write(self, frozen: Frozen, writer: SnapshotWriter) -> None:
        for data in frozen.slices():
            if data:
                await self._offload.run(partial(writer.add, data))
            await asyncio.sleep(0)
