"""The archive of a node: each pass seals what the log and the metadata store have gained since the last (ADR 85).

    locate   once: the last object of the target says what is archived. Nothing else does
    mark     the node syncs, holds the log from the first record on that is not archived, and says where it ends
    read     records, byte for byte, about ARCHIVE_OBJECT_BYTES for an object
    changes  with the last object of the pass: changes of metadata, or the whole state where changes were missed
    seal     the object, under the next number, on the condition that the name is free
    head     the hint where the end is

A pass may be cut off anywhere: an object is there whole or not at all, and the next pass continues behind the last one.
What it cannot continue with is a gap, in the header of the object behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from icestream import errors, limits
from icestream.backup import archive_object as layout
from icestream.backup.archive_object import ArchiveGap, ArchiveHead, ArchiveHeader, LogRun, MetadataChange
from icestream.backup.backup_target import BackupTarget
from icestream.backup.encryption import NONCE_PREFIX_BYTES, BackupKey, encrypt
from icestream.backup.node_client import Call
from icestream.backup.stored_archive import ArchiveBase, StoredArchive
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload

_log = get_logger("backup")
_changes_decoder = msgspec.msgpack.Decoder(list[MetadataChange])


class ArchiveEffect(StrEnum):
    """The external effects of a pass, in order; tests stop a pass before each."""

    LOCATE = "locate"
    MARK = "mark"
    READ = "read"
    CHANGES = "changes"
    SEAL = "seal"
    HEAD = "head"
    RETAIN = "retain"


class _Mark(NamedTuple):
    """The answer of archive_mark."""

    log_id: str
    now_us: int
    first_lsn: int
    synced_lsn: int
    revision: int
    changes_after: int
    unarchived_bytes: int


class _End(NamedTuple):
    """The end of the archive: the last object, and what is archived with it."""

    seq: int
    sha256: str
    end_lsn: int
    revision: int
    until_us: int
    problem: str = ""  # why it cannot be continued without a gap


class ArchiveProgress(NamedTuple):
    """What a pass did. `until_us`: everything that was appended before it is archived."""

    objects: int
    bytes: int
    until_us: int


class ArchiveRun:
    """The archive of the node that `call` reaches, in one target."""

    def __init__(
        self,
        call: Call,
        node: str,
        target: BackupTarget,
        key: BackupKey | None,
        clock: Clock,
        randomness: Randomness,
        offload: Offload,
        on_effect: Callable[[ArchiveEffect], None] = lambda _: None,
    ) -> None:
        self._call = call
        self._node = node
        self._target = target
        self._key = key
        self._clock = clock
        self._randomness = randomness
        self._offload = offload
        self._on_effect = on_effect
        self._archive: StoredArchive | None = None
        self._end: _End | None = None
        self._gaps: list[ArchiveGap] = []
        self._first_seq = 1
        self._head_written_ns: int | None = None
        self.until_us = 0  # everything that was appended before is archived; 0: not known yet

    @property
    def age_seconds(self) -> float:
        """What a disaster now would lose; 0 before the first pass."""
        return max(0.0, (self._clock.wall_us() - self.until_us) / 1e6) if self.until_us else 0.0

    # --- a pass ---

    async def run_pass(self) -> ArchiveProgress:
        """Archives what there is. Raises what the node or the target raise: the next pass repeats it."""
        try:
            return await self._run_pass()
        except errors.PositionGone as error:
            # The log skipped them when it was repaired: it will never have them.
            if self._end is not None:
                self._end = self._end._replace(problem=str(error))
            raise
        except errors.AlreadyExists:
            # An upload that seemed to fail had not, or another process has archived meanwhile: the target knows.
            self._end = None
            raise

    async def _run_pass(self) -> ArchiveProgress:
        end = self._end
        self._on_effect(ArchiveEffect.MARK)
        mark = await self._mark(end)
        archive = self._archive
        # The first pass, or a log that was replaced: what this process remembers says nothing, the last object in the
        # target does.
        if archive is None or end is None or archive.log_id != mark.log_id:
            archive = StoredArchive(self._target, self._node, mark.log_id, self._offload, self._key)
            self._on_effect(ArchiveEffect.LOCATE)
            end = await self._locate(archive)
            self._archive = archive
            # Marked again: the first mark holds the log for an end that the target may not have.
            mark = await self._mark(end)
        gap = None
        if end is None:
            # A new archive begins at the present end of the log: it is replayed on a backup made after this moment.
            end = _End(0, "", mark.synced_lsn + 1, mark.revision, mark.now_us)
            is_new = True
        else:
            is_new = False
            gap = _gap_of(end, mark)
            if gap is not None:
                end = end._replace(end_lsn=gap.to_lsn)
        objects = size = 0
        while True:
            sealed, end = await self._seal_next(archive, mark, end, gap, is_new=is_new)
            self._end = end
            if sealed:
                objects, size = objects + 1, size + sealed
                await self._write_head(archive, end)
            gap, is_new = None, False  # stated once, by the first object behind it
            # Up to the mark and no further: a pass beside a busy producer would never end.
            if end.end_lsn > mark.synced_lsn:
                break
        self.until_us = mark.now_us
        self._end = end._replace(until_us=mark.now_us)
        if self._head_is_due:
            await self._write_head(archive, self._end)
        return ArchiveProgress(objects, size, mark.now_us)

    async def _mark(self, end: _End | None) -> _Mark:
        answer = await self._call(
            "archive_mark", next_lsn=end.end_lsn if end else 0, revision=end.revision if end else 0
        )
        return _Mark(**answer)

    async def _locate(self, archive: StoredArchive) -> _End | None:
        """The end of the archive, by its last object; None if it has none. A damaged one is followed by a gap."""
        seq = await archive.last_seq()
        head = await archive.head()
        self._gaps = head.gaps if head is not None else []
        self._first_seq = head.first_seq if head is not None else 1
        if not seq:
            return None
        try:
            stored = await archive.read(seq)
        except errors.BackupDamaged as error:
            _log.error("the last object of the archive is damaged", seq=seq, reason=str(error))
            sha256 = hashlib.sha256(await archive.stored_bytes(seq)).hexdigest()
            archived = (head.end_lsn, head.until_us) if head is not None and head.seq < seq else (0, 0)
            # Revision 0: the whole state of the metadata store is read.
            return _End(seq, sha256, archived[0], 0, archived[1], f"object {seq} is damaged")
        header = stored.content.header
        return _End(seq, stored.sha256, header.end_lsn, header.revision, header.until_us)

    async def _seal_next(
        self, archive: StoredArchive, mark: _Mark, end: _End, gap: ArchiveGap | None, *, is_new: bool
    ) -> tuple[int, _End]:
        """Seals the next object; returns its size and the new end. Size 0: there is nothing to archive."""
        runs, log, end_lsn = await self._read_log(end.end_lsn, mark.synced_lsn)
        changes, state, revision, until_us = b"", b"", end.revision, end.until_us
        if end_lsn > mark.synced_lsn:
            self._on_effect(ArchiveEffect.CHANGES)
            changes, state, revision = await self._read_changes(end.revision, mark)
            until_us = mark.now_us
        if not (runs or changes or state or gap or is_new):
            return 0, end._replace(revision=revision, until_us=until_us)
        if gap is not None:
            self._note_gap(gap)
        header = ArchiveHeader(
            layout.FORMAT_VERSION, self._node, archive.log_id, end.seq + 1, end.sha256,
            runs[0].first_lsn if runs else end.end_lsn, end_lsn, end.revision, revision, until_us,
            len(changes), len(state), runs, gap,
        )  # fmt: skip
        name = layout.archive_name(self._node, archive.log_id, header.seq)
        nonce = self._randomness.token(NONCE_PREFIX_BYTES)
        data = await self._offload.run(lambda: self._encode(header, changes, state, log, nonce))
        self._on_effect(ArchiveEffect.SEAL)
        # Exclusive: if another archiver of this node took the number, this pass fails, and nothing is replaced.
        await self._target.put_new(name, data)
        metrics.ARCHIVE_OBJECTS.inc()
        metrics.ARCHIVE_BYTES.inc(len(data))
        return len(data), _End(header.seq, hashlib.sha256(data).hexdigest(), end_lsn, revision, until_us)

    def _encode(self, header: ArchiveHeader, changes: bytes, state: bytes, log: list[bytes], nonce: bytes) -> bytes:
        pieces = layout.encode_archive(header, changes, state, log)
        return b"".join(pieces if self._key is None else encrypt(pieces, self._key, layout.ROLE, nonce))

    async def _read_log(self, lsn: int, synced_lsn: int) -> tuple[list[LogRun], list[bytes], int]:
        """Records from `lsn` on, about ARCHIVE_OBJECT_BYTES of them, and the LSN behind them."""
        runs: list[LogRun] = []
        log: list[bytes] = []
        size = 0
        while lsn <= synced_lsn and size < limits.ARCHIVE_OBJECT_BYTES:
            self._on_effect(ArchiveEffect.READ)
            answer = await self._call("archive_read", lsn=lsn, end_lsn=synced_lsn + 1)
            data: bytes = answer["data"]
            runs.append(LogRun(answer["file"], answer["start"], len(data), answer["first_lsn"], answer["records"]))
            log.append(data)
            size += len(data)
            lsn = answer["end_lsn"]
        return runs, log, lsn

    async def _read_changes(self, after: int, mark: _Mark) -> tuple[bytes, bytes, int]:
        """The changes above `after`, or the state, and the revision up to which they go."""
        if not mark.changes_after <= after <= mark.revision:
            return await self._read_state()
        changes: list[MetadataChange] = []
        is_all = False
        while not is_all:
            last = changes[-1].revision if changes else after
            try:
                answer = await self._call("archive_changes", after=last)
            except errors.PositionGone:
                return await self._read_state()
            page = _changes_decoder.decode(answer["changes"])
            changes += page
            # What came since the mark belongs to a later object.
            is_all = answer["is_all"] or not page or page[-1].revision >= mark.revision
        changes = [change for change in changes if change.revision <= mark.revision]
        return layout.encode_changes(changes), b"", mark.revision

    async def _read_state(self) -> tuple[bytes, bytes, int]:
        answer = await self._call("archive_freeze")
        parts = [
            (await self._call("archive_part", start=start))["data"]
            for start in range(0, answer["state_bytes"], limits.BACKUP_PART_BYTES)
        ]
        return b"", b"".join(parts), answer["revision"]

    def _note_gap(self, gap: ArchiveGap) -> None:
        self._gaps = [*self._gaps, gap][-limits.ARCHIVE_GAPS_LISTED :]
        metrics.ARCHIVE_GAPS.inc()
        _log.error(
            "the archive has a gap; the next backup closes it",
            from_lsn=gap.from_lsn,
            to_lsn=gap.to_lsn,
            reason=gap.reason,
        )

    # --- head and retention ---

    @property
    def _head_is_due(self) -> bool:
        if self._head_written_ns is None:
            return True
        return (self._clock.monotonic_ns() - self._head_written_ns) / 1e9 >= limits.ARCHIVE_HEAD_SECONDS

    async def _write_head(self, archive: StoredArchive, end: _End) -> None:
        self._on_effect(ArchiveEffect.HEAD)
        self._head_written_ns = self._clock.monotonic_ns()
        head = ArchiveHead(
            layout.FORMAT_VERSION, self._node, archive.log_id, self._first_seq, end.seq, end.sha256, end.end_lsn,
            end.revision, end.until_us, self._gaps,
        )  # fmt: skip
        await archive.put_head(head)

    async def retain(self, bases: list[ArchiveBase], keep_age_ms: int) -> None:
        """Removes objects that no backup needs; without a pass before nothing."""
        if self._archive is None:
            return
        self._on_effect(ArchiveEffect.RETAIN)
        cut_before_ms = self._clock.wall_us() // 1_000 - keep_age_ms if keep_age_ms else 0
        self._first_seq = await self._archive.retain(bases, cut_before_ms) or self._first_seq


def _gap_of(end: _End, mark: _Mark) -> ArchiveGap | None:
    """What cannot be archived any more."""
    seq, now_us = end.seq + 1, mark.now_us
    if end.problem:
        return ArchiveGap(seq, end.end_lsn, mark.synced_lsn + 1, end.until_us, now_us, end.problem)
    if end.end_lsn < mark.first_lsn:
        reason = "the log freed them before they were archived"
        return ArchiveGap(seq, end.end_lsn, mark.first_lsn, end.until_us, now_us, reason)
    if end.end_lsn > mark.synced_lsn + 1:
        reason = f"the log went back: its end is record {mark.synced_lsn}, archived were those below {end.end_lsn}"
        return ArchiveGap(seq, mark.synced_lsn + 1, mark.synced_lsn + 1, end.until_us, now_us, reason)
    return None
