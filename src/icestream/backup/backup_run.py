"""A run of a backup: the cut, the copy, the root (ADR 71 has the order and the reasons).

    begin       begin.json: the id is taken, deletion leaves its objects alone
    cut         hold log, pin tables, fix the ends, tails, metadata: recorded in progress-00000000.json
    copy        files of the pinned tables in batches; each batch with its manifest and its progress
    finish      views, object list, locks, root, inventory; then pins and holds are given back

A run that ends after the cut was recorded can be resumed: what it reads is pinned. One that ends before cannot: its
tails may be recycled; its id is never used again (hazard 92).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from icestream import errors, limits
from icestream.backup import backup_layout as layout
from icestream.backup import seed_manifest, table_view
from icestream.backup.backup_lock import LockOptions, check_lockable, lock_objects, locked_names, put_locked
from icestream.backup.backup_root import (
    CREATED_DURING_BACKUP,
    FORMAT_VERSION,
    BackupBegin,
    BackupRoot,
    EncryptionNote,
    IncompleteShard,
    Kind,
    LeftOutTopic,
    ListRef,
    LockNote,
    MissingManifest,
    NodeCut,
    ObjectRef,
    SeedManifests,
    ShardCut,
    TableCut,
    TailRef,
    TopicCut,
    digest_of_objects,
    encode_document,
)
from icestream.backup.encryption import ALGORITHM
from icestream.backup.erased_ledger import ErasedLedger, put_ledger
from icestream.backup.file_copy import FileCopier, FileCopy, SourceFile, SourceFiles, run_bounded
from icestream.backup.inventory_table import update_inventory
from icestream.backup.node_client import HeldNode, ListedTable, NodeClient, NodeEnds
from icestream.backup.object_list import ObjectRow, encode_list, object_row
from icestream.backup.object_upload import ObjectUpload
from icestream.backup.recorded_topics import RecordedTopic, erased_topics, recorded_logs, recorded_topics
from icestream.backup.seed_manifest import SeedOptions
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.tail_object import encode_tail
from icestream.catalog.catalog_holds import BACKUP_TAG
from icestream.catalog.operations.file_rules import refused_file
from icestream.catalog.operations.table_places import is_in_one_of, is_own, own_places
from icestream.catalog.topic_rules.snapshot_progress import snapshot_progress
from icestream.catalogs.object_lock import ObjectLocks, ObjectRetention
from icestream.catalogs.table_catalog import CommitDone, LoadedTable, TableCatalog, TableChange
from icestream.iceberg import relocation
from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import normalize, normalize_or_none
from icestream.iceberg.manifests import (
    DATA_CONTENT,
    POSITION_DELETES_CONTENT,
    ManifestEntry,
    decode_manifest_list,
    live_entries,
)
from icestream.iceberg.table_metadata import load as load_table
from icestream.iceberg.values import Object
from icestream.metadata.snapshot import load_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.model.shard import ShardKey
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.wal.checkpoint import decode_checkpoint
from icestream.wal.state import LogState
from icestream.wal.tail import SectionRead

_log = get_logger("backup")
_PIN_ATTEMPTS: Final = 5
_ELSEWHERE: Final = "its log is on this node, which was not asked: what is in no table yet is missing"


class BackupEffect(StrEnum):
    """The external effects of a run, in order; tests stop a run before each."""

    BEGIN = "begin"
    HOLD = "hold"
    PIN = "pin"
    TAG = "tag"
    CUT = "cut"
    TAIL = "tail"
    FREEZE = "freeze"
    PROGRESS = "progress"
    COPY = "copy"
    MANIFEST = "manifest"
    VIEW = "view"
    LIST = "list"
    LOCK = "lock"
    ROOT = "root"
    INVENTORY = "inventory"
    RELEASE = "release"


class BulkCopy(NamedTuple):
    """What copies the files of a large backup."""

    copier: FileCopier
    files_min: int


class BackupPlan(msgspec.Struct, frozen=True):
    """What is to be backed up."""

    id: str
    kind: Kind = "copy"
    topics: list[str] = []  # patterns of names; empty: all
    parent: str | None = None
    instance: str = ""
    version: str = ""
    lock: LockOptions | None = None


class CutRecord(msgspec.Struct, frozen=True):
    """The cut as it is recorded: all that the rest of the run needs."""

    plan: BackupPlan
    begun_ms: int
    cut_ms: int
    begin_revision: int
    revision: int
    cluster: str
    metadata: ObjectRef
    nodes: list[NodeCut]
    topics: list[TopicCut]
    incomplete: list[IncompleteShard]
    left_out: list[LeftOutTopic]
    rows: list[list[Any]]
    frozen_ms: int = 0

    @property
    def owner(self) -> str:
        """Whose pins it has: the cluster, or the log of a single node, whose cluster has no name (ADR 115)."""
        return self.cluster or self.nodes[0].log_id


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch of copied files, and what became of its manifest."""

    rows: list[list[Any]]
    written: int = 0
    missing: list[MissingManifest] = []
    written_ms: int = 0


@dataclass(slots=True)
class Progress:
    """How far a run is. `phase` is one of cut, copy, finish, done."""

    phase: str = "cut"
    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0


@dataclass(slots=True)
class _Table:
    """A pinned table."""

    topic: ListedTable
    loaded: LoadedTable
    snapshot: Object
    committed: dict[int, int]
    is_known: bool


@dataclass(slots=True)
class _ViewDeletes:
    """The position deletes of a view, by their old paths: those that were written anew, and those that it has not,
    because the table has none of the files that they name."""

    names: dict[str, str] = field(default_factory=dict)
    files: dict[str, relocation.RelocatedFile] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _CopyProgress:
    """What of the copy is done."""

    rows: list[ObjectRow] = field(default_factory=list)
    by_source: dict[str, ObjectRow] = field(default_factory=dict)
    batches: int = 0
    written: int = 0
    missing: list[MissingManifest] = field(default_factory=list)

    def add(self, rows: Iterable[ObjectRow]) -> None:
        for row in rows:
            self.rows.append(row)
            if row.source:
                self.by_source[row.source] = row


