"""Which data files of a table a retention removes, and where the topic begins after it (hazards 85, 86). Pure.

    bytes, messages    the oldest files go as long as the rest is still at least that much
    age                a file goes if all its rows are too old: by the index of commit times, and by their append times
    consumed           where acks matter (hazard 87): of the files above, those that all consumers have acked; without
                       a limit by bytes, messages or age every such file
    upper bound        beyond the bytes or the age up to which unconsumed messages are kept, acked or not
    always             a file whose rows all lie below the first kept offset already: a rollback had brought it back

Then the files are made a prefix of each shard. The first kept offset of a shard is the lowest one of any file that
stays, so a file goes only if it lies below that for every shard that it holds. A file that cannot go, or of which
nothing is known, keeps everything above its lowest offset.

A manifest does not tell where each shard of a file of several shards ends. `unread_files` names those of which that
decides something; they are read, and then it is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from icestream.catalog.topic_rules.retention_claim import is_below
from icestream.catalog.topic_rules.rewritten_rows import Bounds, DataFile


class RetentionLimits(NamedTuple):
    """What a topic keeps, over all its shards; 0: no limit."""

    bytes_max: int = 0
    messages_max: int = 0
    age_ms: int = 0
    # The upper bound of what no consumer has acked; both 0: acks do not matter.
    unconsumed_bytes_max: int = 0
    unconsumed_age_ms: int = 0

    @property
    def is_until_consumed(self) -> bool:
        return bool(self.unconsumed_bytes_max or self.unconsumed_age_ms)

    @property
    def has_limit(self) -> bool:
        """True if something may go whether or not it was acked, where acks do not matter."""
        return bool(self.bytes_max or self.messages_max or self.age_ms)

    @property
    def history_ms(self) -> int:
        """How long messages may be kept; 0: for ever."""
        return max(self.age_ms, self.unconsumed_age_ms)


class StoredFile(NamedTuple):
    """A live data file of a table."""

    file: DataFile
    bytes: int
    newest_us: int | None  # append time; None: not known
    is_removable: bool  # False: it is in a manifest that the pipeline does not write again
    ranges: Mapping[int, Bounds] | None = None  # the offsets of each shard; None: as the manifest tells

    def is_below(self, first: Mapping[int, int]) -> bool:
        """True if every row lies below the offset of its shard; False if that is not known."""
        ranges = self.known_ranges
        return bool(ranges) and all(bounds.high < first.get(shard, 0) for shard, bounds in ranges.items())

    @property
    def known_ranges(self) -> Mapping[int, Bounds]:
        """The offsets of each shard that the file may hold; empty without bounds."""
        if self.ranges is not None:
            return self.ranges
        if self.file.shards is None or self.file.offsets is None:
            return {}
        return dict.fromkeys(range(self.file.shards.low, self.file.shards.high + 1), self.file.offsets)

    @property
    def is_read(self) -> bool:
        """True if reading the file would tell no more about its shards."""
        return self.ranges is not None or self.file.shards is None or self.file.shards.low == self.file.shards.high


class RetentionState(NamedTuple):
    """What a retention decides by."""

    files: Sequence[StoredFile]
    committed: Mapping[int, int]  # by shard
    first: Mapping[int, int]  # the first kept offsets
    expired: Mapping[int, int]  # per shard the offset below which every row was committed long ago; empty: none
    now_us: int
    rows_by_age_max: int  # how many rows may go by age; one file always may
    is_one_allowed: bool = True  # nothing was removed by age today
    # Where acks matter: per shard the offset below which all consumers have acked everything; empty: not known, or none
    consumed: Mapping[int, int] = MappingProxyType({})
    beyond: Mapping[int, int] = MappingProxyType({})  # as `expired`, by the upper bound of what is not consumed


class RetentionPlan(NamedTuple):
    """The files to remove, and the first kept offsets that rise."""

    removed: list[StoredFile]
    first: dict[int, int]
    rows_by_age: int
    is_held_back: bool  # more is too old than one day may remove
    unconsumed_rows: int = 0  # in files that go by the upper bound, before all consumers have acked them
    is_by_acks: bool = False  # acks decided about a file

    @property
    def rows(self) -> int:
        return sum(stored.file.rows for stored in self.removed)


def plan_removal(kept: RetentionLimits, state: RetentionState) -> RetentionPlan | None:
    """The files to remove now; None if there are none."""
    oldest_first = sorted(state.files, key=lambda stored: (stored.newest_us or 0, stored.file.sequence_number))
    leftovers = {stored.file.location for stored in oldest_first if stored.is_below(state.first)}
    by_size = _may_go_by_size(kept, oldest_first, state)
    by_age: dict[str, int] = {}
    is_held_back = False
    for stored in oldest_first:
        location = stored.file.location
        if location in by_size or location in leftovers or not _may_go_by_age(kept, stored, state):
            continue
        rows = sum(by_age.values()) + stored.file.rows
        # A wrong clock would make everything old at once: by age only so many rows go in a day, and the job says so.
        if rows > state.rows_by_age_max and (by_age or not state.is_one_allowed):
            is_held_back = True
            break
        by_age[location] = stored.file.rows
    candidates = {
        stored.file.location
        for stored in oldest_first
        if stored.is_removable and stored.file.location in by_size | leftovers | by_age.keys()
    }
    # Only a prefix of each shard may go: readers know one first kept offset, and no holes behind it (ADR 66).
    removed, first = _prefix(oldest_first, candidates, state)
    if not removed:
        return None
    rows_by_age = sum(by_age.get(stored.file.location, 0) for stored in removed)
    if not kept.is_until_consumed:
        return RetentionPlan(removed, first, rows_by_age, is_held_back)
    new = [stored for stored in removed if stored.file.location not in leftovers]
    unconsumed = [stored for stored in new if not stored.is_below(state.consumed)]
    return RetentionPlan(
        removed,
        first,
        rows_by_age,
        is_held_back,
        sum(stored.file.rows for stored in unconsumed),
        len(unconsumed) < len(new),
    )


def _may_go_by_size(kept: RetentionLimits, oldest_first: Sequence[StoredFile], state: RetentionState) -> set[str]:
    """The files that may go for their bytes or messages, or because they were acked."""
    by_size = _beyond_size(kept, oldest_first)
    if not kept.is_until_consumed:
        return by_size
    acked = {stored.file.location for stored in oldest_first if stored.is_below(state.consumed)}
    upper = RetentionLimits(bytes_max=kept.unconsumed_bytes_max)
    return (by_size & acked if kept.has_limit else acked) | _beyond_size(upper, oldest_first)


def _may_go_by_age(kept: RetentionLimits, stored: StoredFile, state: RetentionState) -> bool:
    if not kept.is_until_consumed:
        return _is_expired(kept.age_ms, stored, state.expired, state.now_us)
    is_acked = stored.is_below(state.consumed)
    return (is_acked and _is_expired(kept.age_ms, stored, state.expired, state.now_us)) or _is_expired(
        kept.unconsumed_age_ms, stored, state.beyond, state.now_us
    )


def unread_files(kept: RetentionLimits, state: RetentionState) -> list[StoredFile]:
    """The files of several shards that have to be read before a removal is planned, the oldest first: those that may
    have to go, and those that stay and may hold an offset below the end of one that goes."""
    oldest_first = sorted(state.files, key=lambda stored: (stored.newest_us or 0, stored.file.sequence_number))
    by_size = _beyond_size(kept, oldest_first) | _may_go_by_size(kept, oldest_first, state)
    marks = (state.first, state.expired, state.beyond, {} if kept.has_limit else state.consumed)
    may_go = [
        stored
        for stored in oldest_first
        if stored.file.location in by_size or any(is_below(stored.file, mark) for mark in marks if mark)
    ]
    highest = max((stored.file.offsets.high for stored in may_go if stored.file.offsets is not None), default=-1)
    locations = {stored.file.location for stored in may_go}
    return [
        stored
        for stored in oldest_first
        if not stored.is_read
        and (
            stored.file.location in locations
            or (stored.file.offsets is not None and stored.file.offsets.low <= highest)
        )
    ]


def _beyond_size(kept: RetentionLimits, oldest_first: Iterable[StoredFile]) -> set[str]:
    """The oldest files beyond the bytes or the messages that are kept."""
    stored_files = list(oldest_first)
    bytes_left = sum(stored.bytes for stored in stored_files)
    rows_left = sum(stored.file.rows for stored in stored_files)
    beyond: set[str] = set()
    for stored in stored_files:
        bytes_left, rows_left = bytes_left - stored.bytes, rows_left - stored.file.rows
        is_beyond = (kept.bytes_max and bytes_left >= kept.bytes_max) or (
            kept.messages_max and rows_left >= kept.messages_max
        )
        if not is_beyond:
            break
        beyond.add(stored.file.location)
    return beyond


def _is_expired(age_ms: int, stored: StoredFile, expired: Mapping[int, int], now_us: int) -> bool:
    # Both: a commit time alone would remove a row whose producer's node was ahead, a file's times alone one that was
    # appended with a clock that was behind.
    return (
        bool(age_ms)
        and stored.is_below(expired)
        and stored.newest_us is not None
        and stored.newest_us <= now_us - age_ms * 1000
    )


def _prefix(
    files: Sequence[StoredFile], candidates: set[str], state: RetentionState
) -> tuple[list[StoredFile], dict[int, int]]:
    """Those candidates that are a prefix of every shard that they may hold, and the first kept offsets after them."""
    while True:
        first = _first_kept([stored for stored in files if stored.file.location not in candidates], state)
        removed = [stored for stored in files if stored.file.location in candidates and stored.is_below(first)]
        removed_locations = {stored.file.location for stored in removed}
        if removed_locations == candidates:
            touched = {shard for stored in removed for shard in stored.known_ranges}
            return removed, {shard: first[shard] for shard in sorted(touched) if shard in first}
        # Each pass keeps at least one more file, which only lowers the first kept offsets: it ends.
        candidates = removed_locations


def _first_kept(kept_files: Iterable[StoredFile], state: RetentionState) -> dict[int, int]:
    """Per shard the lowest offset of the files that stay, and never lower than it is now."""
    lowest = dict(state.committed)
    for stored in kept_files:
        if not stored.known_ranges:
            return dict(state.first)  # it may hold any row
        for shard, bounds in stored.known_ranges.items():
            lowest[shard] = min(lowest.get(shard, 0), bounds.low)
    return {shard: max(offset, state.first.get(shard, 0)) for shard, offset in lowest.items()}
