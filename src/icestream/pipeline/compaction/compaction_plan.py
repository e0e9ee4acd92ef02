"""Which files of a table are rewritten together. Pure.

Files of one partition are put in the order of their append times, which is the order of the offsets of each shard, and
a group is a run of neighbours: so the offsets of a group are a band that no other group overlaps, and readers by offset
open as few files as before (hazard 94). A file of half the size of a group or more is finished: it ends a run.

    oldest                                       newest
    [60] | 2 1 3 1 2 1 1 2 | [64] | 1 1 1 1 1          sizes in MiB, groups of 64 MiB
           one group of 8           5 files: they wait for more

A group is worth it if it has `files_min` files, or two once its table is idle or maintenance was requested. Its largest
file is at most half of it, unless the group is full: so each time that a row is rewritten, its file at least doubles,
and a row is rewritten about log2(group / round) times in its life.

Delete files are applied in passing. A file that is in no group is rewritten by itself, whatever its size, if a tenth of
its rows is deleted as far as manifests tell, or as many delete files apply to it as make a group; any delete is enough
once the table is idle or maintenance was requested (hazard 77).

Files of older partition specs are rewritten into the present one when an operator asks for it (ADR 127): any run of
neighbours of one older partition is a group, a single file and a finished one as well.

Nothing is planned for a table that a plan has just been carried out for: each group leaves one file in place of
several, and no delete of that time applies to it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from icestream import limits


class CandidateFile(NamedTuple):
    """A data file of a table that may be rewritten: written by the pipeline."""

    location: str
    rows: int
    bytes: int
    partition: tuple[Hashable, ...]
    first_time_us: int  # lowest append time
    last_time_us: int
    first_offset: int  # lowest offset of any of its shards
    deletes: tuple[str, ...] = ()  # names of the delete files that may apply to it
    applied: tuple[str, ...] = ()  # those of them that do, as far as manifests tell
    deleted_rows: int = 0  # of delete files that name no other file
    spec_id: int = 0  # of its partition

    @property
    def age_order(self) -> tuple[int, int, str]:
        return self.first_time_us, self.first_offset, self.location


class CompactionRule(NamedTuple):
    """When files are rewritten. `is_requested`: an operator asked for it, so two files are enough."""

    group_bytes: int = limits.COMPACTION_GROUP_BYTES
    files_min: int = limits.COMPACTION_FILES_MIN
    idle_ms: int = limits.COMPACTION_IDLE_MS
    is_requested: bool = False
    span_us: int = 0  # of the append times of a group, for a table that keeps its rows for a time; 0: any


class FileGroup(NamedTuple):
    """Files that become one, in the order of their append times; of an older partition spec (`repartitions`) one for
    each value of the present one."""

    files: tuple[CandidateFile, ...]
    repartitions: bool = False

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def key(self) -> frozenset[str]:
        """Files and deletes: after another delete it is another group."""
        return frozenset(name for file in self.files for name in (file.location, *file.deletes))

    @property
    def partition(self) -> tuple[Hashable, ...]:
        return self.files[0].partition


def plan_groups(
    files: Iterable[CandidateFile], rule: CompactionRule, now_us: int, left_alone: Collection[frozenset[str]] = ()
) -> list[FileGroup]:
    """Returns the groups that are worth a rewrite, those that save most files first. `left_alone`: keys of groups that
    a task could not improve."""
    groups: list[FileGroup] = []
    in_order = sorted(files, key=lambda file: (repr(file.partition), file.age_order))
    for _, of_partition in groupby(in_order, key=lambda file: file.partition):
        neighbours = list(of_partition)
        is_idle = neighbours[-1].last_time_us < now_us - rule.idle_ms * 1000
        files_min = 2 if rule.is_requested or is_idle else max(2, rule.files_min)
        for run in _runs(neighbours, rule.group_bytes):
            groups += _groups_of_run(run, rule, files_min)
        grouped = {file.location for group in groups for file in group.files}
        groups += [
            FileGroup((file,))
            for file in neighbours
            if file.location not in grouped and _has_many_deletes(file, files_min)
        ]
    worthwhile = [group for group in groups if group.key not in left_alone]
    return sorted(worthwhile, key=lambda group: (-len(group.files), group.files[0].age_order))


def plan_repartition(
    files: Iterable[CandidateFile], group_bytes: int, left_alone: Collection[frozenset[str]] = ()
) -> list[FileGroup]:
    """Returns groups of files of older partition specs, the oldest first, each at most as large as a file of the table
    should be, or one file."""
    groups: list[FileGroup] = []
    in_order = sorted(files, key=lambda file: (file.spec_id, repr(file.partition), file.age_order))
    for _, of_partition in groupby(in_order, key=lambda file: (file.spec_id, file.partition)):
        group: list[CandidateFile] = []
        for file in of_partition:
            is_full = len(group) == limits.COMPACTION_GROUP_FILES_MAX
            if group and (is_full or sum(member.bytes for member in group) + file.bytes > group_bytes):
                groups.append(FileGroup(tuple(group), repartitions=True))
                group = []
            group.append(file)
        groups.append(FileGroup(tuple(group), repartitions=True))
    worthwhile = [group for group in groups if group.key not in left_alone]
    return sorted(worthwhile, key=lambda group: group.files[0].age_order)


def small_files(files: Iterable[CandidateFile], group_bytes: int = limits.COMPACTION_GROUP_BYTES) -> int:
    """Returns how many files are below half of a group: those that compaction is for."""
    return sum(not _is_finished(file, group_bytes) for file in files)


def _has_many_deletes(file: CandidateFile, files_min: int) -> bool:
    """Whether a file is worth a rewrite for its deletes alone; with two as the least of a group, any delete is."""
    if not file.applied:
        return False
    return (
        files_min == 2
        or len(file.applied) >= files_min
        or limits.COMPACTION_DELETED_SHARE * file.deleted_rows >= file.rows
    )


def _is_finished(file: CandidateFile, group_bytes: int) -> bool:
    return 2 * file.bytes >= group_bytes


def _runs(files: Sequence[CandidateFile], group_bytes: int) -> Iterator[list[CandidateFile]]:
    """Yields neighbours that are not finished."""
    for is_finished, run in groupby(files, key=lambda file: _is_finished(file, group_bytes)):
        if not is_finished:
            yield list(run)


def _groups_of_run(run: Sequence[CandidateFile], rule: CompactionRule, files_min: int) -> Iterator[FileGroup]:
    """Divides a run from its oldest file on into full groups, and the rest into at most one that is not full."""
    group: list[CandidateFile] = []
    for file in run:
        if group and _is_too_much(group, file, rule):
            # Full: with the next file it would be too large, or span too long a time. Nothing joins the result.
            yield from _as_group(group, 2, limits.COMPACTION_GROUP_FILES_MAX)
            group = []
        group.append(file)
        if len(group) == limits.COMPACTION_GROUP_FILES_MAX:
            yield FileGroup(tuple(group))
            group = []
    while group and 2 * max(file.bytes for file in group) > sum(file.bytes for file in group):
        # The file in front of it is large already: only what came behind it is merged, until that is as large.
        largest = max(range(len(group)), key=lambda index: group[index].bytes)
        group = group[largest + 1 :]
    yield from _as_group(group, files_min, limits.COMPACTION_GROUP_FILES_MAX)


def _is_too_much(group: Sequence[CandidateFile], file: CandidateFile, rule: CompactionRule) -> bool:
    if sum(member.bytes for member in group) + file.bytes > rule.group_bytes:
        return True
    return bool(rule.span_us) and file.last_time_us - group[0].first_time_us > rule.span_us


def _as_group(files: Sequence[CandidateFile], files_min: int, files_max: int) -> Iterator[FileGroup]:
    if files_min <= len(files) <= files_max:
        yield FileGroup(tuple(files))