class BackupRun:
    """Makes one backup."""

    def __init__(
        self,
        node: NodeClient,
        catalog: TableCatalog,
        source: SourceFiles,
        upload: ObjectUpload,
        clock: Clock,
        plan: BackupPlan,
        seed: SeedOptions,
        progress: Progress | None = None,
        on_effect: Callable[[BackupEffect], None] = lambda _: None,
        bulk: BulkCopy | None = None,
        *,
        is_foreign: bool = False,
    ) -> None:
        """`seed`: the settings of the manifests, which this run keeps whatever changes meanwhile (B-13). `bulk`: copies
        the files of a backup that has at least so many; None: the threads of `upload` copy them all. `is_foreign`: the
        tables are in another catalog than ours, which knows no holds: pins are looked at after each batch of files."""
        self._node = node
        self._catalog = catalog
        self._source = source
        self._copier: FileCopier | None = None
        self._bulk = bulk
        self._is_foreign = is_foreign
        self._upload = upload
        self._target = upload.target
        self._stored = StoredBackups(upload.target, upload.key)
        self._clock = clock
        self._plan = plan
        self._seed = seed
        self.progress = progress or Progress()
        self._on_effect = on_effect
        self._copied = _CopyProgress()
        self._batch: list[ObjectRow] = []
        self._cut: CutRecord | None = None
        self._locks: ObjectLocks | None = None
        self._places: dict[int, list[str]] | None = None  # of the tables of the cut, by topic id, once they are needed

    @property
    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1_000

    @property
    def _key_id(self) -> str:
        return self._upload.key.id if self._upload.key is not None else ""

    # --- the order ---

    async def run(self) -> BackupRoot:
        """Makes the backup; returns its root. After an error before the cut was recorded nothing is held any more."""
        if self._seed.enable:
            seed_manifest.check_options(self._seed)
        await self._check_lock()
        parent = await self._stored.rows_of(self._plan.parent) if self._plan.parent else []
        try:
            self._cut = await self._make_cut()
        except Exception:
            await self._release_pins()
            raise
        self._copied.add(ObjectRow._make(row) for row in self._cut.rows)
        return await self._complete(parent)

    async def resume(self) -> BackupRoot:
        """Continues the backup of this id. Raises InvalidInput if its cut was not recorded, or if it is complete, and
        ConfigurationError with another key than that of its begin."""
        root = await self._stored.root_or_none(self._plan.id)
        data = await self._target.get(layout.progress_name(self._plan.id, 0))
        if data is None:
            if root is not None:
                raise errors.InvalidInput(f"backup {self._plan.id} is complete", hint="there is nothing to resume")
            raise errors.InvalidInput(
                f"backup {self._plan.id} ended before its cut was recorded", hint="begin another backup"
            )
        self._cut = msgspec.json.decode(data, type=CutRecord)
        self._plan = self._cut.plan
        self._copied.add(ObjectRow._make(row) for row in self._cut.rows)
        number = 1
        while (data := await self._target.get(layout.progress_name(self._plan.id, number))) is not None:
            record = msgspec.json.decode(data, type=BatchRecord)
            self._copied.add(ObjectRow._make(row) for row in record.rows)
            self._copied.written += record.written
            self._copied.missing += record.missing
            number += 1
        self._copied.batches = number - 1
        # The record does not tell which of them were in the target before this run, so all of them count as reused.
        self._upload.reused |= {row.path for row in self._copied.rows if layout.digest_of_object(row.path) is not None}
        if root is not None:  # the run ended behind it: the pins are still there
            return await self._finish(root)
        if (begun_with := self._cut.metadata.key_id) != self._key_id:
            raise errors.ConfigurationError(
                f"backup {self._plan.id} was begun with {_key_text(begun_with)}, not {_key_text(self._key_id)}",
                hint="resume it with the key of its begin, or begin another backup",
            )
        await self._check_lock()
        return await self._complete(await self._rows_of_parent())

    async def _check_lock(self) -> None:
        """Raises ConfigurationError if the backup is to be locked, and its target cannot do that."""
        if self._plan.lock is not None:
            self._locks = await check_lockable(self._target, self._plan.kind)

    async def _rows_of_parent(self) -> list[ObjectRow]:
        """The rows of the parent; none if it was deleted meanwhile."""
        parent = self._plan.parent
        root = await self._stored.root_or_none(parent) if parent else None
        return [] if root is None else [*await self._stored.object_rows(root)]

    def _is_reusable(self, row: ObjectRow) -> bool:
        """Whether an object of the parent can be one of this backup: of a file of a table, in the target, and under the
        key of the run. A plain one would outlive its parent in an encrypted backup, one of another key could not be
        opened. A reference backup names files of the warehouse, which are no objects, and takes over none itself: its
        files of deletes name those of the warehouse."""
        if self._plan.kind == "reference" or row.is_original:
            return False
        return bool(row.source) and row.role in ("data", "deletes") and row.key_id == self._key_id

    async def _complete(self, parent: Sequence[ObjectRow]) -> BackupRoot:
        assert self._cut is not None
        self.progress.phase = "copy"
        unchanged = {row.source: row for row in parent if self._is_reusable(row)}
        if self._seed.enable and not self._copied.batches:
            # Tails, checkpoint and metadata store: uploaded with the cut, whose record has their rows.
            await self._record_batch([ObjectRow._make(row) for row in self._cut.rows], [])
        files = sum(topic.table.files for topic in self._cut.topics if topic.table is not None)
        if self._bulk is not None and files - len(unchanged) >= self._bulk.files_min:
            self._copier = self._bulk.copier
        else:
            self._copier = FileCopy(self._upload, self._source)
        for topic in self._cut.topics:
            if topic.table is not None:
                await self._copy_table(topic, topic.table, unchanged)
        await self._flush()
        self.progress.phase = "finish"
        if self._is_foreign and self._plan.kind == "reference":
            # What was pinned first may be gone by now, and the backup has no copies.
            for topic in self._cut.topics:
                if topic.table is not None:
                    await self._check_pin(topic.table)
        # Last of all objects: without a root there is no backup, so one that was cut off can only be resumed.
        return await self._finish(await self._write_root())

    async def _finish(self, root: BackupRoot) -> BackupRoot:
        """What comes behind the root. Progress is removed last: as long as it is there, a resumed run does this."""
        self.progress.phase = "finish"
        await self._check_reused()
        self._on_effect(BackupEffect.INVENTORY)
        await update_inventory(self._target, self._stored, self._now_ms)
        self._on_effect(BackupEffect.RELEASE)
        if root.kind == "copy":  # a reference backup needs the files of the tables as long as it exists
            await self._release(root.topics)
        await self._stored.remove_progress(self._plan.id)
        await self._finish_others()
        await self._target.sweep_spool(self._now_ms - limits.BACKUP_ABANDONED_MS)
        self.progress.phase = "done"
        metrics.BACKUPS.labels(root.state).inc()
        _log.info("backup complete", id=root.id, state=root.state, files=root.files, bytes=root.bytes)
        return root

    async def _finish_others(self) -> None:
        """Gives back the pins of backups of this cluster whose runs ended between their root and that: a backup that is
        listed as complete is not resumed, and its pins would keep files of tables until it is deleted."""
        for backup_id in await self._stored.half_finished():
            data = await self._target.get(layout.progress_name(backup_id, 0))
            cut = None if data is None else msgspec.json.decode(data, type=CutRecord)
            if cut is None or self._cut is None or cut.owner != self._cut.owner:
                continue
            try:
                await self._finish_other(backup_id, cut)
            except errors.IcestreamError as error:  # this backup has its root: it is complete whatever becomes of them
                _log.warning(
                    "pins of another backup not given back, the next one tries", id=backup_id, reason=str(error)
                )

    async def _finish_other(self, backup_id: str, cut: CutRecord) -> None:
        for topic in cut.topics:
            if topic.table is not None and cut.plan.kind == "copy":
                identifier = Identifier(tuple(topic.table.namespace), topic.table.name)
                await release_pin(self._node.of(backup_id), self._catalog, backup_id, identifier, topic.table.uuid)
        await self._stored.remove_progress(backup_id)

    # --- the cut ---

    async def _make_cut(self) -> CutRecord:
        self._on_effect(BackupEffect.HOLD)
        node_state = await self._node.hold()
        begun_ms = self._now_ms
        self._on_effect(BackupEffect.BEGIN)
        await self._begin(node_state, begun_ms)
        async with self._renewing():
            # Tables first, then the ends of the log: what the pipeline commits in between is in the tails, too. In the
            # other order a pinned table could have rows beyond the end of its shard (ADR 71).
            tables = {table.topic.topic_id: table async for table in self._pin_tables()}
            self._on_effect(BackupEffect.CUT)
            ends = await self._node.cut()
            checkpoint = b"".join(await self._node.part("checkpoint", ends.checkpoint_bytes))
            log = decode_checkpoint(checkpoint).state
            cut = await self._upload_cut(node_state, ends, checkpoint, log, tables, begun_ms)
            # What the backup left out, such as the table of a deleted topic, is in no root that gives its pins back.
            for topic_id in tables.keys() - {topic.id for topic in cut.topics}:
                topic = tables[topic_id].topic
                await self._unpin(topic.namespace, topic.name, topic.uuid)
        self._on_effect(BackupEffect.PROGRESS)
        await self._target.put_new(layout.progress_name(self._plan.id, 0), msgspec.json.encode(cut))
        # It can be resumed from here on, so its pins stay whatever fails. The hold on the log ends by itself.
        with contextlib.suppress(errors.IcestreamError):
            await self._node.end()
        return cut

    async def _begin(self, node_state: HeldNode, begun_ms: int) -> None:
        begin = BackupBegin(
            FORMAT_VERSION, self._plan.id, self._plan.kind, self._plan.parent, self._plan.topics, begun_ms,
            node_state.revision, node_state.cluster, node_state.node, self._key_id, node_state.log_id,
        )  # fmt: skip
        await self._upload.put_document(layout.begin_name(self._plan.id), encode_document(begin))

    @contextlib.asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        """Keeps the hold on the log alive while the cut is made."""

        async def renew() -> None:
            while True:
                await self._clock.sleep(limits.BACKUP_RENEW_SECONDS)
                await self._node.hold()

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _is_selected(self, topic: str) -> bool:
        return not self._plan.topics or any(fnmatchcase(topic, pattern) for pattern in self._plan.topics)

    async def _pin_tables(self) -> AsyncIterator[_Table]:
        async for topic in self._node.tables():
            if self._is_selected(topic.topic) and (table := await self._pin_table(topic)) is not None:
                yield table

    async def _pin_table(self, topic: ListedTable) -> _Table | None:
        """Holds and tags the current snapshot of a table. None if it has none, or if the table is gone."""
        identifier, tag = Identifier(topic.namespace, topic.name), f"{BACKUP_TAG}{self._plan.id}"
        for _ in range(_PIN_ATTEMPTS):
            try:
                loaded = await self._catalog.load(identifier)
            except (errors.UnknownTable, errors.UnknownNamespace):
                return None
            snapshot_id = loaded.current_snapshot_id
            if loaded.uuid is None or loaded.uuid.lower() != topic.uuid.lower() or snapshot_id is None:
                return None
            # The hold first: between tag and hold another engine could remove the tag and expire the snapshot.
            self._on_effect(BackupEffect.PIN)
            await self._node.pin(topic.uuid, snapshot_id)
            self._on_effect(BackupEffect.TAG)
            change = TableChange(
                [{"type": "assert-table-uuid", "uuid": loaded.uuid}],
                [{"action": "set-snapshot-ref", "ref-name": tag, "type": "tag", "snapshot-id": snapshot_id}],
            )
            if not isinstance(await self._catalog.commit(identifier, change), CommitDone):
                continue
            pinned = await self._catalog.load(identifier)
            if (pinned.metadata.get("refs") or {}).get(tag, {}).get("snapshot-id") != snapshot_id:
                continue
            table = _pinned(topic, pinned, snapshot_id)
            if table.is_known or pinned.committed is None:
                return table
            # Engines expired the snapshots that say what the table has. The catalog says it of the current one.
            if pinned.current_snapshot_id == snapshot_id:
                table.committed, table.is_known = dict(pinned.committed), True
                return table
        raise errors.StorageUnavailable(
            f"table {identifier} changed {_PIN_ATTEMPTS} times while it was pinned", hint="begin the backup again"
        )

    async def _upload_cut(
        self,
        node_state: HeldNode,
        ends: NodeEnds,
        checkpoint: bytes,
        log: LogState,
        tables: Mapping[int, _Table],
        begun_ms: int,
    ) -> CutRecord:
        rows: list[ObjectRow] = []
        reference = await self._upload.upload(lambda: [checkpoint], "checkpoint", ".checkpoint")
        rows.append(self._row(reference, "checkpoint"))
        node = NodeCut(node_state.node, ends.log_id, ends.lsn, reference)
        self._on_effect(BackupEffect.FREEZE)
        elsewhere = [table for table in tables.values() if table.topic.topic_id not in log.topics]
        # Cursors of topics of other nodes are cut to what the tables have: their logs are not in this backup.
        table_ends = [(table.topic.topic_id, *end) for table in elsewhere for end in table.committed.items()]
        revision, size = await self._node.freeze(table_ends)
        frozen_ms = self._now_ms + 1  # no change of this millisecond is missed by a restore to a later one
        pieces = await self._node.part("metadata", size)
        metadata = await self._upload.upload(lambda: pieces, "metadata", ".metadata")
        rows.append(self._row(metadata, "metadata"))
        state = load_snapshot(io.BytesIO(b"".join(pieces)).read)
        recorded = recorded_topics(state)
        topics, left_out = [], []
        incomplete: list[IncompleteShard] = []
        erased = await self._upload_erased(state, ends.log_id, rows, incomplete)
        for topic in log.topics.values():
            if not self._is_selected(topic.name):
                left_out.append(LeftOutTopic(topic.name, "not selected"))
                continue
            table = tables.get(topic.id)
            # Logs of MQTT sessions have no record. A log remembers deleted topics.
            if topic.has_table and topic.id not in recorded:
                if any(shard.floor < shard.synced for key, shard in log.shards.items() if key.topic_id == topic.id):
                    left_out.append(LeftOutTopic(topic.name, "deleted"))
                continue
            if table is not None and not table.is_known:
                incomplete.append(
                    IncompleteShard(
                        topic.name, 0, node_state.node, "the snapshots of its table do not say what it holds"
                    )
                )
            shards = []
            for key in sorted(key for key in log.shards if key.topic_id == topic.id):
                shard, missing = await self._cut_shard(key, topic.name, node_state.node, ends, log, table, rows)
                shards.append(shard)
                incomplete += missing
            table_cut = await self._table_cut(table, rows) if table is not None else None
            topics.append(TopicCut(topic.id, topic.incarnation, topic.name, table_cut, shards, erased.get(topic.id)))
        for recorded_topic in recorded.values():
            if recorded_topic.id in log.topics:
                continue
            if not self._is_selected(recorded_topic.name):
                left_out.append(LeftOutTopic(recorded_topic.name, "not selected"))
            elif recorded_topic.node == node_state.node:
                left_out.append(LeftOutTopic(recorded_topic.name, CREATED_DURING_BACKUP))
            else:
                table = tables.get(recorded_topic.id)
                table_cut = await self._table_cut(table, rows) if table is not None else None
                cut_elsewhere = _cut_elsewhere(recorded_topic, table, table_cut)
                topics.append(msgspec.structs.replace(cut_elsewhere, erased=erased.get(recorded_topic.id)))
                incomplete += [
                    IncompleteShard(recorded_topic.name, shard, recorded_topic.node, _ELSEWHERE)
                    for shard in range(recorded_topic.shards)
                ]
        if self._plan.topics and not topics:
            raise errors.UnknownTopic(
                f"no topic matches {', '.join(self._plan.topics)[:200]}", hint="names begin with /NAMESPACE/"
            )
        return CutRecord(
            self._plan, begun_ms, ends.cut_ms, node_state.revision, revision, node_state.cluster, metadata, [node],
            topics, incomplete, left_out, [list(row) for row in rows], frozen_ms,
        )  # fmt: skip

    async def _upload_erased(
        self, state: StateMachine, log_id: str, rows: list[ObjectRow], incomplete: list[IncompleteShard]
    ) -> dict[int, ObjectRef]:
        """Uploads the erased offsets of the chosen topics, by topic id, and brings the ledger of the target up to date
        for all. Those of the frozen store: a pinned table may still have rows that were erased since."""
        references: dict[int, ObjectRef] = {}
        logs = sorted({log_id, *recorded_logs(state)})
        for topic, record, is_deleted in erased_topics(state):
            source = normalize(record.offsets)
            try:
                data = b"".join(self._source.chunks(source))
                if hashlib.sha256(data).hexdigest() != record.sha256:
                    raise errors.DecodeError(f"{source} is not the recorded file of erased offsets")
            except (errors.IcestreamError, OSError) as error:
                if not is_deleted:  # else the offsets went with its table
                    reason = f"its erased offsets cannot be read: {error}"
                    incomplete.append(IncompleteShard(topic.name, 0, topic.node, reason))
                continue
            ledger = ErasedLedger(log_id, topic.id, topic.name, topic.restored_from, data, logs=logs)
            await put_ledger(self._target, ledger)
            if not is_deleted and self._is_selected(topic.name):
                reference = await self._upload.upload(lambda data=data: [data], "erased", ".erased")  # type: ignore[misc]
                references[topic.id] = reference
                rows.append(self._row(reference, "erased", topic_id=topic.id, topic=topic.name))
        return references

    async def _cut_shard(
        self,
        key: ShardKey,
        topic: str,
        node: str,
        ends: NodeEnds,
        log: LogState,
        table: _Table | None,
        rows: list[ObjectRow],
    ) -> tuple[ShardCut, list[IncompleteShard]]:
        """Uploads the tails of a shard."""
        shard = log.shards[key]
        gaps = sorted((gap.start, gap.end) for gap in log.gaps.get(key, ()) if gap.start < shard.synced)
        # A topic without a table, such as the state of MQTT sessions, needs nothing below its floor.
        committed = table.committed.get(key.shard, 0) if table is not None else 0
        if table is None and not shard.topic.has_table:
            committed = shard.floor
        start = _step_over(gaps, committed)
        earliest = ends.earliest.get(key, 0)
        incomplete = []
        if start < min(earliest, shard.synced):
            incomplete.append(IncompleteShard(topic, key.shard, node, f"the log begins at {earliest}, not {start}"))
            start = earliest
        tails = []
        if start < shard.synced:
            self._on_effect(BackupEffect.TAIL)
            async for reference, first, end, times in self._upload_tails(key, start, shard.synced):
                tails.append(TailRef(first, end, reference))
                rows.append(
                    self._row(
                        reference,
                        "tail",
                        topic_id=key.topic_id,
                        topic=topic,
                        shard=key.shard,
                        offsets=(first, end),
                        rows=end - first,
                        times_us=times,
                    )
                )
        cut = ShardCut(
            key.shard, node, shard.epoch, committed, shard.synced, shard.reserved, shard.append_time_us, gaps, tails
        )
        return cut, incomplete

    async def _upload_tails(
        self, key: ShardKey, start: int, end: int
    ) -> AsyncIterator[tuple[ObjectRef, int, int, tuple[int, int]]]:
        """Uploads [start, end) of a shard; yields each object, its offsets and the first and last append time."""
        sections: list[SectionRead] = []
        size, first = 0, start
        async for section in self._node.tail(key, start, end):
            sections.append(section)
            size += len(section.body)
            if size >= limits.BACKUP_TAIL_OBJECT_BYTES:
                stop = min(section.base_offset + section.rows, end)
                yield await self._upload_tail(key, sections), first, stop, _times(sections)
                sections, size, first = [], 0, stop
        if sections:
            yield await self._upload_tail(key, sections), first, end, _times(sections)

    async def _upload_tail(self, key: ShardKey, sections: list[SectionRead]) -> ObjectRef:
        return await self._upload.upload(lambda: encode_tail(key, sections), "tail", ".wal")

    async def _table_cut(self, table: _Table, rows: list[ObjectRow]) -> TableCut:
        """The entry of a table in the root; its metadata file is uploaded."""
        document = orjson.dumps(table.loaded.metadata)
        reference = await self._upload.upload(lambda: [document], "table-metadata", ".json")
        source = table.loaded.metadata_location or ""
        rows.append(
            self._row(
                reference,
                "table-metadata",
                topic_id=table.topic.topic_id,
                topic=table.topic.topic,
                source=source,
                snapshot_id=table.snapshot["snapshot-id"],
            )
        )
        view = ""
        if self._upload.key is None:
            folder = layout.view_folder(self._plan.id, table.topic.topic_id)
            view = f"{folder}/metadata/{table_view.METADATA_FILE}"
        summary = table.snapshot.get("summary") or {}
        return TableCut(
            list(table.topic.namespace), table.topic.name, table.topic.uuid, table.snapshot["snapshot-id"],
            int(table.loaded.metadata.get("format-version", 2)), source, reference, view,
            int(summary.get("total-data-files", 0)), int(summary.get("total-records", 0)),
            int(summary.get("total-files-size", 0)),
        )  # fmt: skip

    def _row(self, reference: ObjectRef, role: str, **columns: Any) -> ObjectRow:
        return object_row(reference, backup_id=self._plan.id, role=role, added_ms=self._now_ms, **columns)

    # --- the copy ---

    async def _copy_table(self, topic: TopicCut, table: TableCut, unchanged: Mapping[str, ObjectRow]) -> None:
        """Copies the files of a pinned table, and writes its view."""
        await self._check_pin(table)
        document = orjson.loads(await self._stored.content(table.metadata, "table-metadata"))
        snapshot = next(entry for entry in document["snapshots"] if entry["snapshot-id"] == table.snapshot_id)
        bounds = _offset_columns(document)
        list_row = await self._copy_metadata_file(topic, table, snapshot["manifest-list"])
        list_data = await self._stored.content(list_row.reference, "table-metadata")
        listed = decode_manifest_list(snapshot["manifest-list"], list_data)
        own = own_places(document["location"], document.get("properties") or {})
        await self._check_places(topic, own, [manifest.path for manifest in listed])
        manifests: list[relocation.SourceManifest] = []
        for manifest in listed:
            path = manifest.path
            row = await self._copy_metadata_file(topic, table, path)
            data = await self._stored.content(row.reference, "table-metadata")
            manifests.append(relocation.SourceManifest(path, data, manifest.record))
            entries = live_entries(path, data)
            await self._check_places(topic, own, [entry.file_path for entry in entries])
            self.progress.files_total += len(entries)
            self.progress.bytes_total += sum(entry.file_size_bytes for entry in entries)
            await self._copy_entries(topic, table, entries, bounds, unchanged)
        await self._flush()
        await self._check_pin(table)
        if table.view:
            await self._write_view(topic, document, snapshot, list_data, manifests)

    async def _check_places(self, topic: TopicCut, own: Sequence[str], paths: Iterable[str]) -> None:
        """Raises TableUnreadable for a file in a place of another topic's table: a manifest that was replaced after its
        commit can name it, and a restore would give it to the readers of this topic (hazard 109)."""
        elsewhere = [path for path in paths if not is_own(path, own)]
        if not elsewhere:
            return  # almost always, so the places of others need not be read
        others = await self._places_of_others(topic.id)
        for path in elsewhere:
            location = normalize_or_none(path)
            if location is None or is_in_one_of(location, others):
                raise refused_file(path)

    async def _places_of_others(self, topic_id: int) -> frozenset[str]:
        assert self._cut is not None
        if self._places is None:
            self._places = {}
            for topic in self._cut.topics:
                if topic.table is not None:
                    document = orjson.loads(await self._stored.content(topic.table.metadata, "table-metadata"))
                    self._places[topic.id] = own_places(document["location"], document.get("properties") or {})
        return frozenset(place for other, places in self._places.items() if other != topic_id for place in places)

    async def _copy_entries(
        self,
        topic: TopicCut,
        table: TableCut,
        entries: Sequence[ManifestEntry],
        bounds: Mapping[str, int],
        unchanged: Mapping[str, ObjectRow],
    ) -> None:
        """Copies the files of a manifest in batches, several files at once."""
        for batch in _batches(entries):
            await self._copy_batch(topic, table, batch, bounds, unchanged)
            if self._is_foreign:
                await self._check_pin(table)
            self.progress.files += len(batch)
            self.progress.bytes += sum(entry.file_size_bytes for entry in batch)
            if len(self._batch) >= limits.BACKUP_BATCH_FILES or _copied_size(self._batch) >= limits.BACKUP_BATCH_BYTES:
                await self._flush()

    async def _copy_batch(
        self,
        topic: TopicCut,
        table: TableCut,
        entries: Sequence[ManifestEntry],
        bounds: Mapping[str, int],
        unchanged: Mapping[str, ObjectRow],
    ) -> None:
        """Copies files unless that was done before; in a reference backup their rows name the originals."""
        entries = [entry for entry in entries if entry.file_path not in self._copied.by_source]
        references = await self._stored_before(entries, unchanged)
        missing = [entry for entry in entries if entry.file_path not in references]
        if self._plan.kind == "reference":
            self._on_effect(BackupEffect.COPY)
            for entry in missing:
                size = entry.file_size_bytes
                references[entry.file_path] = ObjectRef(normalize(entry.file_path), size, "", size, "")
        elif missing:
            files = [
                SourceFile(normalize(entry.file_path), _role_of(entry), entry.file_size_bytes) for entry in missing
            ]
            assert self._copier is not None
            copied = await self._copier.copy(files, lambda: self._on_effect(BackupEffect.COPY))
            references |= {entry.file_path: file.reference for entry, file in zip(missing, copied, strict=True)}
        for entry in entries:
            offsets, shard, times = _bounds_of(entry, bounds)
            row = self._row(
                references[entry.file_path], _role_of(entry), topic_id=topic.id, topic=topic.name, shard=shard,
                offsets=offsets, rows=entry.record_count, times_us=times, source=entry.file_path,
                snapshot_id=table.snapshot_id,
            )  # fmt: skip
            self._copied.add([row])
            self._batch.append(row)

    async def _stored_before(
        self, entries: Sequence[ManifestEntry], unchanged: Mapping[str, ObjectRow]
    ) -> dict[str, ObjectRef]:
        """The objects of files that the parent has, unless they are gone."""
        references: dict[str, ObjectRef] = {}

        async def look(path: str, former: ObjectRow) -> None:
            if await self._target.size(former.path) == former.size:
                references[path] = former.reference
                self._upload.reused.add(former.path)

        calls = [
            partial(look, entry.file_path, former)
            for entry in entries
            if (former := unchanged.get(entry.file_path)) is not None
        ]
        await run_bounded(calls, limits.BACKUP_UPLOADS_AT_ONCE)
        return references

    async def _copy_metadata_file(self, topic: TopicCut, table: TableCut, location: str) -> ObjectRow:
        """Copies a manifest or a manifest list unless that was done before, also in a reference backup."""
        if (done := self._copied.by_source.get(location)) is not None:
            return done
        path = normalize(location)
        reference = await self._upload.upload(
            lambda: self._source.chunks(path), "table-metadata", layout.suffix_of(location)
        )
        row = self._row(
            reference, "table-metadata", topic_id=topic.id, topic=topic.name, source=location,
            snapshot_id=table.snapshot_id,
        )  # fmt: skip
        self._copied.add([row])
        self._batch.append(row)
        return row

    async def _flush(self) -> None:
        """Writes the manifest of a batch (seed 003) and its progress. The files of the batch are durable (B-10)."""
        batch, self._batch = self._batch, []
        if batch:
            await self._record_batch(batch, batch)

    async def _record_batch(self, batch: Sequence[ObjectRow], rows: Sequence[ObjectRow]) -> None:
        """`rows`: those that no earlier record has."""
        written, missing = await self._write_manifest(batch) if self._seed.enable else (0, [])
        self._copied.written += written
        self._copied.missing += missing
        self._copied.batches += 1
        record = BatchRecord([list(row) for row in rows], written, missing, self._now_ms)
        name = layout.progress_name(self._plan.id, self._copied.batches)
        self._on_effect(BackupEffect.PROGRESS)
        await self._target.put_new(name, msgspec.json.encode(record))

    async def _write_manifest(self, batch: Sequence[ObjectRow]) -> tuple[int, list[MissingManifest]]:
        """Writes one manifest. A failure is a warning and an entry of the root, unless `strict` (B-11)."""
        assert self._cut is not None
        started_ns, seq, name, is_written = self._clock.monotonic_ns(), -1, "", False
        self._on_effect(BackupEffect.MANIFEST)
        try:
            data = seed_manifest.encode_manifest(
                self._seed, batch, backup_id=self._plan.id, batch_id=f"{self._plan.id}/{self._copied.batches + 1}",
                generated_ms=self._now_ms, start_ms=self._cut.begun_ms, end_ms=self._cut.cut_ms,
                begin_revision=self._cut.begin_revision,
            )  # fmt: skip
            while not is_written:
                seq = await self._node.manifest_number()
                name = seed_manifest.manifest_name(self._seed, self._cut.cut_ms, seq)
                # Taken by another cluster that counts its own numbers: the next one is tried, nothing is replaced.
                with contextlib.suppress(errors.AlreadyExists):
                    await self._upload.put_document(name, data)
                    is_written = True
        except (errors.IcestreamError, OSError) as error:
            if self._seed.strict:
                raise
            metrics.BACKUP_MANIFESTS.labels("failed").inc()
            _log.warning("backup manifest not written", id=self._plan.id, seq=seq, reason=str(error))
            return 0, [MissingManifest(seq, str(error))]
        metrics.BACKUP_MANIFESTS.labels("written").inc()
        elapsed_ms = (self._clock.monotonic_ns() - started_ns) // 1_000_000
        _log.info("backup manifest written", path=name, files=len(batch), bytes=_size(batch), ms=elapsed_ms)
        return 1, []

    # --- views ---

    async def _write_view(
        self,
        topic: TopicCut,
        document: Object,
        snapshot: Object,
        list_data: bytes,
        manifests: Sequence[relocation.SourceManifest],
    ) -> None:
        self._on_effect(BackupEffect.VIEW)
        folder = layout.view_folder(self._plan.id, topic.id)
        deletes = await self._rewrite_deletes(topic, folder, manifests)

        def new_path(path: str) -> str:
            if path in deletes.names:
                return self._target.location(deletes.names[path])
            return self._location(self._copied.by_source[path])

        records = []
        for number, manifest in enumerate(manifests):
            name = f"{folder}/metadata/manifest-{number}.avro"
            rewritten = relocation.rewrite_manifest(
                manifest, self._target.location(name), new_path, deletes.files, deletes.left_out
            )
            await self._put_view_file(topic, name, rewritten.data)
            records.append(rewritten.record)
        list_file = f"{folder}/metadata/{table_view.LIST_FILE}"
        await self._put_view_file(topic, list_file, relocation.rewrite_list(list_file, list_data, records))
        metadata = table_view.view_metadata(
            document, snapshot, self._plan.id, topic.id, self._target.location(folder), self._target.location(list_file)
        )
        await self._put_view_file(topic, f"{folder}/metadata/{table_view.METADATA_FILE}", metadata)

    def _location(self, row: ObjectRow) -> str:
        return row.path if ":" in row.path else self._target.location(row.path)

    async def _rewrite_deletes(
        self, topic: TopicCut, folder: str, manifests: Sequence[relocation.SourceManifest]
    ) -> _ViewDeletes:
        """Writes position deletes anew with the paths of the backup. In a reference backup, whose data files keep their
        paths, nothing is rewritten."""
        deletes = _ViewDeletes()
        for manifest in manifests:
            for entry in live_entries(manifest.path, manifest.data):
                if entry.content != POSITION_DELETES_CONTENT:
                    continue
                if (referenced := entry.referenced_data_file) is not None and self._location_or_none(
                    referenced
                ) is None:
                    deletes.left_out.add(entry.file_path)
                    continue
                if self._plan.kind == "reference" or entry.file_format != "parquet":
                    continue
                row = self._copied.by_source[entry.file_path]
                data = await self._stored.content(row.reference, "deletes")
                rewritten = table_view.rewrite_position_deletes(data, self._location_or_none)
                if not rewritten.rows:
                    deletes.left_out.add(entry.file_path)
                    continue
                name = f"{folder}/metadata/deletes-{len(deletes.names)}.parquet"
                await self._put_view_file(topic, name, rewritten.data)
                deletes.names[entry.file_path] = name
                deletes.files[entry.file_path] = relocation.RelocatedFile(len(rewritten.data), rewritten.rows)
        return deletes

    def _location_or_none(self, path: str) -> str | None:
        """Where the backup has a file of a table; None for one that is not live: deletes may name it still."""
        row = self._copied.by_source.get(path)
        return None if row is None else self._location(row)

    async def _put_view_file(self, topic: TopicCut, name: str, data: bytes) -> None:
        reference = await self._stored.put_named(name, data)
        self._copied.add([self._row(reference, "view", topic_id=topic.id, topic=topic.name)])

    # --- root and end ---

    async def _write_root(self) -> BackupRoot:
        cut = self._cut
        assert cut is not None
        # Sorted: a resumed run writes the same list.
        rows = sorted(self._copied.rows, key=lambda row: (row.topic_id or 0, row.role, row.path, row.source))
        data = encode_list(rows)
        self._on_effect(BackupEffect.LIST)
        reference = await self._stored.put_list(self._plan.id, data)
        lock = await self._lock(rows, reference.path)
        root = BackupRoot(
            FORMAT_VERSION, self._plan.id, self._plan.kind, self._plan.parent, cut.cluster, self._plan.instance,
            self._plan.version, cut.begun_ms, cut.cut_ms, self._now_ms, cut.begin_revision, cut.revision,
            "incomplete" if cut.incomplete else "complete", cut.incomplete, cut.left_out, cut.metadata, cut.nodes,
            cut.topics, ListRef(reference.path, reference.size, reference.sha256, len(rows)), len(rows),
            sum(row.size for row in rows), sum(row.content_size for row in rows),
            digest_of_objects((row.path, row.sha256, row.size) for row in rows),
            SeedManifests(self._copied.written, self._copied.missing),
            EncryptionNote(self._upload.key.id, ALGORITHM) if self._upload.key is not None else None,
            cut.frozen_ms, cut.nodes[0].log_id, lock,
        )  # fmt: skip
        self._on_effect(BackupEffect.ROOT)
        name, data = layout.root_name(self._plan.id), encode_document(root)
        if lock is None or self._locks is None:
            await self._upload.put_document(name, data)
        else:
            await put_locked(self._target, self._locks, name, data, ObjectRetention(lock.mode, lock.until_ms))
        return root

    async def _lock(self, rows: Iterable[ObjectRow], list_name: str) -> LockNote | None:
        """Locks every object of the backup but its root, those of earlier backups too: no root without its locks."""
        if self._plan.lock is None or self._locks is None:
            return None
        self._on_effect(BackupEffect.LOCK)
        retention = self._plan.lock.retention(self._now_ms)
        await lock_objects(self._locks, locked_names(self._plan.id, rows, list_name), retention)
        return LockNote(retention.mode, retention.until_ms)

    async def _check_reused(self) -> None:
        """Takes the root back and raises Refused if a deletion removed what this run found in the target."""
        for _ in range(limits.BACKUP_DELETION_LOOKS):
            if not (running := await self._stored.deletions()):
                break
            await self._clock.sleep(limits.BACKUP_DELETION_LOOK_SECONDS)
        missing = await self._stored.missing(self._upload.reused)
        if not running and not missing:
            return
        await self._target.remove(layout.root_name(self._plan.id))
        if missing:
            raise errors.Refused(
                f"object {missing[0]} was removed by a deletion while backup {self._plan.id} used it",
                hint="begin another backup",
            )
        raise errors.Refused(
            f"the deletion of backup {running[0]} did not end", hint="delete it again, then resume this backup"
        )

    async def _check_pin(self, table: TableCut) -> None:
        """Raises BackupDamaged if the pin of a table was removed: its files may go (hazard 89)."""
        tag = f"{BACKUP_TAG}{self._plan.id}"
        identifier = Identifier(tuple(table.namespace), table.name)
        try:
            loaded = await self._catalog.load(identifier)
        except (errors.UnknownTable, errors.UnknownNamespace):
            loaded = None
        reference = (loaded.metadata.get("refs") or {}).get(tag, {}) if loaded is not None else {}
        if loaded is None or loaded.uuid != table.uuid or reference.get("snapshot-id") != table.snapshot_id:
            # A dropped table is held: its files stay until the hold ends, and they are what the snapshot names. Another
            # catalog knows no holds.
            if loaded is None and not self._is_foreign:
                return
            raise errors.BackupDamaged(
                f"tag {tag} of table {identifier} is gone: the backup cannot be completed",
                hint="begin another backup; something else removes tags of this table",
            )

    async def _release(self, topics: Sequence[TopicCut]) -> None:
        for topic in topics:
            if topic.table is not None:
                await self._unpin(tuple(topic.table.namespace), topic.table.name, topic.table.uuid)

    async def _unpin(self, namespace: tuple[str, ...], name: str, uuid: str) -> None:
        """Removes hold and tag; the hold first, because the catalog refuses to remove the tag while it exists."""
        await release_pin(self._node, self._catalog, self._plan.id, Identifier(namespace, name), uuid)

    async def _release_pins(self) -> None:
        """Removes the pins of a backup that cannot be resumed, and its hold on the log, as far as that is possible."""
        with contextlib.suppress(errors.IcestreamError):
            await release_pins(self._node, self._catalog, self._plan.id)
        with contextlib.suppress(errors.IcestreamError):
            await self._node.end()


