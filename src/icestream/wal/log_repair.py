"""Performs a repair plan (damage.py), so that the log opens again with everything that is not lost.

It is atomic: the names of files record the progress, and the last steps are renames.
    mended-<name>       the new file <name>, written and synced
    aside-<name>        empty: the file <name> is set aside without a replacement
    repair-decided      empty: all of the above is on disk. From here on the repair is in force
    damaged-<n>-<name>  the originals get these names, then each mended file gets its own, then the mark is removed
Interrupted before the mark, the repair has changed nothing: the next repair or start removes its files. After the mark,
a start is refused until the repair is run again, which continues with the renames.
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
from icestream.wal.log_copy import LogFileBuilder, write_whole
from icestream.wal.log_file import ASIDE, MENDED, REPAIR_NAME, FileHeader, is_unfinished, log_name

# The most sections in one new record: each may need the name of its topic beside it, and the directory is bounded.
_SECTIONS_MAX: Final = limits.RECORD_SECTIONS_MAX // 3


def apply_repair(directory: Directory, clock: Clock, plan: RepairPlan) -> list[str]:
    """Performs or continues the plan; returns the new names of the damaged originals."""
    if not plan.is_needed:
        return []
    if not plan.is_decided:
        _stage(directory, clock, plan)
        # The point of no return. Everything before it is undone by the next start, everything behind it is finished by
        # the next repair.
        directory.create(REPAIR_NAME).close()
        directory.sync()
    return _rename_all(directory)


def _stage(directory: Directory, clock: Clock, plan: RepairPlan) -> None:
    """Writes and syncs all new files beside the log."""
    for name in filter(is_unfinished, directory.names()):
        directory.remove(name)
    if plan.closing:
        _write(directory, clock, plan.closing.header, _build_closing(plan.closing, plan.topics))
    for rewrite in plan.rewrites:
        builder = _build_mended(rewrite, read_records(directory, rewrite.name), plan.topics)
        _write(directory, clock, rewrite.header, builder)
    for name in plan.set_aside:
        directory.create(f"{ASIDE}{name}").close()
    directory.sync()


def _write(directory: Directory, clock: Clock, header: FileHeader, builder: LogFileBuilder) -> None:
    """Writes one new file under its temporary name, and syncs it."""
    header = replace(header, synced_through=builder.last_lsn, created_us=clock.wall_us())
    write_whole(directory, f"{MENDED}{log_name(header.number)}", header, builder)


def _rename_all(directory: Directory) -> list[str]:
    """Renames the originals and the new files. A crash may happen after each step: finished renames are skipped."""
    damaged_names: list[str] = []
    names = directory.names()
    mended = [name for name in names if name.startswith(MENDED)]
    aside = [name for name in names if name.startswith(ASIDE)]
    for original in [*(name.removeprefix(MENDED) for name in mended), *(name.removeprefix(ASIDE) for name in aside)]:
        if original in names:
            damaged_names.append(_damaged_name(directory, original))
            directory.rename(original, damaged_names[-1])
    for name in mended:
        directory.rename(name, name.removeprefix(MENDED))
    for name in aside:
        directory.remove(name)
    directory.sync()
    directory.remove(REPAIR_NAME)
    directory.sync()
    return damaged_names


def _build_closing(closing: ClosingFile, topics: Mapping[int, TopicIdentity]) -> LogFileBuilder:
    """The closing file: its first record carries the first lost LSN, so that the LSNs have no hole."""
    builder = LogFileBuilder(closing.header.number)
    if closing.lsn_first < closing.lsn:
        builder.add(closing.kind, closing.lsn_first, 0, 0, ())
    topic_ids: set[int] = set()
    for lsn, sections in enumerate(_chunks(closing.sections), start=closing.lsn):
        builder.add(closing.kind, lsn, 0, 0, _with_topic_notes(sections, topic_ids, topics))
    return builder


def _build_mended(rewrite: FileRewrite, data: bytes, topics: Mapping[int, TopicIdentity]) -> LogFileBuilder:
    """The file with its good sections, and records that stand in for lost ones."""
    builder = LogFileBuilder(rewrite.header.number)
    topic_ids: set[int] = set()
    for record in rewrite.parts:
        sections = list(_sections(record, data))
        if record.position:
            header = wire.decode_header(data, record.position - RECORDS_START, record.position)
            complete = _with_topic_notes(sections, topic_ids, topics)
            builder.add(record.kind, record.lsn, header.synced_through, header.append_time_us, complete)
            continue
        for lsn, chunk in _stand_ins(sections, record.losses[0].lsn_first, record.lsn):
            builder.add(record.kind, lsn, 0, 0, _with_topic_notes(chunk, topic_ids, topics))
    return builder


def _stand_ins(
    sections: Sequence[wire.RecordSection], first: int, last: int
) -> Iterator[tuple[int, Sequence[wire.RecordSection]]]:
    """The records in place of the LSNs `first` to `last`: one for each end, and more if the sections need them.

    No lost record had more sections than fit one of these, so there are enough LSNs.
    """
    chunks = _chunks(sections)
    if len(chunks) == 1 and first < last:
        chunks.insert(0, ())
    lsns = (first, *range(last - len(chunks) + 2, last + 1)) if first < last else (first,)
    yield from zip(lsns, chunks, strict=True)


def _chunks(sections: Sequence[wire.RecordSection]) -> list[Sequence[wire.RecordSection]]:
    """Splits the sections into as many as fit one record; at least one chunk, which may be empty."""
    return [sections[start : start + _SECTIONS_MAX] for start in range(0, len(sections), _SECTIONS_MAX)] or [()]


def _sections(record: RewrittenRecord, data: bytes) -> Iterator[wire.RecordSection]:
    """The sections that stay of a record, and the notes on its losses.

    In an existing record the notes come first, because its shards may continue after what they lost before it. In place
    of missing records they come last, because the salvaged sections are the oldest.
    """
    loss_notes = [notes.gap_section(gap) for loss in record.losses for gap in loss.gaps]
    if record.position:
        yield from loss_notes
    positions: Iterable[int] = record.section_positions or ()
    if record.section_positions is None:
        header = wire.decode_header(data, record.position - RECORDS_START, record.position)
        start = record.position + wire.HEADER_BYTES
        positions = range(start, record.position + header.header_bytes, wire.ENTRY_BYTES)
    for position in positions:
        entry = wire.decode_entry(data, position - RECORDS_START, position)
        start = entry.body_position - RECORDS_START
        body = data[start : start + entry.body_bytes]
        fields = (entry.epoch, entry.base_offset, entry.append_time_us, entry.rows)
        yield wire.RecordSection(entry.topic_id, entry.shard, entry.kind, entry.flags, *fields, 0, body)
    if not record.position:
        yield from loss_notes


def _with_topic_notes(
    sections: Sequence[wire.RecordSection], topic_ids: set[int], topics: Mapping[int, TopicIdentity]
) -> list[wire.RecordSection]:
    """The sections, with the name of each topic before its first use in the file, also if that note was lost.

    `topic_ids`: the topics that the file names already; grows.
    """
    complete: list[wire.RecordSection] = []
    for section in sections:
        if section.topic_id and section.topic_id not in topic_ids and section.kind != SectionKind.TOPIC:
            topic = topics.get(section.topic_id) or TopicIdentity.nameless(section.topic_id)
            complete.append(notes.topic_section(topic))
        topic_ids.add(section.topic_id)
        complete.append(section)
    return complete


def _damaged_name(directory: Directory, name: str) -> str:
    """An unused name for the damaged original."""
    names = directory.names()
    number = 1
    while (damaged_name := f"damaged-{number}-{name}") in names:
        number += 1
    return damaged_name
