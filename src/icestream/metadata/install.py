"""Installs snapshots received from other nodes in place of the local state.

    begun     the core continues behind it; the log records it (BASE). Its state is complete in a received file, which
              is not removed from now on. Nothing is applied
    loaded    the state is in memory, read off the loop; together with the next one, if another was begun meanwhile
    adopted   BASE is synced: the file gets the name of a snapshot; older received files are removed

One task does all of them, so that an adopted file is never mistaken for an old one. After a crash there is a BASE
record without its file only if there is a snapshot that covers it (log_recovery.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from icestream.metadata import eraftpb
from icestream.metadata.eraftpb import SnapshotParts
from icestream.metadata.log_format import Base
from icestream.metadata.log_store import LogStore
from icestream.metadata.snapshot_file import received_name, snapshot_digest, snapshot_of
from icestream.metadata.state_machine import StateMachine
from icestream.observability.log import get_logger
from icestream.runtime.tasks import Tasks

_log = get_logger("metadata")


class InstallingNode(Protocol):
    """The part of a node (node.py) that installs need."""

    tasks: Tasks

    def replace_state(self, parts: SnapshotParts, machine: StateMachine) -> None:
        """Replaces the state machine."""

    def resume(self) -> None:
        """Wakes the reads that wait for the state."""

    def adopted(self) -> None:
        """A received snapshot became the newest snapshot of this node."""

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool: ...


class Installs:
    """The received snapshots of one node that are not adopted yet."""

    def __init__(self, node: InstallingNode, log: LogStore) -> None:
        self._node = node
        self._log = log
        self._begun: deque[SnapshotParts] = deque()
        self._is_running = False
        self.bases_unsynced = 0
        self.count = 0

    @property
    def are_loading(self) -> bool:
        """True while the core is ahead of the state machine."""
        return bool(self._begun)

    def begin(self, snapshot: bytes) -> Base:
        """Begins the installation of an encoded Snapshot; returns its BASE record for the log."""
        parts = eraftpb.decode_snapshot(snapshot)
        name = snapshot_of(parts.data)[0]
        self.count += 1
        self.bases_unsynced += 1
        self._begun.append(parts)
        # Pinned before the BASE record is planned: a log that names a snapshot without its file is damaged.
        self._log.need_received(parts.index, received_name(name))
        if not self._is_running:
            self._is_running = True
            self._node.tasks.start(self._run(), "metadata-install")
        return Base(parts.index, parts.term, snapshot_digest(name))

    async def _run(self) -> None:
        try:
            while self._begun:
                await self._install()
        finally:
            self._is_running = False

    async def _install(self) -> None:
        """Finishes the begun installations and adopts the last one, unless a newer one was begun meanwhile."""
        while self._begun:
            parts = self._begun[0]
            stored, machine = await self._log.load_received(snapshot_of(parts.data)[0])
            self._node.replace_state(parts, machine)
            self._begun.popleft()
        _log.info("installed a snapshot of another node", index=parts.index, revision=machine.revision)
        self._node.resume()
        # Adoption renames the file. Before BASE is synced, a crash would leave a snapshot ahead of the log, which a
        # start reports as damage.
        await self._node.until(lambda: bool(self._begun) or not self.bases_unsynced)
        if not self._begun:
            await self._log.adopt_received(stored)
            self._node.adopted()
