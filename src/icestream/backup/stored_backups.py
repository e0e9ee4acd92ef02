"""The backups of a target: read, listed and deleted.

Deletion is mark and sweep (hazard 92): the objects of all other roots, and of all progress, are marked; those of the
backup that have no mark are removed. A run may use an object that exists without recording it yet, so both sides leave
a trace and look for the other's, in this order:

    deletion   its mark, `deletions/{id}.json`; lists backups; removes objects; removes its mark
    run        its root; waits until no mark is there; looks whether every object that it found there still exists, and
               takes the root back if one does not

A deletion that begins after the root sees it, one that began before is over or waited for.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.backup import backup_layout as layout
from icestream.backup.backup_lock import check_unlocked
from icestream.backup.backup_root import BackupBegin, BackupRoot, ObjectRef, decode_document
from icestream.backup.backup_target import BackupTarget
from icestream.backup.encryption import BackupKey, decrypt
from icestream.backup.object_list import ObjectRow, decode_list
from icestream.metadata.snapshot import load_snapshot
from icestream.metadata.state_machine import StateMachine
from icestream.observability.log import get_logger

_log = get_logger("backup")
_PROGRESS: Final = re.compile(r"backups/[^/]+/progress-[0-9]{8}\.json")


class StoredBackup(NamedTuple):
    """A backup in a target; `root` is None for one that is not complete."""

    id: str
    root: BackupRoot | None


def _in_order(backups: Iterable[StoredBackup]) -> list[StoredBackup]:
    # Ids sort by the second; two backups of one second by their roots.
    return sorted(
        backups, key=lambda backup: (backup.id.partition("-")[0], (backup.root and backup.root.begun_ms) or 0)
    )


class DeletedBackup(NamedTuple):
    """What a deletion removed. `kept`: objects that other backups need, or that are too young."""

    id: str
    removed: int
    removed_bytes: int
    kept: int


class _ProgressTime(msgspec.Struct, frozen=True):
    """The times of a record of progress: of the cut, or of a batch."""

    frozen_ms: int = 0
    written_ms: int = 0


class StoredBackups:
    """What a target has. `key` opens encrypted objects."""

    def __init__(self, target: BackupTarget, key: BackupKey | None = None) -> None:
        self.target = target
        self.key = key

    async def backups(self) -> list[StoredBackup]:
        """All backups, the oldest first. A root that cannot be read raises BackupDamaged."""
        return _in_order([StoredBackup(id_, await self.root_or_none(id_)) for id_ in await self.ids()])

    async def readable(self) -> list[StoredBackup]:
        """As `backups`, without those whose root is damaged: one of them must not stop the next backup."""
        backups = []
        for backup_id in await self.ids():
            try:
                backups.append(StoredBackup(backup_id, await self.root_or_none(backup_id)))
            except errors.BackupDamaged as error:
                _log.warning("backup left out: its root is damaged", id=backup_id, reason=str(error))
        return _in_order(backups)

    async def latest(self) -> BackupRoot | None:
        """The root of the newest complete backup; None without one. Raises BackupDamaged."""
        # Ids sort by the second; two backups of one second by their roots.
        for _, group in groupby(reversed(await self.ids()), key=lambda backup_id: backup_id.partition("-")[0]):
            roots = [root for backup_id in group if (root := await self.root_or_none(backup_id)) is not None]
            if roots:
                return max(roots, key=lambda root: root.begun_ms)
        return None

    async def ids(self) -> list[str]:
        """The ids of all backups, complete or not, in their order."""
        names = await self.target.names(layout.BACKUPS)
        return sorted({backup_id for name in names if (backup_id := layout.backup_id_of(name))})

    async def root_or_none(self, backup_id: str) -> BackupRoot | None:
        """The root of a backup; None for one that is not complete. Raises BackupDamaged."""
        name = layout.root_name(backup_id)
        data = await self.target.get(name)
        return None if data is None else decode_document(BackupRoot, name, data)

    async def root(self, backup_id: str) -> BackupRoot:
        """The root of a backup. Raises UnknownBackup, BackupDamaged."""
        root = await self.root_or_none(layout.check_backup_id(backup_id))
        if root is None:
            begin = await self.target.get(layout.begin_name(backup_id))
            hint = "it was not completed: `icestream backup create --resume` continues it" if begin is not None else ""
            raise errors.UnknownBackup(
                f"no backup {backup_id}", hint=hint or "`icestream backup list` shows the backups of a target"
            )
        return root

    async def begin(self, backup_id: str) -> BackupBegin:
        """The begin of a backup. Raises UnknownBackup, BackupDamaged."""
        name = layout.begin_name(layout.check_backup_id(backup_id))
        data = await self.target.get(name)
        if data is None:
            raise errors.UnknownBackup(f"no backup {backup_id}", hint="`icestream backup list` shows the backups")
        return decode_document(BackupBegin, name, data)

    async def active_ms(self, begin: BackupBegin) -> int:
        """When an unfinished backup recorded something for the last time, in epoch ms."""
        names = await self.target.names(f"{layout.BACKUPS}{begin.id}/")
        last = max((name for name in names if _PROGRESS.fullmatch(name)), default=None)
        data = None if last is None else await self.target.get(last)
        if data is None:
            return begin.begun_ms
        times = msgspec.json.decode(data, type=_ProgressTime)
        return max(begin.begun_ms, times.frozen_ms, times.written_ms)

    async def half_finished(self) -> list[str]:
        """The ids of backups that have a root, and the progress of a run that ended behind it, or is about to end."""
        cut = re.compile(rf"{layout.BACKUPS}([^/]+)/progress-00000000\.json")
        names = {*await self.target.names(layout.BACKUPS)}
        ids = sorted(match[1] for name in names if (match := cut.fullmatch(name)))
        return [backup_id for backup_id in ids if layout.root_name(backup_id) in names]

    async def rows_of(self, backup_id: str) -> list[ObjectRow]:
        """The object list of a backup. Raises UnknownBackup, BackupDamaged."""
        return [*await self.object_rows(await self.root(backup_id))]

    async def object_rows(self, root: BackupRoot) -> Iterator[ObjectRow]:
        """The rows of the list of a root, whose digest is compared. Raises BackupDamaged."""
        data = await self.target.get(root.objects.path)
        if data is None:
            raise errors.BackupDamaged(f"object list {root.objects.path} of backup {root.id} does not exist")
        if hashlib.sha256(data).hexdigest() != root.objects.sha256:
            raise errors.BackupDamaged(f"object list {root.objects.path} of backup {root.id} was changed")
        return decode_list(root.objects.path, data)

    def plain_chunks(self, reference: ObjectRef, role: str) -> Iterator[bytes]:
        """The plain bytes of an object, for a thread. Raises BackupDamaged, ConfigurationError without the key."""
        chunks = self.target.chunks(reference.path)
        if not reference.key_id:
            return chunks
        if self.key is None:
            raise errors.ConfigurationError(
                f"{reference.path} is encrypted with key {reference.key_id}", hint="give the key with --key"
            )
        return decrypt(reference.path, chunks, self.key, role)

    def checked_chunks(self, row: ObjectRow, source: Callable[[str], Iterator[bytes]]) -> Iterator[bytes]:
        """The plain bytes of a row of the list, for a thread; compared with its digest before the last of them.

        `source`: reads files of the warehouse, which a reference backup names. Raises BackupDamaged."""
        digest, size = hashlib.sha256(), 0
        # A changed object is never written to its end: a file of a restore that has its size has its bytes.
        pending: bytes | None = None
        for chunk in source(row.path) if row.is_original else self.plain_chunks(row.reference, row.role):
            if pending is not None:
                yield pending
            digest.update(chunk)
            size += len(chunk)
            pending = chunk
        if size != row.content_size:
            raise errors.BackupDamaged(f"object {row.path} of the backup has {size} bytes, not {row.content_size}")
        if row.content_sha256 and digest.hexdigest() != row.content_sha256:
            raise errors.BackupDamaged(f"object {row.path} of the backup was changed: its SHA-256 differs")
        if pending is not None:
            yield pending

    async def metadata(self, root: BackupRoot) -> StateMachine:
        """The metadata store of a backup. Raises BackupDamaged."""
        return load_snapshot(io.BytesIO(await self.content(root.metadata, "metadata")).read)

    async def content(self, reference: ObjectRef, role: str) -> bytes:
        """The plain bytes of an object of metadata size, compared with its digest. Raises BackupDamaged."""
        if reference.content_size > limits.BACKUP_DOCUMENT_BYTES_MAX:
            raise errors.BackupDamaged(f"{reference.path} has {reference.content_size} bytes, more than are read whole")
        if reference.key_id:
            stored = await self.target.get(reference.path)
            if stored is None:
                raise errors.BackupDamaged(f"object {reference.path} of the backup does not exist")
            if self.key is None:
                raise errors.ConfigurationError(
                    f"{reference.path} is encrypted with key {reference.key_id}", hint="give the key with --key"
                )
            data = b"".join(decrypt(reference.path, [stored], self.key, role))
        else:
            plain = await self.target.get(reference.path)
            if plain is None:
                raise errors.BackupDamaged(f"object {reference.path} of the backup does not exist")
            data = plain
        if hashlib.sha256(data).hexdigest() != reference.content_sha256:
            raise errors.BackupDamaged(f"object {reference.path} of the backup was changed: its SHA-256 differs")
        return data

    # --- writing ---

    async def put_named(self, name: str, data: bytes) -> ObjectRef:
        """Writes a small object under a name of its own, such as a file of a view; the same bytes are a success."""
        await self.target.put_new(name, data)
        digest = hashlib.sha256(data).hexdigest()
        return ObjectRef(name, len(data), digest, len(data), digest)

    async def put_list(self, backup_id: str, data: bytes) -> ObjectRef:
        """Writes the object list of a backup."""
        return await self.put_named(layout.list_name(backup_id, hashlib.sha256(data).hexdigest()), data)

    async def remove_progress(self, backup_id: str) -> None:
        """Removes the progress of a completed backup; the record of its cut last, by which a run is resumed."""
        for name in sorted(await self.target.names(f"{layout.BACKUPS}{backup_id}/"), reverse=True):
            if _PROGRESS.fullmatch(name):
                await self.target.remove(name)

    # --- deletion ---

    async def check_deletable(self, backup_id: str, now_ms: int) -> None:
        """Raises Refused for a backup that is locked at this time, and BackupDamaged if a damaged root hides that."""
        try:
            root = await self.root_or_none(layout.check_backup_id(backup_id))
        except errors.BackupDamaged:
            if self.target.locks is not None:
                raise
            return  # no store without locks has a locked backup
        check_unlocked(root, now_ms)

    async def delete(
        self, backup_id: str, *, now_ms: int, on_progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> DeletedBackup:
        """Deletes a backup and the objects that nothing else needs. `on_progress`: objects that were looked at, of how
        many. Raises UnknownBackup, and Refused for a backup that is locked at `now_ms`. Of a backup whose own root or
        list is damaged its folder goes, and objects as below.

        While nothing else is unfinished, objects that no backup names are removed, too: runs left them that ended.
        Raises BackupDamaged if the root or the list of another backup cannot be read, because it might need any object.
        """
        mark = layout.deletion_name(layout.check_backup_id(backup_id))
        await self.check_deletable(backup_id, now_ms)
        if await self.target.get(mark) is None:
            if await self.target.get(layout.begin_name(backup_id)) is None:
                raise errors.UnknownBackup(f"no backup {backup_id}", hint="`icestream backup list` shows the backups")
            await self.target.put(mark, b"{}")
        # Objects first, then backups: what a run uploads after this listing is not in it, and the begin of what was
        # uploaded before is in the next.
        stored = await self.target.names(layout.OBJECTS)
        others = [StoredBackup(id_, await self.root_or_none(id_)) for id_ in await self.ids() if id_ != backup_id]
        own = await self._own_objects(backup_id)
        marked = {path async for path in self._marked(others)}
        candidates = own if any(backup.root is None for backup in others) else own | {*stored}
        # The root goes before its objects: without it there is no backup, whatever a crash leaves behind.
        await self.target.remove(layout.root_name(backup_id))
        removed = removed_bytes = 0
        unneeded = sorted(candidates - marked)
        for number, path in enumerate(unneeded, 1):
            on_progress(number, len(unneeded))
            if layout.digest_of_object(path) is not None:
                removed_bytes += await self.target.size(path) or 0
                await self.target.remove(path)
                removed += 1
        # The begin behind all other files: until then a repeated deletion finds the backup.
        folder = f"{layout.BACKUPS}{backup_id}/"
        for name in sorted(await self.target.names(folder), key=lambda name: name.endswith("begin.json")):
            await self.target.remove(name)
        await self.target.remove(mark)
        return DeletedBackup(backup_id, removed, removed_bytes, len(own & marked))

    async def _own_objects(self, backup_id: str) -> set[str]:
        """The objects in the list of a backup; none if it has no list that can be read."""
        try:
            root = await self.root_or_none(backup_id)
            return set() if root is None else {row.path for row in await self.object_rows(root)}
        except errors.BackupDamaged as error:
            _log.warning("the objects of a damaged backup are not known", id=backup_id, reason=str(error))
            return set()

    async def deletions(self) -> list[str]:
        """The ids of the backups whose deletion has begun and not ended."""
        names = await self.target.names(layout.DELETIONS)
        return [name.removeprefix(layout.DELETIONS).removesuffix(".json") for name in names]

    async def missing(self, paths: Iterable[str]) -> list[str]:
        """The objects among these that do not exist."""
        return [path for path in sorted(paths) if await self.target.size(path) is None]

    async def _marked(self, backups: Sequence[StoredBackup]) -> AsyncIterator[str]:
        """The objects that these backups need, complete or not."""
        for backup in backups:
            if backup.root is not None:
                for row in await self.object_rows(backup.root):
                    yield row.path
                continue
            async for path in self._marked_by_progress(backup.id):
                yield path

    async def _marked_by_progress(self, backup_id: str) -> AsyncIterator[str]:
        """The objects that an unfinished backup has recorded, and those of its parent, which it may be reusing."""
        for name in await self.target.names(f"{layout.BACKUPS}{backup_id}/"):
            if _PROGRESS.fullmatch(name) and (data := await self.target.get(name)) is not None:
                for match in re.finditer(rb'"(objects/[^"]+)"', data):
                    yield match[1].decode()
        begin = await self.begin(backup_id)
        if begin.parent is not None and (parent := await self.root_or_none(begin.parent)) is not None:
            for row in await self.object_rows(parent):
                yield row.path
