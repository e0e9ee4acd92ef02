"""The broker's part of a backup: this node's log is held, cut and read, and the metadata store is frozen (ADR 71).

    hold        all log files of this node are kept for the backup; renewed by each later call of it
    cut         one sync; then the ends of all shards and the producers' windows, as a checkpoint (wal/checkpoint.py)
    tail        sections of one shard, as the log has them
    freeze      the state of the metadata store at one revision, with cursors that pass no end
    part        a piece of the checkpoint or of the frozen state, which stay in memory until the end of the backup
    end         gives everything back

The caller is the run of the backup (backup/backup_run.py), over the local socket. If it dies, the hold expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.records import CURSORS, CursorRecord
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_holds import HoldRecord, hold_key
from icestream.catalog.catalog_records import TopicTableRecord
from icestream.catalogs.mirror import decode_foreign_table
from icestream.metadata.entry import Entry
from icestream.metadata.node_store import NodeStore
from icestream.metadata.snapshot import encode_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload, ThreadOffload
from icestream.wal.checkpoint import decode_checkpoint
from icestream.wal.tail import SectionRead
from icestream.wal.write_ahead_log import WriteAheadLog

CHECKPOINT: Final = "checkpoint"
METADATA: Final = "metadata"
# Numbers of the manifests of seed 003: unique in the cluster and over restarts (B-04).
MANIFEST_COUNTER: Final = "backup_manifest"
_LEASE: Final = "backup-"
_NEVER_BACKED_UP: Final = (catalog_keys.HOLDS, catalog_keys.LEASE)


class StoredTopicTable(NamedTuple):
    """A topic, and the table that it has in the catalog."""

    topic_id: int
    topic: str
    namespace: list[str]
    name: str
    uuid: str


class Cut(NamedTuple):
    """The log of this node at the moment of the cut."""

    log_id: str
    lsn: int
    cut_ms: int
    checkpoint_bytes: int
    earliest: list[tuple[int, int, int]]  # (topic id, shard, the lowest offset that the log has)


class TailPage(NamedTuple):
    sections: list[SectionRead]
    next_offset: int


@dataclass(slots=True)
class _RunningBackup:
    first_file: int
    parts: dict[str, bytes] = field(default_factory=dict)
    ends: dict[ShardKey, int] = field(default_factory=dict)


class BackupService:
    """What a running backup may ask this broker for. At most BACKUPS_AT_ONCE run at a time."""

    def __init__(
        self,
        log: WriteAheadLog,
        store: MetadataStore,
        clock: Clock,
        flush_cursors: Callable[[], Awaitable[None]],
        write_sessions: Callable[[], Awaitable[None]],
        offload: Offload | None = None,
    ) -> None:
        """`flush_cursors`: writes the cursors that have changed since their last flush. `write_sessions`: the marks of
        MQTT sessions and the retained messages, to the log."""
        self._log = log
        self._store = store
        self._flush_cursors = flush_cursors
        self._write_sessions = write_sessions
        self._clock = clock
        self._offload = offload or ThreadOffload("backup")
        self._running: dict[str, _RunningBackup] = {}

    # --- the log ---

    @property
    def log_id(self) -> str:
        return self._log.log_id.hex()

    async def hold(self, backup_id: str) -> int:
        """Holds every log file of this node; returns the revision of the metadata store, R of the backup.

        Raises Refused if too many backups run.
        """
        self._forget_expired()
        if backup_id not in self._running:
            if len(self._running) >= limits.BACKUPS_AT_ONCE:
                raise errors.Refused(
                    f"{len(self._running)} backups are running", hint="wait for the end of one of them"
                )
            numbers = self._log.lifecycle.numbers()
            self._running[backup_id] = _RunningBackup(min(numbers, default=0))
            self._renew(backup_id)
        return await self._store.revision()

    def _forget_expired(self) -> None:
        for backup_id in [backup_id for backup_id in self._running if not self._is_held(backup_id)]:
            del self._running[backup_id]

    def _is_held(self, backup_id: str) -> bool:
        return self._log.lifecycle.leases.is_active(f"{_LEASE}{backup_id}")

    def _renew(self, backup_id: str) -> None:
        # Files are freed strictly from the oldest on, so holding the oldest one holds all after it.
        first = self._running[backup_id].first_file
        self._log.lifecycle.leases.hold_for_backup(f"{_LEASE}{backup_id}", [first], limits.BACKUP_HOLD_MS)

    def _use(self, backup_id: str) -> _RunningBackup:
        """The running backup of this id, held for longer. Raises LeaseLost."""
        if backup_id not in self._running or not self._is_held(backup_id):
            self._running.pop(backup_id, None)
            raise errors.LeaseLost(
                f"backup {backup_id} no longer holds the log of this node", hint="begin another backup"
            )
        self._renew(backup_id)
        return self._running[backup_id]

    async def cut(self, backup_id: str) -> Cut:
        """Syncs the log and fixes the ends of all shards. Raises LeaseLost."""
        running = self._use(backup_id)
        await self._write_sessions()
        await self._log.sync()
        lsn, data = await self._log.lifecycle.encode_present()
        running.parts[CHECKPOINT] = data
        # Of the encoded state, not of the present one: the log went on while it was encoded.
        running.ends = {key: shard.synced for key, shard in decode_checkpoint(data).state.shards.items()}
        self._use(backup_id)
        earliest = [(*key, self._log.reader.earliest(key)) for key in running.ends]
        return Cut(self.log_id, lsn, self._clock.wall_us() // 1_000, len(data), earliest)

    async def tail(self, backup_id: str, key: ShardKey, offset: int, end: int) -> TailPage:
        """The next sections of a shard below `end`, about BACKUP_TAIL_READ_BYTES of them. A section may begin before
        `offset` or pass `end`: the log stores it whole. Raises LeaseLost, PositionGone."""
        self._use(backup_id)
        result = await self._log.reader.read(key, offset, limits.BACKUP_TAIL_READ_BYTES)
        self._use(backup_id)
        sections = [section for section in result.sections if section.base_offset < end]
        return TailPage(sections, min(result.next_offset, end))

    # --- tables ---

    async def tables(self, after: str) -> tuple[list[StoredTopicTable], str | None]:
        """A page of the topics that have a table, and the key after which the next page begins."""
        prefix = catalog_keys.TOPICS
        if not await self._store.list(prefix, "", 1):
            prefix = catalog_keys.FOREIGN_TABLES
        entries = await self._store.list(prefix, after, limits.API_PAGE_MAX)
        names = await self._names(int(key.removeprefix(prefix)) for key, _ in entries)
        tables = [table for key, entry in entries if (table := _table(prefix, key, entry, names)) is not None]
        return tables, entries[-1][0] if len(entries) == limits.API_PAGE_MAX else None

    async def _names(self, topic_ids: Iterable[int]) -> dict[int, str]:
        """The names of topics; also of those whose log is on another node."""
        topics = {topic_id: self._log.state.topics.get(topic_id) for topic_id in topic_ids}
        names = {topic_id: topic.name for topic_id, topic in topics.items() if topic is not None}
        if len(names) < len(topics):
            for key, entry in await self._store.list_all(records.TOPICS):
                record = records.decode(records.TopicRecord, key, entry.value)
                if record.id in topics:
                    names[record.id] = f"/{key.removeprefix(records.TOPICS)}"
        return names

    async def hold_table(self, backup_id: str, uuid: str, snapshot_id: int) -> None:
        """Writes the hold of the backup on a snapshot: its files are not removed while the hold exists."""
        record = HoldRecord([snapshot_id], self._clock.wall_us() // 1_000)
        await self._store.put(hold_key(uuid, f"backup-{backup_id}"), msgspec.json.encode(record))

    async def release_table(self, backup_id: str, uuid: str) -> None:
        await self._store.delete(hold_key(uuid, f"backup-{backup_id}"))

    async def release_all_tables(self, backup_id: str) -> None:
        """Removes all holds of the backup, also on tables that have no topic any more."""
        holder = f"/backup-{backup_id}"
        for key, _ in await self._store.list_all(catalog_keys.HOLDS):
            if key.endswith(holder):
                await self._store.delete(key)

    async def allocate_numbers(self, count: int) -> int:
        """The first of `count` numbers that no other manifest of this cluster has or will have."""
        return await self._store.allocate_id(MANIFEST_COUNTER, count)

    # --- the metadata store ---

    async def freeze(self, backup_id: str, ends: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
        """Freezes the metadata store; returns the revision R' and the size of the encoded state.

        `ends`: of shards of other nodes. Cursors of shards without an end are cut to 0. Raises LeaseLost, and Refused
        for a store whose state this process does not have.
        """
        running = self._use(backup_id)
        if not isinstance(self._store, NodeStore):
            raise errors.Refused("a metadata store in memory cannot be backed up", hint="set `storage.type: iceberg`")
        # What consumers have acked before the backup is not delivered again behind its restore.
        await self._flush_cursors()
        await self._store.revision()  # linearizable: what was acknowledged before is applied here
        machine = self._store.node.machine
        # Entries are immutable, so a copy of the map at one moment is a snapshot; encoding it takes longer and runs in
        # a thread.
        entries, revision, time_ms = list(machine.entries.items()), machine.revision, machine.time_ms
        all_ends = {ShardKey(topic_id, shard): end for topic_id, shard, end in ends} | running.ends
        data = await self._offload.run(lambda: _encode(entries, revision, time_ms, all_ends))
        self._use(backup_id).parts[METADATA] = data
        return revision, len(data)

    def part(self, backup_id: str, name: str, start: int) -> bytes:
        """At most BACKUP_PART_BYTES of the checkpoint or the frozen state. Raises LeaseLost, InvalidInput."""
        parts = self._use(backup_id).parts
        if name not in parts:
            raise errors.InvalidInput(f"backup {backup_id} has no part {name[:40]!r} yet")
        return parts[name][start : start + limits.BACKUP_PART_BYTES]

    def end(self, backup_id: str) -> None:
        """Gives back what the backup holds of the log; nothing for an unknown backup."""
        if self._running.pop(backup_id, None) is not None:
            self._log.lifecycle.leases.hold_for_backup(f"{_LEASE}{backup_id}", [], 0)


def _table(prefix: str, key: str, entry: Entry, names: Mapping[int, str]) -> StoredTopicTable | None:
    topic_id = int(key.removeprefix(prefix))
    if prefix == catalog_keys.FOREIGN_TABLES:
        mirror = decode_foreign_table(key, entry)
        if mirror.is_detached:
            return None
        return StoredTopicTable(topic_id, mirror.topic, mirror.namespace, mirror.name, mirror.uuid)
    record = msgspec.json.decode(entry.value, type=TopicTableRecord)
    return StoredTopicTable(topic_id, names.get(topic_id, ""), record.namespace, record.name, record.uuid)


def _encode(entries: Sequence[tuple[str, Entry]], revision: int, time_ms: int, ends: Mapping[ShardKey, int]) -> bytes:
    """The state with these entries, without leases and holds, in the form of metadata/snapshot.py."""
    backed_up = [
        (key, clamped_entry(key, entry, ends)) for key, entry in entries if not key.startswith(_NEVER_BACKED_UP)
    ]
    machine = StateMachine()
    machine.restore(revision, time_ms, backed_up)
    return encode_snapshot(machine)


def clamped_entry(key: str, entry: Entry, ends: Mapping[ShardKey, int]) -> Entry:
    """The entry of a cursor that passes no end (hazard 84); any other entry as it is."""
    if not key.startswith(CURSORS):
        return entry
    cursor = records.decode(CursorRecord, key, entry.value)
    clamped = clamp_cursor(cursor, ends.get(ShardKey(cursor.topic_id, shard_of_cursor(key)), 0))
    return entry if clamped is cursor else msgspec.structs.replace(entry, value=records.encode(clamped))


def shard_of_cursor(key: str) -> int:
    """The shard in the key of a cursor: of `name-part-N` N, else 0."""
    _, separator, number = key.rpartition("-part-")
    return int(number) if separator and number.isdigit() else 0


def clamp_cursor(cursor: CursorRecord, end: int) -> CursorRecord:
    """The cursor without what lies at `end` or behind it. The same object if nothing does."""
    highest = max((stop for _, stop, _ in cursor.failures), default=0)
    if max(cursor.end, highest, cursor.kept_below) <= end:
        return cursor
    offset = min(cursor.offset, end)
    ranges = [(start, min(stop, end)) for start, stop in cursor.ranges if start < end and stop > offset]
    failures = [(start, min(stop, end), count) for start, stop, count in cursor.failures if start < end]
    return msgspec.structs.replace(
        cursor,
        offset=offset,
        acked=records.as_steps(offset, ranges),
        attempts=records.as_steps(offset, failures),
        kept_below=min(cursor.kept_below, end),
        snapshot_id=None,
        file_path=None,
        row_offset=None,
    )
