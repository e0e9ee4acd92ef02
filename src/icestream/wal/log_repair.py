"""Carries out the plan of a repair (damage.py), so that the log opens again with everything that is not lost.

All or nothing: only names say how far it is, and the last steps are renames.
    mended-<name>       the file that will stand there, written and synced
    aside-<name>        empty: that file goes, and nothing takes its place
    repair-decided      empty: all of the above is on disk. From here on the repair counts
    damaged-<n>-<name>  the originals get these names, then each mended file gets its own, and the mark goes
Interrupted before the mark, it has changed nothing: what it left behind is removed by the next repair or start. After
it, a start is refused until the repair is called again, which goes on with the renames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from icestream import limits
from icestream.model.shard import TopicIdentity
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.wal import format as wire
from icestream.wal import notes
from icestream.wal.damage import ClosingFile, FileRewrite, RepairPlan, RewrittenRecord, read_records
from icestream.wal.format import RECORDS_START, SectionKind
from icestream.wal.log_file import ASIDE, MENDED, REPAIR_NAME, FileHeader, is_unfinished, log_name
from icestream.wal.rewrite import LogFileBuilder, write_whole

# Sections in one record that is made here: beside each may stand the name of its topic, and the directory has an end.
_SECTIONS_MAX: Final = limits.RECORD_SECTIONS_MAX // 3


def apply_repair(directory: Directory, clock: Clock, plan: RepairPlan) -> list[str]:
    """Carries the plan out, or to its end when it was interrupted; the names that the damaged originals have now."""
    if not plan.is_needed:
        return []
    if not plan.is_decided:
        _stage(directory, clock, plan)
        directory.create(REPAIR_NAME).close()
        directory.sync()
    return _rename_all(directory)


def _stage(directory: Directory, clock: Clock, plan: RepairPlan) -> None:
    """Everything that the repair makes, beside the log and on disk."""
    for name in filter(is_unfinished, directory.names()):
        directory.remove(name)
    if plan.closing:
        _write(directory, clock, plan.closing.header, _closing_copy(plan.closing, plan.topics))
    for rewrite in plan.rewrites:
        copy = _mended_copy(rewrite, read_records(directory, rewrite.name), plan.topics)
        _write(directory, clock, rewrite.header, copy)
    for name in plan.set_aside:
        directory.create(f"{ASIDE}{name}").close()
    directory.sync()


def _write(directory: Directory, clock: Clock, header: FileHeader, copy: LogFileBuilder) -> None:
    header = replace(header, synced_through=copy.last_lsn, created_us=clock.wall_us())
    write_whole(directory, f"{MENDED}{log_name(header.number)}", header, copy)


def _rename_all(directory: Directory) -> list[str]:
    """Each step may be the last one before a crash: what has its name already is not looked at again."""
    kept: list[str] = []
    names = directory.names()
    mended = [name for name in names if name.startswith(MENDED)]
    aside = [name for name in names if name.startswith(ASIDE)]
    for original in [*(name.removeprefix(MENDED) for name in mended), *(name.removeprefix(ASIDE) for name in aside)]:
        if original in names:
            kept.append(_name_aside(directory, original))
            directory.rename(original, kept[-1])
    for name in mended:
        directory.rename(name, name.removeprefix(MENDED))
    for name in aside:
        directory.remove(name)
    directory.sync()
    directory.remove(REPAIR_NAME)
    directory.sync()
    return kept


def _closing_copy(closing: ClosingFile, topics: Mapping[int, TopicIdentity]) -> LogFileBuilder:
    copy = LogFileBuilder(closing.header.number)
    if closing.lsn_first < closing.lsn:
        copy.add(closing.kind, closing.lsn_first, 0, 0, ())
    named: set[int] = set()
    for lsn, sections in enumerate(_chunks(closing.sections), start=closing.lsn):
        copy.add(closing.kind, lsn, 0, 0, _named(sections, named, topics))
    return copy


def _mended_copy(rewrite: FileRewrite, data: bytes, topics: Mapping[int, TopicIdentity]) -> LogFileBuilder:
    copy = LogFileBuilder(rewrite.header.number)
    named: set[int] = set()
    for part in rewrite.parts:
        sections = list(_sections(part, data))
        if part.position:
            header = wire.decode_header(data, part.position - RECORDS_START, part.position)
            placed = _named(sections, named, topics)
            copy.add(part.kind, part.lsn, header.synced_through, header.append_time_us, placed)
            continue
        for lsn, chunk in _stand_ins(sections, part.losses[0].lsn_first, part.lsn):
            copy.add(part.kind, lsn, 0, 0, _named(chunk, named, topics))
    return copy


def _stand_ins(
    sections: Sequence[wire.RecordSection], first: int, last: int
) -> Iterator[tuple[int, Sequence[wire.RecordSection]]]:
    """The records that stand for LSNs `first` to `last`: one for each end, and more when the sections need them. No
    lost record had more sections than fit one of these, so there are LSNs for all."""
    chunks = _chunks(sections)
    if len(chunks) == 1 and first < last:
        chunks.insert(0, ())
    lsns = (first, *range(last - len(chunks) + 2, last + 1)) if first < last else (first,)
    yield from zip(lsns, chunks, strict=True)


def _chunks(sections: Sequence[wire.RecordSection]) -> list[Sequence[wire.RecordSection]]:
    """As many sections as fit one record, in at least one."""
    return [sections[start : start + _SECTIONS_MAX] for start in range(0, len(sections), _SECTIONS_MAX)] or [()]


def _sections(part: RewrittenRecord, data: bytes) -> Iterator[wire.RecordSection]:
    """What stays of a record, and the notes on what does not. In a record that is there they come first: its shards may
    go on behind what they lost before it. In the place of missing ones they come last: what was saved is the oldest."""
    notes_on_losses = [notes.gap_section(gap) for loss in part.losses for gap in loss.gaps]
    if part.position:
        yield from notes_on_losses
    positions: Iterable[int] = part.kept or ()
    if part.kept is None:
        header = wire.decode_header(data, part.position - RECORDS_START, part.position)
        positions = range(part.position + wire.HEADER_BYTES, part.position + header.header_bytes, wire.ENTRY_BYTES)
    for position in positions:
        entry = wire.decode_entry(data, position - RECORDS_START, position)
        start = entry.body_position - RECORDS_START
        body = data[start : start + entry.body_bytes]
        fields = (entry.epoch, entry.base_offset, entry.append_time_us, entry.rows)
        yield wire.RecordSection(entry.topic_id, entry.shard, entry.kind, entry.flags, *fields, 0, body)
    if not part.position:
        yield from notes_on_losses


def _named(
    sections: Sequence[wire.RecordSection], named: set[int], topics: Mapping[int, TopicIdentity]
) -> list[wire.RecordSection]:
    """The sections with the name of each topic before its first use in the file, also where that note was lost."""
    placed: list[wire.RecordSection] = []
    for section in sections:
        if section.topic_id and section.topic_id not in named and section.kind != SectionKind.TOPIC:
            placed.append(notes.topic_section(topics.get(section.topic_id) or TopicIdentity.nameless(section.topic_id)))
        named.add(section.topic_id)
        placed.append(section)
    return placed


def _name_aside(directory: Directory, name: str) -> str:
    names = directory.names()
    number = 1
    while (aside := f"damaged-{number}-{name}") in names:
        number += 1
    return aside
