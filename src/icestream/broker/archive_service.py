"""The broker's part of the archive (ADR 85): the log is held until it is archived, and changes of metadata are kept.

    mark       what is to be archived now: the log is synced first. Holds the log from the record `next_lsn` on
    read       synced records, byte for byte
    changes    changes of the metadata store, each with the time at which this broker applied it
    freeze     the whole metadata store, where changes were missed: this broker began after them, or too many waited
    part       a piece of it

The caller is the pipeline process of the node (backup/archive_run.py). A target that is down must cost neither the disk
nor the producers: beyond `held_bytes_max`, or near the quota of the log, nothing is held any more, and what is freed
then is a gap of the archive. So is what is freed ARCHIVE_HOLD_MS after the last call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.backup.archive_object import MetadataChange
from icestream.catalog import catalog_keys
from icestream.metadata.entry import Entry, Event
from icestream.metadata.node_store import NodeStore
from icestream.metadata.snapshot import encode_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Changes, Resync
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload, Tasks, ThreadOffload
from icestream.wal.reader import LogPosition, RecordChunk
from icestream.wal.write_ahead_log import WriteAheadLog

_LEASE: Final = "archive"
# Leases of processes and holds on tables mean nothing in another broker.
NEVER_ARCHIVED: Final = (catalog_keys.HOLDS, catalog_keys.LEASE)
_log = get_logger("backup")


class ArchiveMark(NamedTuple):
    """The present end of what is to be archived. Everything appended before `now_us` has an LSN up to `synced_lsn`,
    and every change before it a revision up to `revision`."""

    log_id: str
    now_us: int
    first_lsn: int  # of the log
    synced_lsn: int
    revision: int
    changes_after: int  # changes above this revision are kept
    unarchived_bytes: int


class ArchiveService:
    """What the archive may ask this broker for."""

    def __init__(
        self,
        log: WriteAheadLog,
        store: MetadataStore,
        clock: Clock,
        held_bytes_max: int,
        offload: Offload | None = None,
    ) -> None:
        """`held_bytes_max` 0: nothing is held before the first mark, because there is no archive."""
        self._log = log
        self._store = store
        self._clock = clock
        self._held_bytes_max = held_bytes_max
        self._offload = offload or ThreadOffload("archive")
        self._next_lsn = 0  # the lowest record that is not archived; 0: not known yet
        self._is_released = False
        self._position: LogPosition | None = None
        self._changes: deque[tuple[MetadataChange, int]] = deque()  # with their bytes
        self._changes_bytes = 0
        self._changes_after = 0
        self._seen_revision = 0
        self._seen = asyncio.Event()
        self._state = b""
        self._tasks = Tasks(_log_failure)

    # --- start and stop ---

    async def start(self) -> None:
        """Holds the log from its first record on, and begins to keep changes; does nothing without an archive."""
        if not self._held_bytes_max or not isinstance(self._store, NodeStore):
            return
        self._hold()
        revision = await self._store.revision()
        self._changes_after = self._seen_revision = revision
        self._tasks.start(self._follow(self._store.watch("", revision)), "archive-changes")
        self._tasks.start(self._watch_bound(), "archive-bound")

    async def stop(self) -> None:
        await self._tasks.stop()

    # --- the log ---

    async def mark(self, next_lsn: int, revision: int) -> ArchiveMark:
        """Syncs, and holds the log from `next_lsn` on; 0: all of it. Changes up to `revision` are forgotten.

        Raises Refused if `backup.archive.enable` is off in this broker.
        """
        if not self._held_bytes_max:
            raise errors.Refused("this broker has no archive", hint="set backup.archive.enable and restart it")
        # Before the sync: what was stamped until now is written by it.
        now_us = self._clock.wall_us()
        await self._log.sync()
        synced = self._log.appender.synced_lsn
        store = self._node_store()
        current = await self._caught_up(store)
        if next_lsn > self._next_lsn:
            self._next_lsn, self._is_released = next_lsn, False
        if self._is_over():
            self._release()
        elif not self._is_released:
            self._hold()
        while self._changes and self._changes[0][0].revision <= revision:
            _, size = self._changes.popleft()
            self._changes_bytes -= size
        self._changes_after = max(self._changes_after, min(revision, self._seen_revision))
        return ArchiveMark(
            self._log.log_id.hex(), now_us, self._log.reader.first_lsn(), synced, current, self._changes_after,
            self._unarchived_bytes(),
        )  # fmt: skip

    async def _caught_up(self, store: NodeStore) -> int:
        """The present revision, once all changes up to it are kept."""
        current = await store.revision()
        while self._seen_revision < current:
            self._seen.clear()
            await self._seen.wait()
        return current

    async def read(self, lsn: int, end_lsn: int) -> RecordChunk:
        """Synced records from `lsn` on, below `end_lsn`, of one log file. Raises PositionGone, StaleRead."""
        chunk, self._position = await self._log.reader.records(lsn, end_lsn, limits.ARCHIVE_READ_BYTES, self._position)
        return chunk

    def _hold(self) -> None:
        # Files are freed strictly from the oldest on, so holding the one of the next record holds all after it.
        if number := self._log.reader.file_of_lsn(self._next_lsn):
            self._log.lifecycle.leases.hold_for_backup(_LEASE, [number], limits.ARCHIVE_HOLD_MS)

    def _is_over(self) -> bool:
        log = self._log
        # Behind a start the end of the archive is not known: what was archived before it must not count.
        is_too_much = self._next_lsn > 0 and self._unarchived_bytes() > self._held_bytes_max
        return is_too_much or log.lifecycle.used_bytes >= log.quota.slow_node_bytes

    def _release(self) -> None:
        """Gives the log back until more of it is archived: what is freed now is lost for the archive anyway."""
        if self._is_released:
            return
        self._is_released = True
        self._log.lifecycle.leases.hold_for_backup(_LEASE, [], 0)
        metrics.ARCHIVE_RELEASES.inc()
        _log.warning(
            "the log is no longer held for the archive, which may get a gap: its target has to be reachable",
            unarchived_bytes=self._unarchived_bytes(),
            next_lsn=self._next_lsn,
        )
        self._tasks.start(self._log.lifecycle.free_due_files(), "archive-free")

    def _unarchived_bytes(self) -> int:
        """The bytes of sealed log files with records that are not archived."""
        return sum(file.size for file in self._log.lifecycle.files if file.seal.last_lsn >= self._next_lsn)

    async def _watch_bound(self) -> None:
        """Looks at the bound also while nothing is archived."""
        while True:
            await self._clock.sleep(limits.ARCHIVE_BOUND_SECONDS)
            if self._log.lifecycle.leases.is_active(_LEASE) and self._is_over():
                self._release()

    # --- the metadata store ---

    async def changes(self, after: int) -> tuple[list[MetadataChange], bool]:
        """Changes above revision `after`, about ARCHIVE_READ_BYTES of them, and whether these are all at present.

        Raises PositionGone if changes above it are not kept: the state is to be read.
        """
        if after < self._changes_after:
            raise errors.PositionGone(
                f"changes of the metadata store up to revision {self._changes_after} are not kept",
                hint="the archive takes the whole state instead",
            )
        page: list[MetadataChange] = []
        size = 0
        for change, change_bytes in self._changes:
            if change.revision > after:
                if page and size + change_bytes > limits.ARCHIVE_READ_BYTES:
                    return page, False
                page.append(change)
                size += change_bytes
        return page, True

    async def freeze(self) -> tuple[int, int]:
        """Freezes the metadata store; returns its revision and the size of the encoded state."""
        store = self._node_store()
        await store.revision()  # linearizable: what was acknowledged before is applied here
        machine = store.node.machine
        entries, revision, time_ms = list(machine.entries.items()), machine.revision, machine.time_ms
        self._state = await self._offload.run(lambda: _encode(entries, revision, time_ms))
        return revision, len(self._state)

    def part(self, start: int) -> bytes:
        """At most BACKUP_PART_BYTES of the frozen state, which is forgotten with its last piece."""
        data = self._state[start : start + limits.BACKUP_PART_BYTES]
        if start + len(data) >= len(self._state):
            self._state = b""
        return data

    async def _follow(self, watch: AsyncIterator[Changes | Resync]) -> None:
        async for change in watch:
            if isinstance(change, Resync):
                self._forget_changes(change.revision)
            else:
                self._keep(change.revision, change.events)

    def _keep(self, revision: int, events: Sequence[Event]) -> None:
        entries = [self._entry(event) for event in events if not event.key.startswith(NEVER_ARCHIVED)]
        size = sum(len(key) + len(value or b"") for key, value, _ in entries) + limits.ARCHIVE_CHANGE_BYTES
        self._changes.append((MetadataChange(revision, self._clock.wall_us(), entries), size))
        self._changes_bytes += size
        self._seen_revision = revision
        self._seen.set()
        if self._changes_bytes > limits.ARCHIVE_CHANGES_BYTES_MAX:
            self._forget_changes(revision)

    def _entry(self, event: Event) -> tuple[str, bytes | None, int]:
        entry = self._node_store().node.machine.entries.get(event.key)
        is_present = entry is not None and entry.mod_revision == event.revision
        return event.key, event.value, entry.deadline_ms if entry is not None and is_present else 0

    def _forget_changes(self, revision: int) -> None:
        self._changes.clear()
        self._changes_bytes = 0
        self._changes_after = self._seen_revision = revision
        self._seen.set()

    def _node_store(self) -> NodeStore:
        if not isinstance(self._store, NodeStore):
            raise errors.Refused("a metadata store in memory cannot be archived", hint="set `storage.type: iceberg`")
        return self._store


def _encode(entries: Sequence[tuple[str, Entry]], revision: int, time_ms: int) -> bytes:
    """The state with these entries, in the form of metadata/snapshot.py."""
    machine = StateMachine()
    machine.restore(revision, time_ms, [pair for pair in entries if not pair[0].startswith(NEVER_ARCHIVED)])
    return encode_snapshot(machine)


def _log_failure(error: BaseException) -> None:
    _log.error("a task of the archive failed", error=repr(error), exc_info=error)
