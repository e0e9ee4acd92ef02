"""Verifies a backup by its target alone: no broker, no catalog.

    quick    root, begin and object list fit their digests; each object exists with its size; tails cover every offset
             between the tables and the ends; manifests of seed 003 that the root calls missing are reported; of a
             locked backup root and BACKUP_LOCK_SAMPLE other objects, spread over their names, are locked as the root
             says
    deep     every byte of every object is read: its digest is its name, frames authenticate, tails decode and cover
             their offsets, the metadata store loads, checkpoints decode, views name files of the list, data files have
             their rows; every object of a locked backup is locked as the root says

Each finding names the object. A finding of severity `error` means that something cannot be restored, or is not locked.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import orjson

from icestream import errors, limits
from icestream.backup import backup_layout as layout
from icestream.backup import table_view
from icestream.backup.backup_lock import locked_names, sampled
from icestream.backup.backup_root import BackupRoot, ShardCut, TopicCut, digest_of_objects
from icestream.backup.file_copy import run_bounded
from icestream.backup.object_list import ObjectRow
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.tail_object import decode_tail, missing_offsets
from icestream.catalogs.object_lock import LockRequests, ObjectRetention, retention_text
from icestream.iceberg.manifests import decode_manifest_list, live_entries
from icestream.metadata.snapshot import load_snapshot
from icestream.model.erased_offsets import decode_erased
from icestream.model.shard import ShardKey
from icestream.runtime.tasks import Offload
from icestream.wal.checkpoint import decode_checkpoint

Severity = Literal["error", "warning"]
OpenSource = Callable[[str], Iterable[bytes]]
_READ_AT_ONCE: Final = limits.BACKUP_READS_AT_ONCE


class BackupFinding(NamedTuple):
    object: str
    severity: Severity
    text: str


class BackupVerification:
    """Verifies one backup."""

    def __init__(
        self,
        stored: StoredBackups,
        offload: Offload,
        source: OpenSource | None = None,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`source`: reads files of the warehouse, which a reference backup needs."""
        self._stored = stored
        self._offload = offload
        self._source = source
        self._on_progress = on_progress

    async def verify(self, backup_id: str, *, is_deep: bool) -> list[BackupFinding]:
        """Returns all findings. Raises UnknownBackup, and BackupDamaged if the root itself cannot be read."""
        root = await self._stored.root(backup_id)
        try:
            rows = [*await self._stored.object_rows(root)]
        except errors.BackupDamaged as error:
            return [BackupFinding(root.objects.path, "error", str(error))]
        findings = [finding async for finding in self._check_objects(root, rows, is_deep=is_deep)]
        findings += self._check_root(root, rows)
        findings += await self._check_begin(backup_id)
        findings += await self._check_locks(root, rows, is_deep=is_deep)
        if is_deep:
            findings += [finding async for finding in self._check_tails(root)]
            findings += [finding async for finding in self._check_views(root, rows)]
        return findings

    # --- the root ---

    def _check_root(self, root: BackupRoot, rows: Sequence[ObjectRow]) -> list[BackupFinding]:
        findings = []
        if (
            len(rows) != root.files
            or digest_of_objects((row.path, row.sha256, row.size) for row in rows) != root.objects_sha256
        ):
            findings.append(BackupFinding(root.objects.path, "error", "the object list does not fit the root"))
        findings += [
            BackupFinding(shard.topic, "warning", f"shard {shard.shard} is incomplete: {shard.reason}")
            for shard in root.incomplete
        ]
        findings += [
            BackupFinding("manifests", "warning", f"manifest {manifest.seq} is missing: {manifest.reason}")
            for manifest in root.manifests.missing
        ]
        for topic in root.topics:
            for shard in topic.shards:
                findings += _check_coverage(root, topic, shard)
        return findings

    async def _check_begin(self, backup_id: str) -> list[BackupFinding]:
        """A restore does not read the begin; schedules and deletions do."""
        try:
            await self._stored.begin(backup_id)
        except (errors.BackupDamaged, errors.UnknownBackup) as error:
            return [BackupFinding(layout.begin_name(backup_id), "warning", str(error))]
        return []

    async def _check_locks(self, root: BackupRoot, rows: Sequence[ObjectRow], *, is_deep: bool) -> list[BackupFinding]:
        if root.lock is None:
            return []
        root_name, locks = layout.root_name(root.id), self._stored.target.locks
        if locks is None:
            text = "the backup was locked, and this target has no object lock: it is a copy"
            return [BackupFinding(root_name, "warning", text)]
        names = locked_names(root.id, rows, root.objects.path)
        chosen = {root_name, *(names if is_deep else sampled(names, limits.BACKUP_LOCK_SAMPLE))}
        required, findings = ObjectRetention(root.lock.mode, root.lock.until_ms), []

        async def look(requests: LockRequests, name: str) -> None:
            try:
                existing = await requests.retention(name)
            except errors.AccessDenied as error:
                findings.append(BackupFinding(name, "warning", f"its lock cannot be read: {error}"))
            except errors.BackupDamaged as error:
                findings.append(BackupFinding(name, "error", str(error)))
            else:
                if existing is None or not existing.covers(required):
                    text = f"it is {retention_text(existing)}, the root says {retention_text(required)}"
                    findings.append(BackupFinding(name, "error", text))

        async with locks.connect() as requests:
            await run_bounded([partial(look, requests, name) for name in sorted(chosen)], limits.BACKUP_LOCKS_AT_ONCE)
        return sorted(findings)

    # --- objects ---

    async def _check_objects(
        self, root: BackupRoot, rows: Sequence[ObjectRow], *, is_deep: bool
    ) -> AsyncIterator[BackupFinding]:
        for start in range(0, len(rows), _READ_AT_ONCE):
            part = rows[start : start + _READ_AT_ONCE]
            for findings in await asyncio.gather(*(self._check_object(row, is_deep=is_deep) for row in part)):
                for finding in findings:
                    yield finding
            self._on_progress(len(part))

    async def _check_object(self, row: ObjectRow, *, is_deep: bool) -> list[BackupFinding]:
        if row.is_original:
            return await self._check_original(row, is_deep=is_deep)
        size = await self._stored.target.size(row.path)
        if size is None:
            return [BackupFinding(row.path, "error", "the object does not exist")]
        if size != row.size:
            return [BackupFinding(row.path, "error", f"the object has {size} bytes, {row.size} were written")]
        if not is_deep:
            return []
        try:
            return await self._offload.run(lambda: self._read_object(row))
        except (errors.BackupDamaged, errors.ConfigurationError) as error:
            return [BackupFinding(row.path, "error", str(error))]

    def _read_object(self, row: ObjectRow) -> list[BackupFinding]:
        """Reads an object to its end, in a thread."""
        stored = hashlib.sha256()
        pieces: list[bytes] = []
        has_rows = row.role in ("data", "deletes") and row.rows is not None and not row.key_id
        for chunk in self._stored.target.chunks(row.path):
            stored.update(chunk)
            if has_rows or row.role in ("metadata", "checkpoint", "erased"):
                pieces.append(chunk)
        if stored.hexdigest() != row.sha256:
            return [BackupFinding(row.path, "error", "the bytes of the object were changed: its SHA-256 differs")]
        if row.key_id and self._stored.key is not None:
            plain = hashlib.sha256()
            pieces = []
            for chunk in self._stored.plain_chunks(row.reference, row.role):
                plain.update(chunk)
                pieces.append(chunk)
            if plain.hexdigest() != row.content_sha256:
                return [BackupFinding(row.path, "error", "the plain bytes of the object differ from what was read")]
        elif row.key_id:
            return []
        return _check_content(row, b"".join(pieces))

    async def _check_original(self, row: ObjectRow, *, is_deep: bool) -> list[BackupFinding]:
        """Checks a file of the warehouse that a reference backup names: there is no digest of it."""
        source = self._source
        if source is None:
            return [BackupFinding(row.path, "warning", "a file of the warehouse, which was not looked at")]

        def read() -> tuple[int, bytes]:
            data = b"".join(source(row.path))
            return len(data), data

        try:
            size, data = await self._offload.run(read)
        except (errors.IcestreamError, OSError) as error:
            return [BackupFinding(row.path, "error", f"the file of the warehouse cannot be read: {error}")]
        if size != row.size:
            return [BackupFinding(row.path, "error", f"the file has {size} bytes, {row.size} at the cut")]
        return _check_content(row, data) if is_deep else []

    # --- tails and views ---

    async def _check_tails(self, root: BackupRoot) -> AsyncIterator[BackupFinding]:
        if root.encryption is not None and self._stored.key is None:
            yield BackupFinding("key", "warning", "without the key only stored digests were compared")
            return
        for topic in root.topics:
            for shard in topic.shards:
                for tail in shard.tails:
                    try:
                        data = await self._stored.content(tail.object, "tail")
                        sections = decode_tail(tail.object.path, data, ShardKey(topic.id, shard.shard))
                    except errors.IcestreamError as error:
                        yield BackupFinding(tail.object.path, "error", str(error))
                        continue
                    missing = missing_offsets(sections, tail.start, tail.end, shard.gaps)
                    if missing is not None:
                        text = f"offsets {missing[0]} to {missing[1] - 1} of {topic.name}/{shard.shard} are missing"
                        yield BackupFinding(tail.object.path, "error", text)

    async def _check_views(self, root: BackupRoot, rows: Sequence[ObjectRow]) -> AsyncIterator[BackupFinding]:
        """Every file that a view names is in the object list."""
        target = self._stored.target
        listed = {row.path if ":" in row.path else target.location(row.path) for row in rows}
        for topic in root.topics:
            if topic.table is None or not topic.table.view:
                continue
            try:
                for path in await self._paths_of_view(root, topic):
                    if path not in listed:
                        yield BackupFinding(topic.table.view, "error", f"the view names {path}, which is not listed")
            except errors.IcestreamError as error:
                yield BackupFinding(topic.table.view, "error", str(error))

    async def _paths_of_view(self, root: BackupRoot, topic: TopicCut) -> list[str]:
        """All paths in the view of a table."""
        target = self._stored.target
        assert topic.table is not None
        base = target.location("")

        async def read(location: str) -> bytes:
            data = await target.get(location.removeprefix(base))
            if data is None:
                raise errors.BackupDamaged(f"{location} of the view of {topic.name} does not exist")
            return data

        try:
            document = orjson.loads(await read(base + topic.table.view))
            paths = [*table_view.paths_of_view(document)]
        except (orjson.JSONDecodeError, KeyError) as error:
            raise errors.BackupDamaged(f"{topic.table.view} is not a metadata file: {error!r}") from None
        for manifest_list in tuple(paths):
            for manifest in decode_manifest_list(manifest_list, await read(manifest_list)):
                paths.append(manifest.path)
                paths += [entry.file_path for entry in live_entries(manifest.path, await read(manifest.path))]
        return paths