async def release_pins(node: NodeClient, catalog: TableCatalog, backup_id: str) -> None:
    """Removes all holds and tags of a backup. Topics that were deleted meanwhile are not listed: their tables have the
    hold alone, and wait for its end to be purged."""
    async for table in node.tables():
        await release_pin(node, catalog, backup_id, Identifier(table.namespace, table.name), table.uuid)
    await node.unpin_all()


async def release_pin(
    node: NodeClient, catalog: TableCatalog, backup_id: str, identifier: Identifier, uuid: str
) -> None:
    """Removes the hold and the tag of a backup on one table, if they exist."""
    tag = f"{BACKUP_TAG}{backup_id}"
    await node.unpin(uuid)
    try:
        loaded = await catalog.load(identifier)
    except (errors.UnknownTable, errors.UnknownNamespace):
        return
    if tag in (loaded.metadata.get("refs") or {}):
        change = TableChange([], [{"action": "remove-snapshot-ref", "ref-name": tag}])
        outcome = await catalog.commit(identifier, change)
        if not isinstance(outcome, CommitDone):
            _log.warning("tag of a backup not removed", table=str(identifier), tag=tag, reason=outcome.reason)


def _pinned(topic: ListedTable, loaded: LoadedTable, snapshot_id: int) -> _Table:
    table = load_table(loaded.metadata)
    progress = snapshot_progress(table, snapshot_id, topic.topic_id, None)
    snapshot = next(entry for entry in loaded.metadata["snapshots"] if entry["snapshot-id"] == snapshot_id)
    return _Table(topic, loaded, snapshot, dict(progress.last_round.committed), progress.is_known)


