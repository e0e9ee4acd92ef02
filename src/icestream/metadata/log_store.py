"""The metadata log on disk: the I/O shell around log_plan.py. Files, sink, snapshots, and the removal of old files.

Appends are planned and handed to the sink, which has a thread of its own, not the one of the WAL (hazard 28): a long
sync of one log must not delay the other. Creating, renaming and removing files blocks: it goes through `offload`, one
at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from icestream import limits
from icestream.metadata.core import HardState
from icestream.metadata.log_format import Base, Identity, Promise
from icestream.metadata.log_plan import LogFile, LogPlan
from icestream.metadata.log_recovery import RecoveredLog
from icestream.metadata.snapshot_file import (
    STATE_START,
    SnapshotHead,
    SnapshotWriter,
    StoredSnapshot,
    adopt_snapshot,
    open_snapshot,
    received_name,
    remove_others,
    snapshot_of,
    verify_snapshot,
)
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.watermark import Mark, MemoryWatermark, Watermark
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload
from icestream.wal import format as wire
from icestream.wal import log_file
from icestream.wal.log_file import FileHeader
from icestream.wal.sink import NativeSink, Sink, SinkProgress


class LogMark(NamedTuple):
    """The size of the log at one moment."""

    planned_bytes: int
    sealed_files: int


class LogStore:
    """The files and snapshots of one metadata log."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        sink: Sink,
        offload: Offload,
        file_bytes: int,
        identity: Identity,
        recovered: RecoveredLog,
        watermark: Watermark | None = None,
    ) -> None:
        self._watermark = watermark or MemoryWatermark()
        self.has_others = recovered.knows_others  # the node has, or had, peers
        self._directory = directory
        self._clock = clock
        self._sink = sink
        self._offload = offload
        self._file_bytes = file_bytes
        self.log_id = recovered.log_id
        self.plan = LogPlan(identity, recovered.state, recovered.lsn, recovered.promises)
        self._marked: Mark | None = None
        self.files: list[LogFile] = recovered.files  # oldest first
        self.snapshots: list[StoredSnapshot] = recovered.snapshots  # newest first
        self._streams = 0  # of snapshots that other nodes sent
        self._held: Counter[str] = Counter()  # references to received files: of transfers, and of the log
        self._needed: list[tuple[int, str]] = []  # received files that the log references: index and name
        self.preparing = False
        self.prepare_error: OSError | None = None
        self._handles: dict[int, File] = {}
        self._next_number = recovered.next_number
        # Entries behind the newest snapshot that are older than this run count, too.
        self._covered = LogMark(-sum(map(len, recovered.entries)), 0)
        self._sealed = sum(file.last_index > self.covered_index for file in self.files)

    # --- files ---

    async def prepare(self) -> None:
        """Prepares the next file; `prepare_error` has the reason if that failed."""
        self.preparing = True
        number, synced_lsn = self._next_number, self.plan.synced_lsn
        self._next_number += 1
        try:
            self._handles[number] = await self._offload.run(lambda: self._make_file(number, synced_lsn))
            self.prepare_error = None
            self.plan.file_ready(number, self._file_bytes)
        except OSError as error:
            self.prepare_error = error
        finally:
            self.preparing = False

    def _make_file(self, number: int, synced_lsn: int) -> File:
        """Writes and syncs all of the file's space, then renames it: a full disk fails here, later syncs are fast."""
        temporary, name = f"prepare-{number:016d}.tmp", log_file.log_name(number)
        file = self._directory.create(temporary)
        try:
            header = FileHeader(self.log_id, number, 0, synced_lsn, self._clock.wall_us(), self._file_bytes)
            file.write_at(0, log_file.encode_first_page(header))
            for position in range(wire.RECORDS_START, self._file_bytes, limits.ZERO_SLICE_BYTES):
                file.write_at(position, bytes(min(limits.ZERO_SLICE_BYTES, self._file_bytes - position)))
            file.sync()
            self._directory.rename(temporary, name)
            self._directory.sync()
        except OSError:
            file.close()
            for created in (temporary, name):
                with contextlib.suppress(OSError):
                    self._directory.remove(created)
            raise
        return file

    # --- appends ---

    def append(
        self,
        entries: Sequence[tuple[int, bytes]],
        state: HardState | None,
        base: Base | None = None,
        commit: int = 0,
        promises: dict[int, Promise] | None = None,
    ) -> int:
        """Plans one record; returns the ticket whose sync makes it durable."""
        return self.plan.append(entries, state, self._clock.wall_us(), base, commit, promises)

    async def identify(self, identity: Identity) -> None:
        """Writes and syncs the identity. Only before the node starts, which then owns the sink's progress."""
        await self.until_synced(self.plan.identify(identity, self._clock.wall_us()))

    async def until_synced(self, ticket: int) -> None:
        """Writes and syncs planned records up to this ticket. Only before the node starts. Raises OSError."""
        self.submit_writes()
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        if self.fileno() >= 0:
            loop.add_reader(self.fileno(), news.set)
        try:
            while (progress := self.progress()).synced < ticket:
                if progress.error is not None:
                    raise OSError(progress.error.errno, f"a {progress.error.operation} of the metadata log failed")
                news.clear()
                await news.wait()
        finally:
            if self.fileno() >= 0:
                loop.remove_reader(self.fileno())

    def submit_writes(self) -> bool:
        """Submits the planned writes to the sink; True if it has completed some already."""
        writes = self.plan.take_writes()
        return bool(writes) and self._sink.submit(writes, self._handles)

    @property
    def sync_seconds(self) -> float | None:
        """The measured duration of a sync; None if it is not measured."""
        return self._sink.sync_seconds if isinstance(self._sink, NativeSink) else None

    @property
    def snapshot_bytes(self) -> int:
        """The size of the newest snapshot's state; 0 if there is none."""
        return snapshot_of(self.snapshots[0].descriptor)[1] if self.snapshots else 0

    def progress(self) -> SinkProgress:
        """The progress of the sink. After an error nothing later is written."""
        progress = self._sink.progress()
        for sealed in self.plan.synced(progress.synced):
            self.files.append(sealed)
            self._sealed += 1
            self._handles.pop(sealed.number).close()
        self._note_mark()
        return progress

    def _note_mark(self) -> None:
        """Notes the synced LSN in the watermark: a store into mapped memory, without waiting."""
        plan = self.plan
        mark = Mark(self.log_id, plan.synced_lsn, plan.identity.node_id, plan.identity.cluster_id, self.has_others)
        if plan.synced_lsn and mark != self._marked:
            self._marked = mark
            self._watermark.note(mark)

    def fileno(self) -> int:
        return self._sink.fileno()

    def note_failed_sync(self) -> None:
        """Notes the error for the next start (hazard 6)."""
        with contextlib.suppress(OSError):
            self._directory.create(log_file.SYNC_FAILED_NAME).close()
            self._directory.sync()

    # --- snapshots ---

    @property
    def covered_index(self) -> int:
        """The last entry that the newest snapshot contains; 0 if there is none."""
        return self.snapshots[0].head.index if self.snapshots else 0

    def mark(self) -> LogMark:
        """The present end of the log: what a snapshot that begins now covers."""
        return LogMark(self.plan.planned_bytes, self._sealed)

    def is_snapshot_due(self, every_bytes: int) -> bool:
        """True if the log behind the last snapshot has grown as large as that snapshot, within bounds."""
        size = self.snapshots[0].state_bytes if self.snapshots else 0
        most = max(every_bytes, limits.METADATA_SNAPSHOT_EVERY_BYTES_MAX)
        behind = max(
            self.plan.planned_bytes - self._covered.planned_bytes,
            self._file_bytes * (self._sealed - self._covered.sealed_files),
        )
        return behind >= min(max(every_bytes, size), most)

    async def begin_snapshot(self, head: SnapshotHead) -> SnapshotWriter:
        """Opens a file for a snapshot of the local state."""
        return await self._offload.run(lambda: SnapshotWriter(self._directory, head))

    def expect_traffic(self, is_expected: bool) -> None:
        """Disables inline syncs while a snapshot is written, because a sync may take long then."""
        if isinstance(self._sink, NativeSink):
            self._sink.is_disk_busy = is_expected

    async def finish_snapshot(self, writer: SnapshotWriter, mark: LogMark) -> None:
        """Renames the snapshot into place, then removes older snapshots and files covered by both kept ones."""
        stored = await self._offload.run(writer.finish)
        self._covered = mark
        others = [snapshot for snapshot in self.snapshots if snapshot.name != stored.name]
        self.snapshots = [stored, *others][: limits.METADATA_SNAPSHOTS_KEPT]
        names = {snapshot.name for snapshot in self.snapshots}
        await self._offload.run(lambda: remove_others(self._directory, names))
        # As in the WAL, two snapshots must cover a file before it is removed: an unreadable newest one costs time, not
        # state.
        if len(self.snapshots) == limits.METADATA_SNAPSHOTS_KEPT:
            covered = self.plan.coverable(self.files, self.snapshots[-1].head.index, self.covered_index)
            await self._offload.run(lambda: self._remove(covered))
            self.files = [file for file in self.files if file not in covered]

    async def begin_received(self, head: SnapshotHead) -> SnapshotWriter:
        """Opens a file for a snapshot from another node. Two nodes may send the same snapshot at a time."""
        self._streams += 1
        number = self._streams
        return await self._offload.run(lambda: SnapshotWriter(self._directory, head, stream=number))

    async def finish_received(self, writer: SnapshotWriter, name: str) -> None:
        """Completes a received snapshot, kept until it is released. Raises DecodeError if its digest differs."""
        self._held[name] += 1
        try:
            await self._offload.run(lambda: writer.finish_as(name))
        except BaseException:
            await self.release_received(name)
            raise

    def need_received(self, index: int, name: str) -> None:
        """Pins a snapshot that the log is about to reference, until a later one is adopted."""
        self._needed.append((index, name))
        self._held[name] += 1

    async def release_received(self, name: str) -> None:
        """Removes received snapshots that are not pinned."""
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
            await self._offload.run(lambda: self._remove_received([name]))

    def _remove_received(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # it was never completed
                self._directory.remove(name)

    async def abandon_received(self, writer: SnapshotWriter) -> None:
        """Removes an unfinished received snapshot."""
        await self._offload.run(writer.abandon)

    async def add_received(self, writer: SnapshotWriter, data: bytes) -> None:
        """Appends bytes to a received snapshot."""
        await self._offload.run(lambda: writer.add(data))

    async def open_snapshot_file(self, name: str) -> File:
        """Opens a snapshot for sending. Raises FileNotFoundError if a newer one has replaced it."""
        return await self._offload.run(lambda: self._directory.open(name))

    async def read_state(self, file: File, position: int, size: int) -> bytes:
        """Reads a chunk of the state in a snapshot file."""
        return await self._offload.run(lambda: file.read_at(STATE_START + position, size))

    async def load_received(self, name: str) -> tuple[StoredSnapshot, StateMachine]:
        """Loads a received snapshot. Raises DecodeError."""

        def load() -> tuple[StoredSnapshot, StateMachine]:
            stored = verify_snapshot(self._directory, received_name(name))
            return stored, open_snapshot(self._directory, stored)

        return await self._offload.run(load)

    async def adopt_received(self, received: StoredSnapshot) -> None:
        """Adopts a received snapshot that the log references: renames it; it is now the newest."""
        stored = await self._offload.run(lambda: adopt_snapshot(self._directory, received))
        self._covered = self.mark()
        older = [snapshot for snapshot in self.snapshots if snapshot.head.index < stored.head.index]
        self.snapshots = [stored, *older][: limits.METADATA_SNAPSHOTS_KEPT]
        names = {snapshot.name for snapshot in self.snapshots}
        await self._offload.run(lambda: remove_others(self._directory, names))
        covered = [name for index, name in self._needed if index <= stored.head.index]
        self._needed = [(index, name) for index, name in self._needed if index > stored.head.index]
        for name in covered:
            await self.release_received(name)

    def _remove(self, files: Sequence[LogFile]) -> None:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # an earlier attempt removed it, then failed
                self._directory.remove(log_file.log_name(file.number))
        self._directory.sync()

    # --- end ---

    async def close(self) -> None:
        """Closes the files. Only after the last file is sealed or the node has stopped."""
        self._sink.close()
        for handle in self._handles.values():
            handle.close()
        unused = self.plan.next_file
        if unused is not None:
            with contextlib.suppress(OSError):
                await self._offload.run(lambda: self._directory.remove(log_file.log_name(unused.number)))
        with contextlib.suppress(OSError):
            await self._offload.run(self._watermark.sync)
        self._watermark.close()
