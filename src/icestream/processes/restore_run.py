"""A restore of topics from a backup into a running broker (ADR 75 has the steps and why).

Each step can be repeated: files that are there with their size are not written again, and the broker hands out the same
topic id until the restore of a topic is completed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID, uuid4, uuid5

import msgspec
import orjson

from icestream import errors, limits
from icestream.backup import restored_table
from icestream.backup.backup_root import BackupRoot, ShardCut, TopicCut
from icestream.backup.erased_ledger import ErasedLedger, erased_of, extended, stored_ledgers
from icestream.backup.file_copy import run_bounded
from icestream.backup.object_list import ObjectRow
from icestream.backup.restored_table import BaseSnapshot, RestoredFile
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.table_view import rewrite_position_deletes
from icestream.broker import records
from icestream.broker.topic_restore import RECORDS_OF_TOPICS
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import DetachedRecord
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.catalog.topic_rules.removal import Removals
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import normalize
from icestream.iceberg.manifests import (
    DATA_CONTENT,
    POSITION_DELETES_CONTENT,
    ManifestEntry,
    ManifestFile,
    decode_manifest_list,
    live_entries,
)
from icestream.iceberg.relocation import RelocatedFile
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.snapshot import load_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets, decode_erased, encode_erased
from icestream.model.task_messages import WrittenFile
from icestream.model.topic_name import TopicName
from icestream.model.topic_origin import TopicOrigin
from icestream.model.topic_policies import PolicyValues
from icestream.pipeline.erasure.restored_rows import RestoredRows, StoredDataFile
from icestream.pipeline.retention.commit_times import RetentionIndex
from icestream.processes.replaced_topic import ReplacedTopic, replaced_topic
from icestream.processes.state_restore import Call, RestoredPart, RestoreScope, StateRestore
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, SnapshotFiles, field_ids, files_of
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload

_NAMESPACE: Final = UUID("0c6f1d8e-3f0b-4a7e-9a59-0d2c6c2f9b11")
_SNAPSHOT_BITS: Final = 62
_SYSTEM: Final = "/system/"


class RestoreEffect(StrEnum):
    """The external effects of a restore, in their order: fault tests stop it before each."""

    BEGIN = "begin"
    SCHEMAS = "schemas"
    ALLOCATE = "allocate"
    COPY = "copy"
    TAILS = "tails"
    METADATA = "metadata"
    PRODUCERS = "producers"
    CREATE = "create"
    ADOPT = "adopt"
    ACCOUNTS = "accounts"
    SESSIONS = "sessions"
    END = "end"


class TailSpan(NamedTuple):
    """The offsets [start, end) of a shard in a tail object."""

    shard: int
    start: int
    end: int
    data: bytes


class RestorePlan(NamedTuple):
    """`topics`: those to restore, with their new names. Subscriptions, and with them windows of producers, may be left
    out."""

    topics: Sequence[tuple[TopicCut, TopicName]]
    has_subscriptions: bool = True
    scope: RestoreScope = RestoreScope.TOPICS
    has_accounts: bool = False  # accounts too, and owners of subscriptions and sessions with them
    skips_existing: bool = False  # a topic whose name is taken is reported, and the others are restored
    is_in_place: bool = False  # a topic whose name is taken is replaced (ADR 116)
    brings_back_erased: bool = False  # messages that were erased after the backup, too (ADR 124)


class RestoredTopic(NamedTuple):
    """The result of a topic. `table` is empty if it has no messages. `problem`: why it was left out."""

    topic: str
    source: str
    id: int
    table: str
    messages: int
    files: int
    bytes: int
    subscriptions: int
    next_offsets: dict[int, int]
    problem: str = ""
    erased: int = 0  # messages that the backup has and that were erased since: they were left out


async def restorable_topics(stored: StoredBackups, root: BackupRoot) -> list[TopicCut]:
    """The topics of a backup that can be restored: those with a record. Logs of MQTT sessions have none, and what the
    broker writes itself, below /system, is of the other cluster."""
    state = load_snapshot(io.BytesIO(await stored.content(root.metadata, "metadata")).read)
    return [
        topic
        for topic in root.topics
        if f"{records.TOPICS}{topic.name.removeprefix('/')}" in state.entries and not topic.name.startswith(_SYSTEM)
    ]


class TableWriter(Protocol):
    """Where restored tables lie, and the writing of their files."""

    @property
    def is_foreign(self) -> bool:
        """True if the tables are in another catalog than ours."""

    async def place(
        self, topic: TopicName, uuid: str, *, is_in_place: bool = False, is_free: bool = True
    ) -> tuple[Identifier, str]:
        """Returns the name of the table of a topic, and the folder that its location is in.

        `is_free`: the name must be, or lead to the table with this UUID. Raises AlreadyExists, InvalidInput for a
        catalog that cannot take such a table, `is_in_place`: or cannot rename the one whose place it takes.
        """

    def new_document(self, policies: PolicyValues, location: str, uuid: str, now_ms: int) -> TableMetadata:
        """Returns a table without rows for a topic that had none in the backup."""

    def write_tail(
        self, table: TableMetadata, topic: TopicName, topic_id: int, tail: TailSpan, erased: ErasedOffsets
    ) -> RestoredRows:
        """Writes the messages of a tail that are not erased as data files; runs in a thread."""

    def write_without(
        self, table: TableMetadata, topic: TopicName, file: StoredDataFile, erased: ErasedOffsets
    ) -> RestoredRows | None:
        """Writes a data file anew without erased and deleted rows; None if it has no erased one. Runs in a thread.

        Raises TableUnreadable for one that only the engine that wrote it can write again."""

    async def size(self, location: str) -> int: ...

    async def write(self, location: str, pieces: Sequence[bytes]) -> None:
        """Writes a file durably."""

    async def names(self, folder: str) -> set[str]:
        """Returns the names of the files in a folder; none if it does not exist."""

    async def files_below(self, folder: str) -> list[str]:
        """Returns the locations of all files below a folder; none if it does not exist."""

    async def remove(self, location: str) -> None:
        """Removes a file if it exists. Raises StorageUnavailable if it stays."""

    async def make_durable(self, location: str) -> None:
        """Syncs the disk of a file that another run wrote."""

    async def copy(self, location: str, pieces: Callable[[], Iterator[bytes]]) -> None:
        """As `write`, of pieces that are read in a thread while the file is written: it need not fit into memory."""


# Binds a table, by its metadata file, to a topic; does nothing if it is bound to it already.
Adopt = Callable[[TopicName, Identifier, str], Awaitable[None]]


class RestoreRun:
    """One restore."""

    def __init__(
        self,
        call: Call,
        adopt: Adopt,
        stored: StoredBackups,
        source: Callable[[str], Iterator[bytes]],
        writer: TableWriter,
        clock: Clock,
        offload: Offload,
        plan: RestorePlan,
        on_bytes: Callable[[int], None] = lambda _: None,
        on_effect: Callable[[RestoreEffect], None] = lambda _: None,
    ) -> None:
        """`call`: a call of the local socket. `source`: reads files of the warehouse: a reference backup has no copies
        of them."""
        self._call = call
        self._adopt = adopt
        self._stored = stored
        self._source = source
        self._writer = writer
        self._clock = clock
        self._offload = offload
        self._plan = plan
        self._new_names = {cut.name: str(name) for cut, name in plan.topics if cut.name != str(name)}
        self._on_bytes = on_bytes
        self._on_effect = on_effect
        self._ledgers: list[ErasedLedger] = []  # of the target
        self._run = uuid4().hex  # another run of the same restore takes it over
        self.parts: list[RestoredPart] = []  # what was restored beside topics

    async def replaced(self, root: BackupRoot) -> list[ReplacedTopic]:
        """Returns what a restore in place of these topics takes away; of each topic whose name is taken.

        Raises TopicElsewhere if another node has one of them.
        """
        state = load_snapshot(io.BytesIO(await self._stored.content(root.metadata, "metadata")).read)
        topics = []
        for cut, name in self._plan.topics:
            live = (await self._call("restore_live", topic=str(name)))["topic"]
            if live is None:
                continue
            source = TopicName.parse(cut.name)
            record = _entry(state, records.topic_key(source), records.TopicRecord)
            cursors = {
                subscription: {
                    shard: records.decode(records.CursorRecord, subscription, value).offset for shard, value in stored
                }
                for subscription, _, stored in self._subscriptions(state, source, record)
                if self._plan.has_subscriptions
            }
            topics.append(replaced_topic(cut, cursors, live, str(name)))
        return topics

    async def run(self, root: BackupRoot) -> list[RestoredTopic]:
        """Restores the topics of the plan one after the other, and in an empty broker all else of the backup. Raises
        what the first failure was."""
        data = await self._stored.content(root.metadata, "metadata")
        state = load_snapshot(io.BytesIO(data).read)
        rest = StateRestore(self._call, self._stored, root, state)
        rows = {(row.topic_id, row.source): row for row in await self._stored.object_rows(root) if row.source}
        if not self._plan.brings_back_erased:
            self._ledgers = await stored_ledgers(self._stored.target)
        self._on_effect(RestoreEffect.BEGIN)
        is_everything = await rest.begin(self._plan.scope)
        # Before the topics: their records name the ids of subjects.
        self._on_effect(RestoreEffect.SCHEMAS)
        sources = None if is_everything else [TopicName.parse(cut.name) for cut, _ in self._plan.topics]
        self.parts.append(await rest.restore_schemas(sources))
        restored: list[RestoredTopic] = []
        for cut, name in self._plan.topics:
            try:
                restored.append(await self._restore(root, cut, name, state, rows, rest))
            except (errors.AlreadyExists, errors.PermissionDenied) as error:  # denied: it belongs to the broker
                if not self._plan.skips_existing:
                    raise
                restored.append(RestoredTopic(str(name), cut.name, 0, "", 0, 0, 0, 0, {}, str(error)))
                continue
            if not is_everything:
                await self._end(root, name)
        if self._plan.has_accounts:
            # Behind the topics: grants for a topic that was not restored come back parked (hazard 117).
            self._on_effect(RestoreEffect.ACCOUNTS)
            own_names = [TopicName.parse(topic.topic) for topic in restored if topic.id and topic.topic == topic.source]
            self.parts.append(await rest.restore_accounts(own_names))
        if is_everything:
            await self._complete(root, restored, rest)
        return restored

    async def _complete(self, root: BackupRoot, restored: Sequence[RestoredTopic], rest: StateRestore) -> None:
        """Restores what refers to topics. Their restores end behind it: a repeat needs the ids that they got."""
        ids = {cut.id: topic.id for (cut, _), topic in zip(self._plan.topics, restored, strict=True) if topic.id}
        self._on_effect(RestoreEffect.SESSIONS)
        sessions = await rest.restore_sessions(ids, keeps_owners=self._plan.has_accounts)
        if sessions is not None:
            self.parts.append(sessions)
        await rest.finish()
        for topic in restored:
            if topic.id:
                await self._end(root, TopicName.parse(topic.topic))

    async def _end(self, root: BackupRoot, name: TopicName) -> None:
        self._on_effect(RestoreEffect.END)
        await self._call("restore_end", backup=root.id, topic=str(name))

    async def _restore(
        self,
        root: BackupRoot,
        cut: TopicCut,
        name: TopicName,
        state: StateMachine,
        rows: Mapping[tuple[int | None, str], ObjectRow],
        rest: StateRestore,
    ) -> RestoredTopic:
        source = TopicName.parse(cut.name)
        record = self._record(state, source)
        namespace = _entry(state, records.namespace_key(source.namespace), records.NamespaceRecord)
        self._on_effect(RestoreEffect.ALLOCATE)
        policies = records.encode(namespace.policies)
        is_in_place = self._plan.is_in_place
        allocated = await self._call(
            "restore_allocate",
            backup=root.id,
            topic=str(name),
            policies=policies,
            is_in_place=is_in_place,
            run=self._run,
        )
        topic_id = int(allocated["id"])
        uuid = uuid5(_NAMESPACE, f"{root.id} {name} {topic_id}")
        is_created, is_replacing = bool(allocated["is_created"]), bool(allocated["live_ends"])
        identifier, folder = await self._writer.place(
            name, str(uuid), is_in_place=is_in_place, is_free=not (is_created or is_replacing)
        )
        live_ends = dict(enumerate(allocated["live_ends"]))
        resume_at = {
            shard.shard: _resume_at(shard, live_ends.get(shard.shard, 0), is_renamed=name != source)
            for shard in cut.shards
        }
        subscriptions = self._subscriptions(state, source, record) if self._plan.has_subscriptions else []
        origin = TopicOrigin(root.log_id, cut.id, {shard.shard: shard.end for shard in cut.shards})
        origins = extended(record.restored_from, origin, limits.TOPIC_ORIGINS_MAX)
        record = msgspec.structs.replace(record, restored_from=origins)
        copied, metadata_file = _RestoredFiles(), str(allocated["metadata_file"])
        if not is_created:
            location = f"{folder}/{identifier.name}-{uuid}"
            table = await self._empty_table(cut, location, str(uuid), record.policies.over(namespace.policies))
            copied.erased = await self._erased_of(root, cut)
            before = await self._writer.files_below(location)
            if cut.table is not None:
                await self._copy_table(cut, name, table, rows, copied)
            self._on_effect(RestoreEffect.TAILS)
            for shard in cut.shards:
                await self._write_tails(cut, name, shard, table, copied)
            # In another catalog the replaced table has the name until a restored one takes it, also an empty one.
            is_empty = not (copied.manifests or copied.written or copied.erased)
            if not is_empty or (is_replacing and self._writer.is_foreign):
                metadata_file = await self._write_metadata(cut, topic_id, table, copied, uuid)
            # Again: an erasure that ended while files were copied must not be undone by them.
            if copied.erased != await self._erased_of(root, cut):
                raise errors.Refused(
                    f"messages of topic {cut.name} were erased while it was restored", hint="repeat the command"
                )
            if self._plan.has_subscriptions:
                self._on_effect(RestoreEffect.PRODUCERS)
                await rest.restore_producers(cut, source, name)
            about = self._about(root, rest.records_about(cut.id, RECORDS_OF_TOPICS))
            about |= await self._write_erased(table, copied)
            # Of a run that was refused or killed: they may have messages that were erased since; nothing names them.
            for unneeded in sorted({*before} - copied.named):
                await self._writer.remove(unneeded)
            self._on_effect(RestoreEffect.CREATE)
            committed = {shard.shard: shard.end for shard in cut.shards}
            detached = DetachedRecord(
                str(name), [*identifier.namespace], identifier.name, str(uuid), metadata_file, committed, 0
            )
            await self._call(
                "restore_topic",
                backup=root.id,
                topic=str(name),
                record=records.encode(record),
                shards=[(shard.shard, shard.end, resume_at[shard.shard], _gaps_below(shard)) for shard in cut.shards],
                subscriptions=subscriptions,
                table=msgspec.json.encode(detached) if metadata_file else b"",
                schema=rest.topic_schema(source),
                about=about,
                keeps_owners=self._plan.has_accounts,
                is_in_place=is_in_place,
                run=self._run,
            )
        if metadata_file:
            self._on_effect(RestoreEffect.ADOPT)
            await self._adopt(name, identifier, metadata_file)
        return RestoredTopic(
            str(name), cut.name, topic_id, str(identifier) if metadata_file else "", copied.messages, copied.files,
            copied.bytes, len(subscriptions), resume_at, erased=copied.erased_rows,
        )  # fmt: skip

    # --- the table ---

    async def _empty_table(self, cut: TopicCut, location: str, uuid: str, policies: PolicyValues) -> TableMetadata:
        if cut.table is None:
            return self._writer.new_document(policies, location, uuid, self._clock.wall_us() // 1000)
        document = orjson.loads(await self._stored.content(cut.table.metadata, "table-metadata"))
        return restored_table.empty_table(document, location, uuid)

    async def _copy_table(
        self,
        cut: TopicCut,
        name: TopicName,
        table: TableMetadata,
        rows: Mapping[tuple[int | None, str], ObjectRow],
        copied: _RestoredFiles,
    ) -> None:
        """Copies the files of the pinned snapshot, and makes its manifests."""
        assert cut.table is not None
        folder = f"{table.location}/data"
        document = orjson.loads(await self._stored.content(cut.table.metadata, "table-metadata"))
        snapshot = next(entry for entry in document["snapshots"] if entry["snapshot-id"] == cut.table.snapshot_id)

        def row_of(path: str) -> ObjectRow:
            row = rows.get((cut.id, path))
            if row is None:
                raise errors.BackupDamaged(f"{path} of topic {cut.name} is not in the object list of the backup")
            return row

        def is_live(path: str) -> bool:
            return (cut.id, path) in rows

        def new_path(path: str) -> str:
            # A file of a reference backup was not read when it was backed up: its name stands for its bytes.
            name = row_of(path).content_sha256 or hashlib.sha256(path.encode()).hexdigest()
            return f"{folder}/{name}{_suffix(path)}"

        list_data = await self._content(row_of(snapshot["manifest-list"]))
        present = await self._writer.names(folder)
        sources = []
        for manifest in decode_manifest_list(snapshot["manifest-list"], list_data):
            data = await self._content(row_of(manifest.path))
            restored_table.check_restorable(manifest.path, data)
            if live_entries(manifest.path, data):
                sources.append((manifest, data))
        if copied.erased:
            await self._write_without_erased(name, table, sources, row_of, copied)
        for manifest, data in sources:
            entries = [entry for entry in live_entries(manifest.path, data) if entry.file_path not in copied.left_out]
            await self._copy_entries(entries, row_of, is_live, new_path, copied, present)
        if present:
            # A run that was killed may have ended before the sync of a file that is complete otherwise.
            await self._writer.make_durable(f"{folder}/{min(present)}")
        copied.removals = restored_table.removals_of(document, cut.table.snapshot_id, cut.id)
        manifests, files = restored_table.restored_manifests(
            table, sources, new_path, copied.new_files, copied.left_out
        )
        copied.manifests += manifests
        copied.documents += files

    async def _copy_entries(
        self,
        entries: Sequence[ManifestEntry],
        row_of: Callable[[str], ObjectRow],
        is_live: Callable[[str], bool],
        new_path: Callable[[str], str],
        copied: _RestoredFiles,
        present: Collection[str],
    ) -> None:
        """Copies files of the backup, several at once. `present`: the names of files that are there, whole or not."""

        async def copy(entry: ManifestEntry) -> None:
            self._on_effect(RestoreEffect.COPY)
            if entry.content == POSITION_DELETES_CONTENT:
                await self._copy_deletes(entry, row_of(entry.file_path), is_live, new_path, copied)
            else:
                await self._copy_file(entry, row_of(entry.file_path), new_path, copied, present)

        await run_bounded((partial(copy, entry) for entry in entries), limits.RESTORE_FILES_AT_ONCE)

    async def _copy_deletes(
        self,
        entry: ManifestEntry,
        row: ObjectRow,
        is_live: Callable[[str], bool],
        new_path: Callable[[str], str],
        copied: _RestoredFiles,
    ) -> None:
        """Writes position deletes with the paths of the new table, unless it has none of the files that they name."""
        data = await self._offload.run(lambda: b"".join(self._chunks(row)))
        rewritten = rewrite_position_deletes(data, lambda path: new_path(path) if is_live(path) else None)
        copied.bytes += row.content_size
        referenced = entry.referenced_data_file
        if not rewritten.rows or (referenced is not None and not is_live(referenced)):
            copied.left_out.add(entry.file_path)
            return
        copied.files += 1
        copied.new_files[entry.file_path] = RelocatedFile(len(rewritten.data), rewritten.rows)
        await self._put(new_path(entry.file_path), [rewritten.data], len(rewritten.data))

    async def _copy_file(
        self,
        entry: ManifestEntry,
        row: ObjectRow,
        new_path: Callable[[str], str],
        copied: _RestoredFiles,
        present: Collection[str],
    ) -> None:
        location = new_path(entry.file_path)
        copied.named.add(location)
        if entry.content == DATA_CONTENT:
            copied.messages += entry.record_count
        copied.files += 1
        copied.bytes += row.content_size
        if location in copied.locations:
            return  # two files of the table with the same bytes
        copied.locations.add(location)
        is_present = location.rpartition("/")[2] in present
        if not is_present or await self._writer.size(location) != row.content_size:
            await self._writer.copy(location, lambda: self._chunks(row))

    def _chunks(self, row: ObjectRow) -> Iterator[bytes]:
        """The plain bytes of an object, compared with its digest before the last of them. Raises BackupDamaged."""
        for chunk in self._stored.checked_chunks(row, self._source):
            self._on_bytes(len(chunk))
            yield chunk

    async def _content(self, row: ObjectRow) -> bytes:
        return await self._offload.run(lambda: b"".join(self._chunks(row)))

    async def _put(self, location: str, pieces: Sequence[bytes], size: int) -> None:
        if await self._writer.size(location) != size:
            await self._writer.write(location, pieces)

    async def _write_tails(
        self, cut: TopicCut, name: TopicName, shard: ShardCut, table: TableMetadata, copied: _RestoredFiles
    ) -> None:
        for tail in shard.tails:
            data = await self._stored.content(tail.object, "tail")
            span = TailSpan(shard.shard, max(tail.start, shard.committed), min(tail.end, shard.end), data)
            copied.add(
                await self._offload.run(partial(self._writer.write_tail, table, name, cut.id, span, copied.erased))
            )

    async def _write_metadata(
        self, cut: TopicCut, topic_id: int, table: TableMetadata, copied: _RestoredFiles, uuid: UUID
    ) -> str:
        self._on_effect(RestoreEffect.METADATA)
        committed = {shard.shard: shard.end for shard in cut.shards}
        snapshot_id = uuid.int >> (128 - _SNAPSHOT_BITS)
        now_ms = self._clock.wall_us() // 1000
        base = BaseSnapshot(snapshot_id, topic_id, committed, now_ms, uuid.bytes, copied.removals)
        restored, files = restored_table.base_table(table, base, copied.manifests, copied.written)
        # A repeated restore has written other tails: its metadata has names of its own.
        marker = hashlib.sha256(restored.encode()).hexdigest()[:16]
        metadata_file = f"{table.location}/metadata/00000-{uuid5(uuid, marker)}.metadata.json"
        for file in (*copied.documents, *files):
            await self._writer.write(file.location, file.pieces)
            copied.named.add(file.location)
        copied.named.add(metadata_file)
        await self._writer.write(metadata_file, restored.pieces())
        return metadata_file

    # --- erased messages (ADR 124) ---

    async def _erased_of(self, root: BackupRoot, cut: TopicCut) -> ErasedOffsets:
        """What shall not come back of a topic: what was erased before the backup, and, unless the plan brings it back,
        what was erased since, as the target and the live broker know it. Raises TableUnreadable, BackupDamaged."""
        ends = {shard.shard: shard.end for shard in cut.shards}
        erased = NOTHING_ERASED
        if cut.erased is not None:
            erased = decode_erased(await self._stored.content(cut.erased, "erased")).below(ends)
        if self._plan.brings_back_erased:
            return erased
        ledgers = [*self._ledgers, *await self._live_ledgers(root.log_id, cut.id)]
        return erased.plus(erased_of(ledgers, root.log_id, cut.id, ends))

    async def _live_ledgers(self, log_id: str, topic_id: int) -> list[ErasedLedger]:
        """What the broker has erased from the topic of the backup, if it has it, and from those restored from it."""
        answer = await self._call("restore_erased", log_id=log_id, topic_id=topic_id)
        ledgers = []
        for topic, data, ends in answer["erased"]:
            record = msgspec.json.decode(data, type=ErasedRecord)
            try:
                pieces = await self._offload.run(lambda record=record: [*self._source(normalize(record.offsets))])  # type: ignore[misc]
                offsets = b"".join(pieces)
                if hashlib.sha256(offsets).hexdigest() != record.sha256:
                    raise errors.DecodeError("its checksum is not the recorded one")
            except (errors.IcestreamError, OSError) as error:
                raise errors.TableUnreadable(
                    f"the erased offsets of {topic} cannot be read from {record.offsets}: {error}",
                    hint="bring the file back, or restore with --bring-back-erased and erase again",
                ) from None
            if ends is None:
                ledgers.append(ErasedLedger(log_id, topic_id, topic, [], offsets))
            else:
                ledgers.append(ErasedLedger("", 0, topic, [TopicOrigin(log_id, topic_id, dict(ends))], offsets))
        return ledgers

    async def _write_without_erased(
        self,
        name: TopicName,
        table: TableMetadata,
        sources: Sequence[tuple[ManifestFile, bytes]],
        row_of: Callable[[str], ObjectRow],
        copied: _RestoredFiles,
    ) -> None:
        """Writes the data files anew that have erased messages: a copy would have their bytes."""
        ids = field_ids(table.current_schema)
        files = [
            file
            for manifest, data in sources
            for file in files_of(live_entries(manifest.path, data), manifest.sequence_number, ids, manifest.spec_id)
        ]
        deletes = tuple(file for file in files if isinstance(file, ScanDeleteFile))

        def read(path: str) -> bytes:
            return b"".join(self._chunks(row_of(path)))

        for file in files:
            if not isinstance(file, ScanDataFile) or not _may_have(file, copied.erased):
                continue
            applied = SnapshotFiles((), deletes).deletes_of(file)
            self._on_effect(RestoreEffect.COPY)
            data = await self._offload.run(partial(read, file.path))
            stored = StoredDataFile(file, applied, data, read)
            rows = await self._offload.run(partial(self._writer.write_without, table, name, stored, copied.erased))
            if rows is not None:
                copied.left_out.add(file.path)
                copied.add(rows)

    async def _write_erased(self, table: TableMetadata, copied: _RestoredFiles) -> dict[str, bytes]:
        """Writes the side file of the restored topic; returns its record (catalog/topic_rules/erase_claim.py)."""
        erased = copied.erased
        if not erased:
            return {}
        data = encode_erased(erased)
        digest = hashlib.sha256(data).hexdigest()
        location = f"{table.location}/metadata/erased-{digest[:32]}.bin"
        await self._put(location, [data], len(data))
        copied.named.add(location)
        cut = {shard: ranges[-1][1] for shard, ranges in erased.shards.items()}
        now_ms = self._clock.wall_us() // 1000
        record = ErasedRecord(location, digest, erased.offset_count, erased.range_count, cut, now_ms)
        return {catalog_keys.ERASED: msgspec.json.encode(record)}

    # --- the records ---

    def _about(self, root: BackupRoot, about: dict[str, bytes]) -> dict[str, bytes]:
        """The records about a topic, whose messages are as old as they were at the cut (hazard 98)."""
        about.pop(catalog_keys.ERASED, None)  # names a file of the source
        data = about.pop(catalog_keys.RETENTION, None)
        if data is not None:
            pause_ms = max(0, self._clock.wall_us() // 1_000 - root.cut_ms)
            with contextlib.suppress(msgspec.MsgspecError):  # without an index all ages begin now
                index = msgspec.json.decode(data, type=RetentionIndex).after_pause(pause_ms)
                about[catalog_keys.RETENTION] = msgspec.json.encode(index)
        return about

    def _record(self, state: StateMachine, source: TopicName) -> records.TopicRecord:
        """The record of a topic, which names the restored topics where they have other names."""
        record: records.TopicRecord = _entry(state, records.topic_key(source), records.TopicRecord)
        return msgspec.structs.replace(
            record, dead_letters_of=self._new_names.get(record.dead_letters_of, record.dead_letters_of)
        )

    def _subscription(self, name: str, data: bytes) -> bytes:
        """The record of a subscription: its dead letters go to the restored topic and not to the live one."""
        record = records.decode(records.SubscriptionRecord, name, data)
        new_name = self._new_names.get(record.failure.dead_letter_topic or "")
        if new_name is None:
            return data
        failure = msgspec.structs.replace(record.failure, dead_letter_topic=new_name)
        return records.encode(msgspec.structs.replace(record, failure=failure))

    def _subscriptions(
        self, state: StateMachine, source: TopicName, record: records.TopicRecord
    ) -> list[tuple[str, bytes, list[tuple[int, bytes]]]]:
        prefix = f"{records.SUBSCRIPTIONS}{source.namespace}/{source.name}/"
        subscriptions = []
        for key, entry in state.entries.items():
            if not key.startswith(prefix):
                continue
            name = key.removeprefix(prefix)
            cursors = []
            for shard in range(record.shards):
                cursor = state.entries.get(
                    records.cursor_key(source, name, shard, record.shards, is_partitioned=record.is_partitioned)
                )
                if cursor is not None:
                    cursors.append((shard, cursor.value))
            subscriptions.append((name, self._subscription(name, entry.value), cursors))
        return subscriptions


class _RestoredFiles:
    """What the restore of a topic has written."""

    def __init__(self) -> None:
        self.manifests: list[Any] = []
        self.documents: list[RestoredFile] = []
        self.written: list[WrittenFile] = []
        self.new_files: dict[str, RelocatedFile] = {}
        self.removals: Removals = ()
        self.locations: set[str] = set()
        self.named: set[str] = set()  # every file that the restored table, or its topic, names
        self.messages = self.files = self.bytes = 0
        self.erased = NOTHING_ERASED
        # Files of the backup: data files with erased messages, in `written` without them, and deletes of no live file.
        self.left_out: set[str] = set()
        self.erased_rows = 0

    def add(self, rows: RestoredRows) -> None:
        self.written += rows.files
        self.named |= {file.location for file in rows.files}
        self.messages += sum(file.rows for file in rows.files)
        self.files += len(rows.files)
        self.bytes += sum(file.size_bytes for file in rows.files)
        self.erased_rows += rows.erased


def _may_have(file: ScanDataFile, erased: ErasedOffsets) -> bool:
    """Whether a file can have erased messages, by its bounds."""
    start = file.offsets.low or 0
    end = limits.OFFSET_MAX if file.offsets.high is None else file.offsets.high + 1
    return any(file.shards.may_hold(shard) and erased.within(shard, start, end) for shard in erased.shards)


def _resume_at(shard: ShardCut, live_end: int, *, is_renamed: bool) -> int:
    """The next offset of a restored shard: beyond everything that the source, and a live topic that it replaces, can
    have given out (hazard 78)."""
    highest = max(shard.end, shard.reserved, live_end)
    if is_renamed and not live_end:
        return highest + 1 if highest else 0
    return highest + limits.TAKEOVER_OFFSETS


def _gaps_below(shard: ShardCut) -> list[tuple[int, int]]:
    """The declared gaps of the source below the end: nothing else says why the restored table lacks these offsets."""
    return [(start, min(end, shard.end)) for start, end in sorted(shard.gaps) if start < shard.end]


def _entry(state: StateMachine, key: str, kind: type[Any]) -> Any:
    entry = state.entries.get(key)
    if entry is None:
        raise errors.BackupDamaged(f"the metadata of the backup has no {key}")
    return records.decode(kind, key, entry.value)


def _suffix(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return f".{name.rsplit('.', 1)[-1]}" if "." in name else ""