def _check_coverage(root: BackupRoot, topic: TopicCut, shard: ShardCut) -> list[BackupFinding]:
    """The tails of a shard begin where its table ends and reach its end, gaps apart."""
    if any((entry.topic, entry.shard) == (topic.name, shard.shard) for entry in root.incomplete):
        return []
    spans = sorted([*shard.gaps, *((tail.start, tail.end) for tail in shard.tails)])
    at = shard.committed
    for start, end in spans:
        if start > at:
            break
        at = max(at, end)
    if at >= shard.end:
        return []
    return [
        BackupFinding(topic.name, "error", f"shard {shard.shard}: offsets from {at} to {shard.end - 1} are missing")
    ]


def _check_content(row: ObjectRow, data: bytes) -> list[BackupFinding]:
    """Checks that the plain bytes of an object are what its role says; returns the findings."""
    try:
        if row.role == "metadata":
            load_snapshot(io.BytesIO(data).read)
        elif row.role == "checkpoint":
            decode_checkpoint(data)
        elif row.role == "erased":
            decode_erased(data)
        elif row.role == "data" and row.source.lower().endswith(".parquet"):
            count = _row_count(data)
            if count != row.rows:
                return [BackupFinding(row.path, "error", f"the file has {count} rows, its manifest says {row.rows}")]
    except (errors.IcestreamError, OSError, ValueError) as error:
        return [BackupFinding(row.path, "error", f"not a valid object of role {row.role}: {error}")]
    return []


def _row_count(data: bytes) -> int:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    return int(pq.read_metadata(io.BytesIO(data)).num_rows)
