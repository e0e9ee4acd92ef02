"""Looks into a log without changing it: its files, its shards, its records, and whether a start would find damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from icestream import errors
from icestream.model.shard import Gap, ShardKey
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal.footer import load_index
from icestream.wal.index import FileIndex
from icestream.wal.lifecycle import FileState
from icestream.wal.log_file import Seal
from icestream.wal.recovery import examine
from icestream.wal.scan import scan_records
from icestream.wal.survey import Survey, SurveyedFile, survey


@dataclass(frozen=True, slots=True)
class FileView:
    name: str
    state: FileState
    first_lsn: int
    last_lsn: int
    size: int
    used_bytes: int
    shards: int


@dataclass(frozen=True, slots=True)
class ShardView:
    key: ShardKey
    topic: str
    floor: int
    end: int
    reserved: int
    epoch: int
    gaps: list[Gap]


@dataclass(slots=True)
class LogView:
    files: list[FileView] = field(default_factory=list)
    shards: list[ShardView] = field(default_factory=list)
    spares: int = 0
    checkpoint_lsn: int = 0
    last_lsn: int = 0
    producers: int = 0
    clean: bool = False
    damage: errors.LogDamaged | None = None


def view_log(directory: Directory) -> LogView:
    found = survey(directory)
    view = LogView(spares=len(found.spares), checkpoint_lsn=found.checkpoint.lsn if found.checkpoint else 0)
    view.files = [_view_file(directory, file) for file in found.files]
    view.files += [FileView(name, FileState.ACTIVE, 0, 0, 0, 0, 0) for name, _ in found.bad_headers]
    try:
        _view_state(directory, found, view)
    except errors.LogDamaged as error:
        view.damage = error
    return view


def _view_state(directory: Directory, found: Survey, view: LogView) -> None:
    replay = examine(directory, found)
    state = replay.state
    view.last_lsn = replay.report.last_lsn
    view.clean = bool(found.checkpoint and found.checkpoint.clean and found.checkpoint.lsn == view.last_lsn)
    view.producers = len(state.producers)
    view.shards = [
        ShardView(
            key, shard.topic.name, shard.floor, shard.assigned, shard.reserved, shard.epoch, state.gaps.get(key, [])
        )
        for key, shard in sorted(state.shards.items())
    ]


def _view_file(directory: Directory, file: SurveyedFile) -> FileView:
    if file.seal is None:
        records = list(records_of(directory, file.name, file.number))
        first, last = (records[0].lsn, records[-1].lsn) if records else (0, 0)
        used = records[-1].end if records else wire.RECORDS_START
        state = FileState.ACTIVE if records else FileState.PREPARED
        return FileView(file.name, state, first, last, file.size, used, 0)
    seal = file.seal
    index = _index(directory, file.name, seal)
    used = seal.end_position + seal.footer_bytes
    shards = len(index.shards) if index else 0
    return FileView(file.name, FileState.SEALED, seal.first_lsn, seal.last_lsn, file.size, used, shards)


def _index(directory: Directory, name: str, seal: Seal) -> FileIndex | None:
    handle = directory.open(name)
    try:
        return load_index(handle, seal)
    except errors.LogDamaged:
        return None
    finally:
        handle.close()


def records_of(directory: Directory, name: str, number: int) -> Iterator[wire.Header]:
    """The good records of one file, in order, up to the first that is not."""
    handle = directory.open(name)
    try:
        data = handle.read_at(wire.RECORDS_START, max(handle.size() - wire.RECORDS_START, 0))
    finally:
        handle.close()
    try:
        first = wire.decode_header(data, 0, wire.RECORDS_START).lsn
    except errors.DecodeError:
        return
    found, _, _, _ = scan_records(data, wire.RECORDS_START, number, first)
    for record in found:
        yield wire.decode_header(data, record[0] - wire.RECORDS_START, record[0])
