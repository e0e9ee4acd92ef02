"""A backup as it would have been at a later moment: a base backup, and the archive behind it (ADR 85).

    cut by time     each shard ends before its first message with an append time above T
    cut by offset   everything ends before the record that has the offset; its own shard exactly at the offset
    base            the given backup, or the newest one that lies before the cut; its messages are never cut
    metadata        that of the base, and the changes that the broker applied until T. A topic that was created until T
                    counts although its change was seen later
    end             replay ends behind the first object whose `until_us` is above T: all that was appended until T is in
                    it or before

The result is a root like any other, whose further tails and metadata are files of a temporary folder: a restore, a view
and `verify` need not know of archives. Deletions of rows by engines are not in the log: rows of the base table that
were deleted since are there again.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.backup.archive_object import ArchiveObject, MetadataChange
from icestream.backup.backup_root import (
    CREATED_DURING_BACKUP,
    BackupRoot,
    IncompleteShard,
    ObjectRef,
    ShardCut,
    TailRef,
    TopicCut,
)
from icestream.backup.stored_archive import StoredArchive, StoredObject
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.tail_object import encode_tail
from icestream.broker import records
from icestream.broker.backup_service import clamped_entry
from icestream.metadata.entry import Entry
from icestream.metadata.snapshot import encode_snapshot, load_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.model.shard import ShardKey
from icestream.runtime.tasks import Offload
from icestream.wal import format as wire
from icestream.wal.notes import decode_gap
from icestream.wal.tail import SectionRead

_SPOOLED: Final = "archived/"
_METADATA: Final = f"{_SPOOLED}metadata"


class CutTime(NamedTuple):
    """A cut by time: the T of the head, in microseconds since 1970. END is the end of the archive."""

    time_us: int


class CutOffset(NamedTuple):
    """A cut by offset: the first offset of a shard that is not restored."""

    topic: str
    shard: int
    offset: int


Cut = CutTime | CutOffset
END: Final = CutTime(2**63 - 1)


class PastBackups(StoredBackups):
    """The backups of a target, and the objects of one past moment, which are files of a folder."""

    def __init__(self, stored: StoredBackups, folder: Path) -> None:
        super().__init__(stored.target, stored.key)
        self._folder = folder

    async def content(self, reference: ObjectRef, role: str) -> bytes:
        if reference.path.startswith(_SPOOLED):
            return self.path(reference.path).read_bytes()
        return await super().content(reference, role)

    def path(self, name: str) -> Path:
        return self._folder / name.removeprefix(_SPOOLED).replace("/", "-")


class PastBackup(NamedTuple):
    """A backup at a cut. `until_us`: up to where the archive was read."""

    stored: PastBackups
    root: BackupRoot
    until_us: int


@dataclass(slots=True)
class _Shard:
    """What is replayed of a shard. Offsets below `start` are those of the base."""

    start: int
    end: int
    reserved: int
    append_time_us: int
    gaps: list[tuple[int, int]]
    epoch: int = 0
    is_ended: bool = False
    tails: list[TailRef] = field(default_factory=list)
    waiting: list[SectionRead] = field(default_factory=list)
    # of the tail that is being written
    lsn: int = 1
    size: int = 0


def base_for(roots: Sequence[BackupRoot], cut: Cut) -> BackupRoot:
    """The newest backup that lies before a cut. Raises InvalidInput without one."""
    usable = [root for root in roots if lies_before(root, cut)]
    if not usable:
        first = min((root.cut_ms for root in roots), default=None)
        hint = "make a backup first" if first is None else f"the oldest backup is of {first} (ms since 1970)"
        raise errors.InvalidInput("no backup lies before the point in time", hint=hint)
    return max(usable, key=lambda root: root.cut_ms)


def lies_before(root: BackupRoot, cut: Cut) -> bool:
    """Whether a backup can be the base of a restore to this cut."""
    if isinstance(cut, CutTime):
        # Its metadata is younger than its messages: cursors and policies between both would be those of later.
        return max(root.cut_ms, root.frozen_ms) * 1_000 <= cut.time_us
    for topic in root.topics:
        for shard in topic.shards:
            if topic.name == cut.topic and shard.shard == cut.shard:
                return shard.end <= cut.offset
    return True


class ArchiveReplay:
    """One replay of an archive behind a base."""

    def __init__(
        self, stored: StoredBackups, base: BackupRoot, archive: StoredArchive, offload: Offload, folder: Path
    ) -> None:
        """`folder`: an empty one for what is replayed, as large as the archive behind the base."""
        self._past = PastBackups(stored, folder)
        self._base = base
        self._archive = archive
        self._offload = offload
        (self._node,) = base.nodes
        self._shards: dict[ShardKey, _Shard] = {
            ShardKey(topic.id, shard.shard): _Shard(
                shard.end, shard.end, shard.reserved, shard.append_time_us, list(shard.gaps), shard.epoch
            )
            for topic in base.topics
            for shard in topic.shards
        }
        self._is_cut = self._is_at_offset = False
        self._touched: set[ShardKey] = set()
        self._end_lsn = 0
        self._until_us = base.cut_ms * 1_000
        self._offset_key: ShardKey | None = None

    async def run(self, cut: Cut) -> PastBackup:
        """The backup at the cut. Raises InvalidInput if the archive does not reach it, BackupDamaged."""
        data = await self._past.content(self._base.metadata, "metadata")
        base_state = load_snapshot(io.BytesIO(data).read)
        metadata = _Metadata(dict(base_state.entries.items()), base_state.revision)
        if isinstance(cut, CutOffset):
            self._offset_key = self._key_of(cut)
        time_us = cut.time_us if isinstance(cut, CutTime) else None
        last = ""
        async for stored in self._objects(cut):
            header, last = stored.content.header, stored.name
            if isinstance(cut, CutOffset) and self._offset_key is None:
                # The topic is younger than the base: its id is in a change that comes no later than its messages.
                self._offset_key = _key_in(stored.content.changes, cut)
            offset_time_us = await self._offload.run(lambda stored=stored: self._replay(stored, cut))  # type: ignore[misc]
            time_us = time_us if time_us is not None else offset_time_us
            metadata.add(stored.content, time_us)
            self._until_us = max(self._until_us, header.until_us)
            if time_us is not None and header.until_us > time_us:
                self._is_cut = True
                break
        await self._check_reached(cut, time_us, last)
        if time_us is None or cut == END:
            time_us = self._until_us
        metadata.take_created({key.topic_id for key in self._shards}, time_us)
        return PastBackup(self._past, self._root(base_state, metadata, time_us), self._until_us)

    # --- the archive ---

    async def _objects(self, cut: Cut) -> AsyncIterator[StoredObject]:
        """The objects behind the base. Raises InvalidInput at a gap, or if they begin later."""
        is_first = True
        needed_lsn = self._node.lsn + 1
        async for stored in self._archive.objects_from(needed_lsn, self._base.revision):
            header = stored.content.header
            gap = header.gap
            is_rewound = gap is not None and gap.from_lsn == gap.to_lsn and self._base.cut_ms * 1_000 < gap.until_us
            if gap is not None and (gap.to_lsn > needed_lsn or is_rewound):
                self._until_us = max(self._until_us, gap.after_us)
                if isinstance(cut, CutTime) and cut.time_us <= gap.after_us:
                    return
                raise errors.InvalidInput(
                    f"the archive has a gap behind {gap.after_us} (µs since 1970): records {gap.from_lsn} to "
                    f"{gap.to_lsn - 1}, {gap.reason}",
                    hint="restore to that time at the latest, or from a backup behind the gap",
                )
            misses_changes = header.after_revision > self._base.revision and not header.state_bytes
            if is_first and (header.first_lsn > needed_lsn or misses_changes):
                raise errors.InvalidInput(
                    f"the archive of node {header.node} begins at record {header.first_lsn}, behind backup "
                    f"{self._base.id}, which ends at {self._node.lsn}",
                    hint="restore to the backup itself, or use a later one as the base",
                )
            is_first = False
            yield stored

    async def _check_reached(self, cut: Cut, time_us: int | None, last: str) -> None:
        """Raises InvalidInput if the cut lies behind the end of the archive."""
        # An idle archive has a newer head than its last object.
        head = await self._archive.head()
        if head is not None and head.end_lsn >= self._end_lsn:
            self._until_us = max(self._until_us, head.until_us)
        if self._is_cut:
            return
        if isinstance(cut, CutTime):
            if cut != END and self._until_us < cut.time_us:
                raise errors.InvalidInput(
                    f"the archive reaches {self._until_us} (µs since 1970), not {cut.time_us}",
                    hint="restore to an earlier time; `icestream backup archive status` shows the end",
                )
            return
        shard = self._shards.get(self._offset_key) if self._offset_key is not None else None
        if time_us is None and (shard is None or shard.end != cut.offset):
            end = "nothing of it" if shard is None else f"offsets up to {shard.end - 1}"
            raise errors.InvalidInput(
                f"offset {cut.offset} of {cut.topic}, shard {cut.shard} is not in the archive, which has {end}",
                hint=f"choose an earlier offset; the last archive object is {last or 'none'}",
            )

    def _key_of(self, cut: CutOffset) -> ShardKey | None:
        for topic in self._base.topics:
            if topic.name == cut.topic:
                return ShardKey(topic.id, cut.shard)
        return None

    def _replay(self, stored: StoredObject, cut: Cut) -> int | None:
        """Replays the log of an object, in a thread; returns the time of the record that the offset of a cut is in."""
        self._end_lsn = stored.content.header.end_lsn
        try:
            for run in stored.content.runs:
                for position, lsn, _, _, time_us, _, _, count in run.records:
                    if self._is_at_offset:
                        return None
                    if lsn <= self._node.lsn:
                        continue
                    entries = wire.entries_at(run.data, position - run.start, position, count)
                    section = self._section_with(entries, cut)
                    if section is not None and isinstance(cut, CutOffset):
                        self._is_at_offset = True
                        self._take_below(stored.name, section, run.data, run.start, cut.offset)
                        return time_us
                    for entry in entries:
                        self._replay_entry(stored.name, entry, run.data, run.start, cut)
            return None
        finally:
            self._flush_all()

    def _section_with(self, entries: Iterable[wire.SectionEntry], cut: Cut) -> wire.SectionEntry | None:
        """The section that has the offset of a cut, or what follows it."""
        if not isinstance(cut, CutOffset) or self._offset_key is None:
            return None
        for entry in entries:
            is_its_own = entry.kind == wire.SectionKind.MESSAGES and (entry.topic_id, entry.shard) == self._offset_key
            if is_its_own and entry.end_offset > cut.offset:
                return entry
        return None

    def _take_below(self, name: str, entry: wire.SectionEntry, data: bytes, start: int, offset: int) -> None:
        """Takes the messages of a section below an offset."""
        assert self._offset_key is not None
        shard = self._shard(self._offset_key)
        shard.reserved = max(shard.reserved, entry.end_offset)
        if entry.base_offset < offset:
            self._take(name, self._offset_key, entry, data, start)
            shard.end = offset

    def _shard(self, key: ShardKey) -> _Shard:
        return self._shards.setdefault(key, _Shard(-1, 0, 0, 0, []))

    def _replay_entry(self, name: str, entry: wire.SectionEntry, data: bytes, start: int, cut: Cut) -> None:
        key = ShardKey(entry.topic_id, entry.shard)
        if entry.kind == wire.SectionKind.GAP:
            gap = decode_gap(entry, data[entry.body_position - start :][: entry.body_bytes])
            shard = self._shard(key)
            shard.gaps.append((gap.start, gap.end))
            shard.reserved = max(shard.reserved, gap.end)
        elif entry.kind == wire.SectionKind.RESERVE:
            shard = self._shard(key)
            shard.reserved = max(shard.reserved, entry.base_offset)
        elif entry.kind == wire.SectionKind.MESSAGES:
            shard = self._shard(key)
            # Beyond the cut as well: the source gave these offsets out (hazard 78).
            shard.reserved = max(shard.reserved, entry.end_offset)
            if isinstance(cut, CutTime) and max(entry.append_time_us, shard.append_time_us) > cut.time_us:
                shard.is_ended = True
            if not shard.is_ended and entry.end_offset > shard.end:
                self._take(name, key, entry, data, start)

    def _take(self, name: str, key: ShardKey, entry: wire.SectionEntry, data: bytes, start: int) -> None:
        """Adds a section to its shard. Raises BackupDamaged if offsets before it are missing."""
        shard = self._shard(key)
        if shard.start < 0:
            # Not in the base: whatever is below came there by a restore or an undelete, and is in no log.
            shard.start = shard.end = entry.base_offset
        at = shard.end
        for first, stop in sorted(shard.gaps):
            if first <= at < stop:
                at = stop
        if entry.base_offset > at:
            raise errors.BackupDamaged(
                f"{name}: offsets {at} to {entry.base_offset - 1} of topic {key.topic_id}/{key.shard} are missing"
            )
        body = data[entry.body_position - start :][: entry.body_bytes]
        shard.waiting.append(SectionRead(entry.base_offset, entry.rows, entry.append_time_us, entry.epoch, body))
        self._touched.add(key)
        shard.end, shard.epoch = entry.end_offset, entry.epoch
        shard.append_time_us = max(shard.append_time_us, entry.append_time_us)

    def _flush_all(self) -> None:
        for key in self._touched:
            self._flush(key, self._shards[key])
        self._touched.clear()

    def _flush(self, key: ShardKey, shard: _Shard) -> None:
        """Appends what waits to the last tail of a shard, or to a new one."""
        sections, shard.waiting = shard.waiting, []
        first = max(sections[0].base_offset, shard.start)
        if not shard.tails or shard.size >= limits.BACKUP_TAIL_OBJECT_BYTES:
            name = f"{_SPOOLED}{key.topic_id}/{key.shard}/{first}"
            shard.tails.append(TailRef(first, first, ObjectRef(name, 0, "", 0, "")))
            shard.lsn, shard.size = 1, 0
        tail = shard.tails[-1]
        with self._past.path(tail.object.path).open("ab") as file:
            for record in encode_tail(key, sections, shard.lsn, shard.size):
                file.write(record)
                shard.size += len(record)
        shard.lsn += len(sections)
        shard.tails[-1] = TailRef(tail.start, shard.end, tail.object)

    # --- metadata and the root ---

    def _root(self, base_state: StateMachine, metadata: _Metadata, time_us: int) -> BackupRoot:
        state = metadata.entries
        # Its log begins behind the cut, so that the archive has all of it.
        whole = {topic.topic for topic in self._base.left_out if topic.reason == CREATED_DURING_BACKUP}
        base_topics = _topics(dict(base_state.entries.items()))
        base_ids = {record.id for name, record in base_topics.items() if name not in whole}
        present = _topics(state)
        topics = []
        for topic in self._base.topics:
            record = present.get(topic.name)
            # Deleted, and another one has its name: what the base has is of the deleted one.
            if record is not None and record.id != topic.id:
                continue
            shards = [*topic.shards]
            if record is not None:  # one with partitions may have got more of them
                shards += [self._empty(number) for number in range(len(topic.shards), record.shards)]
            topics.append(msgspec.structs.replace(topic, shards=[self._cut(topic.id, shard) for shard in shards]))
        own = {topic.id for topic in topics}
        for name, record in present.items():
            if record.id not in own and record.id not in base_ids:
                shards = [self._cut(record.id, self._empty(number)) for number in range(record.shards)]
                topics.append(TopicCut(record.id, record.id, name, None, shards))
        ends = {ShardKey(topic.id, shard.shard): shard.end for topic in topics for shard in topic.shards}
        machine = StateMachine()
        entries = [(key, clamped_entry(key, state[key], ends)) for key in sorted(state)]
        machine.restore(metadata.revision, base_state.time_ms, entries)
        self._past.path(_METADATA).write_bytes(encode_snapshot(machine))
        return msgspec.structs.replace(
            self._base,
            # Restores to two times are two restores: what one has begun the other must not continue.
            id=f"{self._base.id}-{time_us:x}",
            cut_ms=time_us // 1_000,
            revision=metadata.revision,
            incomplete=[*self._base.incomplete, *self._incomplete(topics, present)],
            metadata=ObjectRef(_METADATA, 0, "", 0, ""),
            topics=topics,
            # The windows of producers are those of the base: a producer that went on behind it opens again instead.
            nodes=[],
        )

    def _empty(self, number: int) -> ShardCut:
        return ShardCut(number, self._node.name, 0, 0, 0, 0, 0, [], [])

    def _cut(self, topic_id: int, shard: ShardCut) -> ShardCut:
        """The shard as it is at the cut."""
        replayed = self._shards.get(ShardKey(topic_id, shard.shard))
        if replayed is None:
            return shard
        return msgspec.structs.replace(
            shard,
            epoch=replayed.epoch,
            end=replayed.end,
            reserved=replayed.reserved,
            append_time_us=replayed.append_time_us,
            gaps=sorted(replayed.gaps),
            tails=[*shard.tails, *replayed.tails],
        )

    def _incomplete(
        self, topics: Iterable[TopicCut], present: Mapping[str, records.TopicRecord]
    ) -> Iterable[IncompleteShard]:
        """Shards of topics younger than the base that have messages which are in no log of this archive."""
        own = {topic.id for topic in self._base.topics}
        for topic in topics:
            for shard in topic.shards if topic.id not in own else ():
                replayed = self._shards.get(ShardKey(topic.id, shard.shard))
                if replayed is not None and replayed.start > 0:
                    reason = f"offsets below {replayed.start} are in no log: the topic was restored or undeleted"
                    yield IncompleteShard(topic.name, shard.shard, self._node.name, reason)
                elif replayed is None and present[topic.name].node != self._node.name:
                    reason = "its log is on this node, whose archive is not read"
                    yield IncompleteShard(topic.name, shard.shard, present[topic.name].node, reason)


class _Metadata:
    """The metadata store while it is replayed."""

    def __init__(self, entries: dict[str, Entry], revision: int) -> None:
        self.entries = entries
        self.revision = revision
        self._later: dict[str, Entry] = {}  # what changed behind the cut
        self._is_ended = False

    def add(self, content: ArchiveObject, time_us: int | None) -> None:
        """Applies an object; `time_us` None: the cut lies behind it."""
        is_behind = time_us is not None and content.header.until_us > time_us
        if content.state and is_behind:
            self._later |= _loaded(content.state)
        elif content.state:
            self.entries, self.revision = _loaded(content.state), content.header.revision
        for change in content.changes:
            if change.revision <= self.revision:
                continue
            self._is_ended = self._is_ended or (time_us is not None and change.time_us > time_us)
            if self._is_ended:
                _apply(self._later, change)
            else:
                _apply(self.entries, change)
                self.revision = change.revision

    def take_created(self, topic_ids: Container[int], time_us: int) -> None:
        """Takes topics that were created until T and whose change was seen after it: their messages are in the log."""
        for key, entry in self._later.items():
            if key in self.entries or not key.startswith(records.TOPICS):
                continue
            record = records.decode(records.TopicRecord, key, entry.value)
            if record.created_ms * 1_000 <= time_us and record.id in topic_ids:
                self.entries[key] = entry
                namespace = f"{records.NAMESPACES}{key.removeprefix(records.TOPICS).partition('/')[0]}"
                if namespace not in self.entries and namespace in self._later:
                    self.entries[namespace] = self._later[namespace]
                self.revision = max(self.revision, entry.mod_revision)


def _topics(entries: Mapping[str, Entry]) -> dict[str, records.TopicRecord]:
    """The records of all topics, by name."""
    return {
        f"/{key.removeprefix(records.TOPICS)}": records.decode(records.TopicRecord, key, entry.value)
        for key, entry in entries.items()
        if key.startswith(records.TOPICS)
    }


def _loaded(state: bytes) -> dict[str, Entry]:
    return dict(load_snapshot(io.BytesIO(state).read).entries.items())


def _apply(state: dict[str, Entry], change: MetadataChange) -> None:
    for key, value, deadline_ms in change.entries:
        if value is None:
            state.pop(key, None)
            continue
        old = state.get(key)
        created = old.create_revision if old is not None else change.revision
        version = old.version + 1 if old is not None else 1
        state[key] = Entry(value, created, change.revision, version, deadline_ms)


def _key_in(changes: Iterable[MetadataChange], cut: CutOffset) -> ShardKey | None:
    """The key of the shard of a cut, by the record of its topic."""
    key = f"{records.TOPICS}{cut.topic.removeprefix('/')}"
    for change in changes:
        for changed, value, _ in change.entries:
            if changed == key and value is not None:
                return ShardKey(records.decode(records.TopicRecord, key, value).id, cut.shard)
    return None