def _cut_elsewhere(topic: RecordedTopic, table: _Table | None, table_cut: TableCut | None) -> TopicCut:
    """A topic whose log is on another node: what its table has."""
    committed = table.committed if table is not None else {}
    ends = ((shard, committed.get(shard, 0)) for shard in range(topic.shards))
    shards = [ShardCut(shard, topic.node, 0, end, end, end, 0, [], []) for shard, end in ends]
    return TopicCut(topic.id, topic.id, topic.name, table_cut, shards)


def _step_over(gaps: Sequence[tuple[int, int]], offset: int) -> int:
    for start, end in gaps:
        if start <= offset < end:
            offset = end
    return offset


def _times(sections: Sequence[SectionRead]) -> tuple[int, int]:
    times = [section.append_time_us for section in sections]
    return min(times), max(times)


def _key_text(key_id: str) -> str:
    return f"key {key_id}" if key_id else "no key"


def _size(rows: Sequence[ObjectRow]) -> int:
    return sum(row.size for row in rows)


def _copied_size(rows: Sequence[ObjectRow]) -> int:
    """Without the files that a reference backup leaves in the warehouse."""
    return sum(row.size for row in rows if ":" not in row.path)


def _offset_columns(document: Object) -> dict[str, int]:
    """The field ids of the columns whose bounds the object list shows."""
    schemas = document.get("schemas") or [document["schema"]]
    current = document.get("current-schema-id", 0)
    schema = next((entry for entry in schemas if entry.get("schema-id", 0) == current), schemas[-1])
    return {column["name"]: column["id"] for column in schema["fields"]}


