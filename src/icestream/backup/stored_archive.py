"""The archives of a target: read, verified, and shortened (ADR 85)."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from icestream import errors, limits
from icestream.backup import archive_object as layout
from icestream.backup.archive_object import ArchiveHead, ArchiveHeader, ArchiveObject
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_target import BackupTarget
from icestream.backup.encryption import MAGIC, BackupKey, decrypt
from icestream.runtime.tasks import Offload


class StoredObject(NamedTuple):
    """An object, with the SHA-256 of its stored bytes."""

    name: str
    sha256: str
    content: ArchiveObject


class ArchiveBase(NamedTuple):
    """A backup as the base of an archive: it has every record of the log up to `lsn`."""

    log_id: str
    lsn: int
    cut_ms: int


class ArchiveFinding(NamedTuple):
    object: str
    severity: str
    text: str


class StoredArchive:
    """The archive of one log of one node. `key` opens encrypted objects."""

    def __init__(self, target: BackupTarget, node: str, log_id: str, offload: Offload, key: BackupKey | None) -> None:
        self.target = target
        self.node = node
        self.log_id = log_id
        self._offload = offload
        self._key = key

    # --- the head ---

    async def head(self) -> ArchiveHead | None:
        """The head; None without one, or if it cannot be read: it is a hint."""
        data = await self.target.get(layout.head_name(self.node, self.log_id))
        try:
            return None if data is None else msgspec.json.decode(data, type=ArchiveHead)
        except msgspec.MsgspecError:
            return None

    async def put_head(self, head: ArchiveHead) -> None:
        await self.target.put(layout.head_name(self.node, self.log_id), msgspec.json.encode(head))

    # --- objects ---

    async def last_seq(self) -> int:
        """The number of the last object; 0 if there is none."""
        head = await self.head()
        if head is not None and await self._exists(head.seq):
            seq = head.seq
            while await self._exists(seq + 1):
                seq += 1
            return seq
        return max(await self.seqs(), default=0)

    async def seqs(self) -> list[int]:
        """The numbers of all objects, rising."""
        names = await self.target.names(layout.log_folder(self.node, self.log_id))
        return sorted(seq for name in names if (seq := layout.seq_of(name)) is not None)

    async def _exists(self, seq: int) -> bool:
        return await self.target.size(layout.archive_name(self.node, self.log_id, seq)) is not None

    async def stored_bytes(self, seq: int) -> bytes:
        """The bytes of an object as they are stored. Raises BackupDamaged if it does not exist."""
        name = layout.archive_name(self.node, self.log_id, seq)
        data = await self.target.get(name)
        if data is None:
            raise errors.BackupDamaged(f"archive object {name} does not exist: the archive has a hole")
        return data

    async def read(self, seq: int) -> StoredObject:
        """An object, of which every byte is checked. Raises BackupDamaged, ConfigurationError without the key."""
        name = layout.archive_name(self.node, self.log_id, seq)
        data = await self.stored_bytes(seq)

        def decode() -> StoredObject:
            content = layout.decode_archive(name, self._plain(name, data))
            if (content.header.seq, content.header.log_id) != (seq, self.log_id):
                raise errors.BackupDamaged(f"{name} is object {content.header.seq} of log {content.header.log_id}")
            return StoredObject(name, hashlib.sha256(data).hexdigest(), content)

        return await self._offload.run(decode)

    async def header(self, seq: int) -> ArchiveHeader:
        """The header of an object, of which only the front is read and nothing is checked."""
        name = layout.archive_name(self.node, self.log_id, seq)

        def front() -> bytes:
            chunks = self.target.chunks(name)
            first = next(chunks, b"")
            if first[: len(MAGIC)] != MAGIC:
                return first
            return b"".join(self._decrypted(name, [first, *chunks]))

        return layout.decode_header(name, await self._offload.run(front))

    def _plain(self, name: str, data: bytes) -> bytes:
        return b"".join(self._decrypted(name, [data])) if data[: len(MAGIC)] == MAGIC else data

    def _decrypted(self, name: str, chunks: Sequence[bytes]) -> Sequence[bytes]:
        if self._key is None:
            raise errors.ConfigurationError(f"{name} is encrypted", hint="give the key with --key")
        return [*decrypt(name, chunks, self._key, layout.ROLE)]

    async def objects_from(self, lsn: int, revision: int) -> AsyncIterator[StoredObject]:
        """The objects from the one on that has record `lsn` or a change behind `revision`: checked, without holes.

        Raises BackupDamaged. A gap is in the header of the object behind it.
        """
        seqs = await self.seqs()
        if not seqs:
            return
        seq, previous = await self._seq_behind(seqs, lsn, revision), ""
        while seq <= seqs[-1] or await self._exists(seq):
            stored = await self.read(seq)
            if previous and stored.content.header.previous != previous:
                raise errors.BackupDamaged(f"{stored.name} does not follow the object before it: one was replaced")
            yield stored
            seq, previous = seq + 1, stored.sha256

    async def _seq_behind(self, seqs: Sequence[int], lsn: int, revision: int) -> int:
        """The first object with a record from `lsn` on or a change behind `revision`; the last one if there is none."""
        head = await self.head()
        # What lies before a gap is not needed behind it, and may be damaged.
        first = max((gap.seq for gap in head.gaps if gap.to_lsn <= lsn), default=0) if head is not None else 0
        low, high = min(bisect_left(seqs, first), len(seqs) - 1), len(seqs) - 1
        while low < high:
            middle = (low + high) // 2
            header = await self.header(seqs[middle])
            if header.end_lsn > lsn or header.revision > revision:
                high = middle
            else:
                low = middle + 1
        return seqs[low]

    async def verify(self, on_progress: Callable[[int, int], None] = lambda _done, _all: None) -> list[ArchiveFinding]:
        """Reads every object; returns all findings. A gap is a warning: it was recorded. `on_progress`: objects that
        were read, of how many."""
        findings: list[ArchiveFinding] = []
        previous, expected = "", 0
        seqs = await self.seqs()
        for number, seq in enumerate(seqs, 1):
            on_progress(number, len(seqs))
            name = layout.archive_name(self.node, self.log_id, seq)
            if expected and seq != expected:
                findings.append(ArchiveFinding(name, "error", f"objects {expected} to {seq - 1} do not exist"))
                previous = ""
            expected = seq + 1
            try:
                stored = await self.read(seq)
            except errors.BackupDamaged as error:
                findings.append(ArchiveFinding(name, "error", str(error)))
                previous = ""
                continue
            header = stored.content.header
            if previous and header.previous != previous:
                findings.append(ArchiveFinding(name, "error", "it does not follow the object before it"))
            if header.gap is not None:
                text = f"records {header.gap.from_lsn} to {header.gap.to_lsn - 1} are missing: {header.gap.reason}"
                findings.append(ArchiveFinding(name, "warning", text))
            previous = stored.sha256
        return findings

    # --- retention ---

    async def retain(self, bases: Sequence[ArchiveBase], cut_before_ms: int) -> int:
        """Removes the objects that no restore needs, the oldest first; returns the number of the first that is left.

        Needed are those behind the newest backup that was cut before `cut_before_ms`, else behind the oldest one.
        Without a backup of this log nothing is removed.
        """
        seqs = await self.seqs()
        own = sorted((base for base in bases if base.log_id == self.log_id), key=lambda base: base.lsn)
        if not own or not seqs:
            return seqs[0] if seqs else 0
        old = [base for base in own if base.cut_ms <= cut_before_ms]
        needed_lsn = (old[-1] if old else own[0]).lsn + 1
        # The last object stays: the next one continues it.
        for number, seq in enumerate(seqs[:-1]):
            if number >= limits.ARCHIVE_REMOVED_MAX or (await self.header(seq)).end_lsn > needed_lsn:
                return seq
            await self.target.remove(layout.archive_name(self.node, self.log_id, seq))
        return seqs[-1]


async def stored_heads(target: BackupTarget) -> list[ArchiveHead]:
    """The heads of all archives of a target, by node."""
    heads = []
    for name in await target.names(layout.ROOT):
        if name.endswith("/head.json") and (data := await target.get(name)) is not None:
            try:
                heads.append(msgspec.json.decode(data, type=ArchiveHead))
            except msgspec.MsgspecError as error:
                raise errors.BackupDamaged(f"{name} is not the head of an archive: {error}") from None
    return sorted(heads, key=lambda head: (head.node, head.until_us))


def bases_of(head: ArchiveHead, roots: Iterable[BackupRoot]) -> list[str]:
    """The backups that a restore to a point in time can begin with: what follows them is archived without a gap."""
    last_gap = max((gap.to_lsn for gap in head.gaps), default=0)
    return [
        root.id
        for root in roots
        for node in root.nodes
        if node.log_id == head.log_id and last_gap <= node.lsn + 1 <= head.end_lsn
    ]
