"""A drill: a backup is restored into a broker of its own, and every message compared with the backup (ADR 114).

    1 room        the scratch directory has more free bytes than the backup
    2 restore     an empty broker in a temporary folder gets everything, by the code of `icestream backup restore`
    3 compare     for each shard of each topic: a digest of the live rows, offsets included, as readers read the
                  restored table; and that of the rows of the backup, from its own objects: files without what delete
                  files delete, and tails. Subscriptions by their names and cursors
    4 remove      broker and folder, whatever came before

The two digests share no metadata: those of the restored table are read from the manifests that the restore wrote, those
of the backup from the manifests of the source. What differs, and what cannot be read, is a finding with its name; it
does not end the drill.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from icestream import errors
from icestream.backup.backup_root import BackupRoot, TopicCut
from icestream.backup.drill_report import (
    FORMAT_VERSION,
    DrilledShard,
    DrilledTopic,
    DrillFinding,
    DrillReport,
)
from icestream.backup.object_list import ObjectRow
from icestream.backup.stored_backups import StoredBackups
from icestream.broker import records
from icestream.iceberg import table_metadata
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import decode_manifest_list, live_entries
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.state_machine import StateMachine
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets, decode_erased
from icestream.model.row_digest import RowDigest
from icestream.model.topic_name import TopicName
from icestream.observability.words import counted, size_text
from icestream.pipeline.erasure.restored_rows import unerased_rows, without_erased
from icestream.pipeline.rows.log_sections import sections_of
from icestream.pipeline.rows.topic_rows import Span, topic_rows
from icestream.processes.restore_run import RestoredTopic, RestorePlan, RestoreRun, restorable_topics
from icestream.processes.scratch_broker import ScratchBroker
from icestream.processes.state_restore import RestoredPart, RestoreScope
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, SnapshotFiles, field_ids, files_of, table_columns
from icestream.readers.file_reader import FileReader, rows_of_shard
from icestream.readers.lazy_scanner import file_opener
from icestream.readers.row_group_cache import NoRowGroupCache
from icestream.readers.row_hashes import digest_of
from icestream.readers.sections import SHARD
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.stored_files import OpenFile
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload
from icestream.wal.record_scan import scan_records

ShardDigests = dict[int, RowDigest]
_ROOM_PERCENT: Final = 110  # metadata, and tails that become files
_DAMAGE: Final = (errors.BackupDamaged, errors.TableUnreadable, errors.MetadataFileDamaged, errors.DecodeError)


class BackupDrill:
    """One drill."""

    def __init__(
        self,
        stored: StoredBackups,
        source: Callable[[str], Iterator[bytes]],
        clock: Clock,
        offload: Offload,
        *,
        node: str,
        directory: Path | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
        on_restored: Callable[[ScratchBroker], None] = lambda _: None,
    ) -> None:
        """`source`: reads files of the warehouse, which a reference backup needs. `node`: whose drill it is.
        `directory`: where the scratch broker lies. `on_bytes`: of restored files, then of compared ones. `on_restored`:
        before the comparison."""
        self._stored = stored
        self._source = source
        self._clock = clock
        self._offload = offload
        self._node = node
        self._directory = directory
        self._on_bytes = on_bytes
        self._on_restored = on_restored
        self._findings: list[DrillFinding] = []

    async def run(self, backup_id: str) -> DrillReport:
        """Returns the report, also of a drill that failed. Raises UnknownBackup, Refused without room, and what has
        nothing to do with the backup, such as a target that cannot be reached."""
        started_ms, started_ns = self._now_ms(), self._clock.monotonic_ns()
        restored_ns = compared_ns = started_ns
        restored: list[RestoredTopic] = []
        parts: list[RestoredPart] = []
        topics: list[DrilledTopic] = []
        root = await self._stored.root(backup_id)
        self._check_room(root)
        async with ScratchBroker(self._directory, self._offload) as broker:
            try:
                rows = {(row.topic_id, row.source): row for row in await self._stored.object_rows(root) if row.source}
                cuts = await restorable_topics(self._stored, root)
                restored, parts = await self._restore(broker, root, cuts)
                restored_ns = self._clock.monotonic_ns()
                self._on_restored(broker)
                for cut, topic in zip(cuts, restored, strict=True):
                    topics.append(await self._compare(broker, cut, topic, rows))
                await self._compare_subscriptions(broker, root, cuts)
            except _DAMAGE as error:
                self._findings.append(DrillFinding(backup_id, str(error)))
            compared_ns = self._clock.monotonic_ns()
        for part in parts:
            self._findings += [DrillFinding(part.part, f"was not restored: {text}") for text in part.left_out]
        return DrillReport(
            format_version=FORMAT_VERSION,
            backup=root.id,
            kind=root.kind,
            node=self._node,
            version=_version(),
            started_ms=started_ms,
            ended_ms=self._now_ms(),
            restore_ms=max(0, restored_ns - started_ns) // 1_000_000,
            compare_ms=max(0, compared_ns - restored_ns) // 1_000_000 if restored else 0,
            outcome="failed" if self._findings else "passed",
            messages=sum(topic.messages for topic in topics),
            bytes=sum(topic.bytes for topic in topics),
            topics=topics,
            parts={part.part: part.restored for part in parts},
            findings=self._findings,
            warnings=[
                f"shard {entry.shard} of {entry.topic} is incomplete: {entry.reason}" for entry in root.incomplete
            ],
        )

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1_000

    def _check_room(self, root: BackupRoot) -> None:
        """Raises Refused. A reference backup has no bytes of its own: its tables name what they have."""
        needed = max(root.content_bytes, sum(topic.table.bytes for topic in root.topics if topic.table is not None))
        directory = self._directory or Path(tempfile.gettempdir())
        while not directory.exists():
            directory = directory.parent
        free = shutil.disk_usage(directory).free
        if free * 100 < needed * _ROOM_PERCENT:
            raise errors.Refused(
                f"a drill of backup {root.id} needs {size_text(needed)} in {directory}, {size_text(free)} are free",
                hint="choose another directory with --in, or set backup.drill.directory",
            )

    async def _restore(
        self, broker: ScratchBroker, root: BackupRoot, cuts: Sequence[TopicCut]
    ) -> tuple[list[RestoredTopic], list[RestoredPart]]:
        # As the backup is: what was erased since is in it, and goes with the scratch broker (ADR 124).
        topics = [(cut, TopicName.parse(cut.name)) for cut in cuts]
        plan = RestorePlan(topics, scope=RestoreScope.EVERYTHING, brings_back_erased=True)
        run = RestoreRun(
            broker.call, broker.adopt, self._stored, self._source, broker.tables, self._clock, self._offload, plan,
            self._on_bytes,
        )  # fmt: skip
        return await run.run(root), run.parts

    # --- the comparison ---

    async def _compare(
        self,
        broker: ScratchBroker,
        cut: TopicCut,
        restored: RestoredTopic,
        rows: Mapping[tuple[int | None, str], ObjectRow],
    ) -> DrilledTopic:
        try:
            backed_up = await self._backed_up_rows(broker.folder, cut, rows)
            present = await self._restored_rows(broker, restored)
        except _DAMAGE as error:
            self._findings.append(DrillFinding(cut.name, str(error)))
            backed_up, present = {}, {}
        for shard in sorted({*backed_up, *present}):
            expected, digest = backed_up.get(shard, RowDigest()), present.get(shard, RowDigest())
            if expected != digest:
                self._findings.append(DrillFinding(cut.name, _difference(shard, expected, digest)))
        shards = []
        for shard_cut in cut.shards:
            next_offset = restored.next_offsets.get(shard_cut.shard, 0)
            if next_offset < shard_cut.end:
                text = f"shard {shard_cut.shard} goes on at offset {next_offset}, below its end {shard_cut.end}"
                self._findings.append(DrillFinding(cut.name, text))
            digest = present.get(shard_cut.shard, RowDigest())
            shards.append(DrilledShard(shard_cut.shard, digest.rows, next_offset, digest.text))
        messages = sum(digest.rows for digest in present.values())
        return DrilledTopic(cut.name, messages, restored.files, restored.bytes, restored.subscriptions, shards)

    async def _backed_up_rows(
        self, folder: Path, cut: TopicCut, rows: Mapping[tuple[int | None, str], ObjectRow]
    ) -> ShardDigests:
        """The digests of the rows of a backup, from its objects alone."""
        digests: ShardDigests = {}
        erased = NOTHING_ERASED
        if cut.erased is not None:
            erased = decode_erased(await self._stored.content(cut.erased, "erased"))
        objects = _BackedUpObjects(self._stored, self._source, cut, rows, folder / "compared", self._on_bytes)
        if cut.table is not None:
            table = table_metadata.decode(await self._stored.content(cut.table.metadata, "table-metadata"))
            files = await self._offload.run(partial(objects.files_of, table, cut.table.snapshot_id))
            _add(digests, await self._offload.run(partial(_digests, table, files, objects.open, objects.drop, erased)))
            await self._offload.run(objects.close)
        for shard in cut.shards:
            for tail in shard.tails:
                data = await self._stored.content(tail.object, "tail")
                span = Span(cut.id, shard.shard, max(tail.start, shard.committed), min(tail.end, shard.end))
                digest = await self._offload.run(partial(_tail_digest, cut.name, span, data, erased))
                _add(digests, {shard.shard: digest})
        return digests

    async def _restored_rows(self, broker: ScratchBroker, restored: RestoredTopic) -> ShardDigests:
        """The digests of the rows of a restored table, as readers find them."""
        topic_id = broker.node.broker.topics.get(TopicName.parse(restored.topic)).record.id
        identifier: Identifier | None = await broker.catalog.topics.table_of(topic_id)
        if identifier is None:
            return {}
        table = (await broker.catalog.tables.load(identifier)).table
        local = broker.files
        files = await SnapshotReader(ManifestReader(local, self._offload)).current_files(table)
        return await self._offload.run(partial(_digests, table, files, file_opener(local), lambda _: None))

    async def _compare_subscriptions(self, broker: ScratchBroker, root: BackupRoot, cuts: Sequence[TopicCut]) -> None:
        """Whether each subscription of the backup is in the restored broker, at the cursors that it had."""
        state = await self._stored.metadata(root)
        for cut in cuts:
            name = TopicName.parse(cut.name)
            prefix = f"{records.SUBSCRIPTIONS}{name.namespace}/{name.name}/"
            for key in [key for key, _ in state.entries.items() if key.startswith(prefix)]:
                subscription = key.removeprefix(prefix)
                if await broker.node.store.get(key) is None:
                    self._findings.append(DrillFinding(cut.name, f"subscription {subscription} was not restored"))
                    continue
                for text in await self._compare_cursors(broker, state, cut, name, subscription):
                    self._findings.append(DrillFinding(cut.name, f"subscription {subscription} {text}"))

    async def _compare_cursors(
        self, broker: ScratchBroker, state: StateMachine, cut: TopicCut, name: TopicName, subscription: str
    ) -> list[str]:
        """How the restored cursors of a subscription differ. They are cut to the ends of the backup."""
        topic_key = records.topic_key(name)
        entry = state.get(topic_key)
        record = None if entry is None else records.decode(records.TopicRecord, topic_key, entry.value)
        differences = []
        for shard in cut.shards if record is not None else ():
            assert record is not None
            key = records.cursor_key(
                name, subscription, shard.shard, record.shards, is_partitioned=record.is_partitioned
            )
            expected, restored = state.get(key), await broker.node.store.get(key)
            if expected is None:
                continue
            offset = min(records.decode(records.CursorRecord, key, expected.value).offset, shard.end)
            present = None if restored is None else records.decode(records.CursorRecord, key, restored.value).offset
            if present != offset:
                differences.append(f"resumes shard {shard.shard} at {present}, its cursor in the backup is {offset}")
        return differences


class _BackedUpObjects:
    """The files of a topic's table as a backup has them, opened by the paths that they had in the warehouse. Every
    method blocks."""

    def __init__(
        self,
        stored: StoredBackups,
        source: Callable[[str], Iterator[bytes]],
        cut: TopicCut,
        rows: Mapping[tuple[int | None, str], ObjectRow],
        folder: Path,
        on_bytes: Callable[[int], None],
    ) -> None:
        """`folder`: for plain copies, which readers can seek in."""
        self._stored = stored
        self._source = source
        self._cut = cut
        self._rows = rows
        self._folder = folder
        self._on_bytes = on_bytes

    def files_of(self, table: TableMetadata, snapshot_id: int) -> SnapshotFiles:
        """The live files of the pinned snapshot. Raises BackupDamaged, MetadataFileDamaged."""
        snapshot = table.snapshots.find(snapshot_id)
        if snapshot is None:
            raise errors.BackupDamaged(f"the metadata of {self._cut.name} has no snapshot {snapshot_id}")
        ids = field_ids(table.current_schema)
        files: list[ScanDataFile | ScanDeleteFile] = []
        manifest_list = snapshot["manifest-list"]
        for manifest in decode_manifest_list(manifest_list, self._read(manifest_list)):
            entries = live_entries(manifest.path, self._read(manifest.path))
            files += files_of(entries, manifest.sequence_number, ids, manifest.spec_id)
        return SnapshotFiles(
            tuple(file for file in files if isinstance(file, ScanDataFile)),
            tuple(file for file in files if isinstance(file, ScanDeleteFile)),
        )

    def open(self, path: str) -> Any:
        """Opens the plain copy of a file; makes it first."""
        import pyarrow as pa  # type: ignore[import-untyped]

        copy = self._copy_of(path)
        if not copy.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            with copy.open("wb") as file:
                for chunk in self._chunks(path):
                    file.write(chunk)
        return pa.OSFile(str(copy), "rb")

    def drop(self, path: str) -> None:
        """Removes the copy of a file that was read."""
        self._copy_of(path).unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy_of(self, path: str) -> Path:
        return self._folder / hashlib.sha256(path.encode()).hexdigest()

    def _read(self, path: str) -> bytes:
        return b"".join(self._chunks(path))

    def _chunks(self, path: str) -> Iterator[bytes]:
        """The plain bytes, compared with their digest at the end. Raises BackupDamaged."""
        row = self._rows.get((self._cut.id, path))
        if row is None:
            raise errors.BackupDamaged(f"{path} of topic {self._cut.name} is not in the object list of the backup")
        for chunk in self._stored.checked_chunks(row, self._source):
            self._on_bytes(len(chunk))
            yield chunk


def _digests(
    table: TableMetadata,
    files: SnapshotFiles,
    open_file: OpenFile,
    drop: Callable[[str], None],
    erased: ErasedOffsets = NOTHING_ERASED,
) -> ShardDigests:
    """The digests of the live rows of a table, by shard, without erased ones. `drop` is called with each data file when
    it was read."""
    reader, columns = FileReader(open_file, NoRowGroupCache()), table_columns(table.current_schema, table.properties)
    digests: ShardDigests = {}
    for file in files.data:
        deletes = files.deletes_of(file)
        for group in reader.groups(file, columns):
            for rows in reader.live_rows_of(group, columns, deletes):
                _add(digests, _by_shard(unerased_rows(rows, erased) if erased else rows))
        drop(file.path)
    return digests


def _by_shard(rows: Any) -> ShardDigests:
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    shards = [shard for shard in pc.unique(rows[SHARD]).to_pylist() if shard is not None]
    if len(shards) == 1:
        return {shards[0]: digest_of(rows)}
    return {shard: digest_of(rows_of_shard(rows, shard)) for shard in shards}


def _tail_digest(topic: str, span: Span, data: bytes, erased: ErasedOffsets) -> RowDigest:
    """The digest of the rows of a tail, decoded from its records, without erased ones."""
    import pyarrow as pa

    scanned, end, _, _ = scan_records(data, 0, 0, 1)
    if end != len(data):
        raise errors.BackupDamaged(f"a tail of {topic} is damaged at byte {end} of {len(data)}")
    (rows,) = topic_rows(sections_of(data, 0, scanned), [span])
    rows = without_erased(rows, erased) if erased else rows
    return digest_of(pa.table(rows.columns)) if rows.rows else RowDigest()


def _add(digests: ShardDigests, more: Mapping[int, RowDigest]) -> None:
    for shard, digest in more.items():
        digests[shard] = digests.get(shard, RowDigest()).plus(digest)


def _difference(shard: int, expected: RowDigest, digest: RowDigest) -> str:
    if expected.rows != digest.rows:
        return f"shard {shard}: the backup has {counted(expected.rows, 'message')}, {digest.rows} were restored"
    return f"shard {shard}: {counted(digest.rows, 'message')} were restored whose offsets or contents differ"


def _version() -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version("icestream")
    return ""