def _role_of(entry: ManifestEntry) -> str:
    return "data" if entry.content == DATA_CONTENT else "deletes"


def _batches(entries: Sequence[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    """Entries in groups of at most BACKUP_BATCH_FILES; one is ended by BACKUP_BATCH_BYTES."""
    batch: list[ManifestEntry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += entry.file_size_bytes
        if len(batch) >= limits.BACKUP_BATCH_FILES or size >= limits.BACKUP_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _bounds_of(
    entry: ManifestEntry, columns: Mapping[str, int]
) -> tuple[tuple[int, int] | None, int | None, tuple[int, int] | None]:
    """Offsets, shard and append times of a file by its bounds; None where it has no bounds or several shards."""
    offsets = _range(entry, columns.get("offset"))
    shards = _range(entry, columns.get("shard"))
    times = _range(entry, columns.get("append_time"))
    shard = shards[0] if shards is not None and shards[0] == shards[1] else None
    return ((offsets[0], offsets[1] + 1) if offsets is not None else None), shard, times


def _range(entry: ManifestEntry, field_id: int | None) -> tuple[int, int] | None:
    low = integer_from_bytes(entry.lower_bounds.get(field_id or 0))
    high = integer_from_bytes(entry.upper_bounds.get(field_id or 0))
    return None if low is None or high is None else (low, high)
