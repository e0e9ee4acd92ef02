"""Inspects a log without changing it: its files, shards and records, and whether a start would refuse it as damaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from icestream import errors
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal.file_states import FileState
from icestream.wal.footer import load_index
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal
from icestream.wal.record_scan import find_headers
from icestream.wal.recovery import examine
from icestream.wal.survey import Survey, SurveyedFile, survey

DAMAGED: Final = "damaged"
SPILL: Final = "spill"
# A busy broker rotates a few times a second at most, and one attempt takes less: one of them sees no change.
_ATTEMPTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class FileView:
    """One file of the log, as `icestream wal inspect` lists it."""

    name: str
    state: str  # a FileState, SPILL, or DAMAGED when not even its header can be read
    first_lsn: int
    last_lsn: int
    size: int
    used_bytes: int
    shards: int


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard: its floor, the end of its offsets, and its gaps."""

    key: ShardKey
    topic: str
    floor: int
    end: int
    reserved: int
    epoch: int
    gaps: list[DeclaredGap]


class RecordView(NamedTuple):
    """One record, or bytes between two records that are not a record (`lsn` 0)."""

    lsn: int
    kind: str
    position: int
    size: int
    sections: int
    state: str
    synced_through: int
    append_time_us: int


@dataclass(slots=True)
class LogView:
    """The whole log; `damage` is the reason for which a start would refuse it."""

    files: list[FileView] = field(default_factory=list)
    shards: list[ShardView] = field(default_factory=list)
    spares: int = 0
    checkpoint_lsn: int = 0
    last_lsn: int = 0
    producers: int = 0
    clean: bool = False
    sync_failed: bool = False  # in the last run; a start rewrites the unsealed file and clears this
    damage: errors.LogDamaged | None = None

    @property
    def used_bytes(self) -> int:
        """The bytes that count against the quota of the node."""
        return sum(file.used_bytes for file in self.files if file.state in (FileState.ACTIVE, FileState.SEALED, SPILL))


def view_log(directory: Directory) -> LogView:
    """The log as a start would see it now. Raises StaleRead if the files change faster than they can be read.

    A running broker writes, renames and frees files while they are read here, which looks like damage. Real damage
    stays: it is reported only if two attempts agree.
    """
    last_damage = ""
    view = None
    for _ in range(_ATTEMPTS_MAX):
        try:
            view = _view_once(directory)
        except FileNotFoundError:
            continue
        if view.damage is None or str(view.damage) == last_damage:
            return view
        last_damage = str(view.damage)
    if view is None:
        raise errors.StaleRead("the files of the log change faster than they can be read", hint="try again")
    return view


def _view_once(directory: Directory) -> LogView:
    contents = survey(directory)
    view = LogView(spares=len(contents.spares), sync_failed=contents.sync_failed)
    view.checkpoint_lsn = contents.checkpoint.lsn if contents.checkpoint else 0
    view.files = [_view_file(directory, file) for file in contents.files]
    view.files += [replace(_view_file(directory, file), state=SPILL) for file in contents.spills]
    bad_files = (*contents.bad_headers, *contents.bad_spills)
    view.files += [FileView(name, DAMAGED, 0, 0, 0, 0, 0) for name, _ in bad_files]
    view.files.sort(key=lambda file: file.name)
    try:
        _view_state(directory, contents, view)
    except errors.LogDamaged as error:
        view.damage = error
    return view


def _view_state(directory: Directory, contents: Survey, view: LogView) -> None:
    replay = examine(directory, contents)
    state = replay.state
    checkpoint = contents.checkpoint
    view.last_lsn = replay.report.last_lsn
    view.clean = bool(checkpoint and checkpoint.clean and checkpoint.lsn == view.last_lsn)
    view.producers = len(state.producers)
    view.shards = [
        ShardView(
            key, shard.topic.name, shard.floor, shard.assigned, shard.reserved, shard.epoch, state.gaps.get(key, [])
        )
        for key, shard in sorted(state.shards.items())
    ]


def _view_file(directory: Directory, file: SurveyedFile) -> FileView:
    if file.seal is None:
        records = [record for record in records_of(directory, file.name, file.number) if record.lsn]
        first, last = (records[0].lsn, records[-1].lsn) if records else (0, 0)
        used = records[-1].position + records[-1].size if records else wire.RECORDS_START
        state = FileState.ACTIVE if records else FileState.PREPARED
        return FileView(file.name, state.value, first, last, file.size, used, 0)
    seal = file.seal
    index = _index(directory, file.name, seal)
    used = seal.end_position + seal.footer_bytes
    shards = len(index.shards) if index else 0
    return FileView(file.name, FileState.SEALED.value, seal.first_lsn, seal.last_lsn, file.size, used, shards)


def _index(directory: Directory, name: str, seal: Seal) -> FileIndex | None:
    handle = directory.open(name)
    try:
        return load_index(handle, seal)
    except errors.LogDamaged:
        return None
    finally:
        handle.close()


def records_of(directory: Directory, name: str, number: int) -> Iterator[RecordView]:
    """The records of one file in order, also those after damage, and the bytes in between that are not a record."""
    handle = directory.open(name)
    try:
        data = handle.read_at(wire.RECORDS_START, max(handle.size() - wire.RECORDS_START, 0))
    finally:
        handle.close()
    at = wire.RECORDS_START
    for position, _, _ in find_headers(data, wire.RECORDS_START, number, 1):
        if position < at:
            continue  # inside a record: a message that looks like a record
        if position > at:
            yield RecordView(0, "unreadable", at, position - at, 0, DAMAGED, 0, 0)
        header = wire.decode_header(data, position - wire.RECORDS_START, position)
        yield _view_record(data, header)
        at = header.end


def _view_record(data: bytes, header: wire.RecordHeader) -> RecordView:
    at = header.position - wire.RECORDS_START
    entries = wire.decode_entries(data, at, header)
    is_good = all(wire.check_section(data, at, header, entry) for entry in entries)
    return RecordView(
        header.lsn,
        wire.RecordKind(header.kind).name.lower(),
        header.position,
        header.record_bytes,
        header.section_count,
        "good" if is_good else DAMAGED,
        header.synced_through,
        header.append_time_us,
    )
