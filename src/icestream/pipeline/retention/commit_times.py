"""Which offsets of a topic were committed when: what a retention by age goes by (hazard 85). Pure.

    RetentionIndex, JSON at /pipeline/retention/{topic id}
        points      [time_ms, {shard: end}], in the order in which they were noted: every offset below `end` was in the
                    table at `time_ms`. At most RETENTION_POINTS_MAX
        removals    [time_ms, rows]: what was removed by age in the last day

Files cannot tell: a compaction makes a new file of old rows, and their append times are those of a clock that may have
been wrong. An offset is expired if a point that covers it is old, and no point before that one is younger. So a clock
that was ahead for a while keeps rows longer, and never removes them early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from icestream import limits

DAY_MS: Final = 24 * 3_600_000


class CommitPoint(msgspec.Struct, frozen=True, array_like=True):
    """Every offset below `ends` was in the table at this time."""

    time_ms: int
    ends: dict[int, int]  # by shard


class RemovedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows that were removed by age at this time."""

    time_ms: int
    rows: int


class RetentionIndex(msgspec.Struct, frozen=True, omit_defaults=True):
    """The index of one topic; the head of the module explains it."""

    points: tuple[CommitPoint, ...] = ()
    removals: tuple[RemovedRows, ...] = ()

    def expired(self, age_ms: int, now_ms: int) -> dict[int, int]:
        """Per shard the offset below which every row was committed at least `age_ms` ago."""
        count = _expired_points(self.points, age_ms, now_ms)
        return dict(self.points[count - 1].ends) if count else {}

    def is_noted(self, committed: Mapping[int, int], age_ms: int, now_ms: int) -> bool:
        """True if no point is needed now: the last one is recent, or nothing was committed since."""
        if not self.points:
            return False
        last = self.points[-1]
        # The difference either way: a clock that went back must not make a point with every look.
        return dict(committed) == last.ends or abs(now_ms - last.time_ms) < interval_ms(age_ms, len(committed))

    def with_point(self, committed: Mapping[int, int], age_ms: int, now_ms: int, history_ms: int = 0) -> RetentionIndex:
        """The index with the present offsets, and without points that decide nothing any more.

        `history_ms`: a second, longer age that is asked for (of what is not consumed); points between the two are as
        far apart as that one needs them.
        """
        # A table that was rewound commits the offsets above `committed` again, later than the points say.
        points = [
            CommitPoint(point.time_ms, {shard: min(end, committed.get(shard, 0)) for shard, end in point.ends.items()})
            for point in self.points
        ]
        points.append(CommitPoint(now_ms, dict(committed)))
        history_ms = max(age_ms, history_ms)
        # Of the expired points the last one says everything.
        del points[: max(0, _expired_points(points, history_ms, now_ms) - 1)]
        if history_ms > age_ms:
            points = _thinned(points, now_ms - age_ms, interval_ms(history_ms, len(committed)))
        return msgspec.structs.replace(self, points=tuple(points[-limits.RETENTION_POINTS_MAX :]))

    def after_pause(self, pause_ms: int) -> RetentionIndex:
        """The index of a topic that was away for this time, such as in a backup: it does not count as age, or a restore
        would be followed by the removal of what it brought back (hazard 98)."""
        points = tuple(CommitPoint(point.time_ms + pause_ms, point.ends) for point in self.points)
        removals = tuple(RemovedRows(removal.time_ms + pause_ms, removal.rows) for removal in self.removals)
        return RetentionIndex(points, removals)

    # --- how much one day may remove ---

    def rows_allowed(self, table_rows: int, now_ms: int) -> int:
        """How many rows may be removed by age now: in a day at most a tenth of the table, or twice what a day brings.
        A clock that is wrong then costs a day's share until it is noticed."""
        usual = self._rows_per_day()
        removed = sum(removal.rows for removal in self.removals if 0 <= now_ms - removal.time_ms < DAY_MS)
        return max(table_rows // 10, 2 * usual) - removed

    def has_removed_today(self, now_ms: int) -> bool:
        return any(0 <= now_ms - removal.time_ms < DAY_MS for removal in self.removals)

    def with_removal(self, rows: int, now_ms: int) -> RetentionIndex:
        """The index after rows were removed by age. Removals of the same hour are one."""
        removals = [removal for removal in self.removals if 0 <= now_ms - removal.time_ms < DAY_MS]
        if removals and now_ms - removals[-1].time_ms < DAY_MS // 24:
            last = removals.pop()
            removals.append(RemovedRows(last.time_ms, last.rows + rows))
        else:
            removals.append(RemovedRows(now_ms, rows))
        return msgspec.structs.replace(self, removals=tuple(removals))

    def _rows_per_day(self) -> int:
        """The rows that the topic got in a day, by the first and the last point; 0 if they are less than an hour
        apart."""
        if len(self.points) < 2:
            return 0
        first, last = self.points[0], self.points[-1]
        span_ms = last.time_ms - first.time_ms
        rows = sum(end - first.ends.get(shard, 0) for shard, end in last.ends.items())
        return rows * DAY_MS // span_ms if span_ms >= DAY_MS // 24 else 0


def interval_ms(age_ms: int, shards: int) -> int:
    """The time between two points: rows of that span go together, so it is a small part of their age."""
    points = min(limits.RETENTION_POINTS_MAX // 2, max(limits.RETENTION_POINT_OFFSETS_MAX // max(shards, 1), 4))
    return max(limits.RETENTION_POINT_MS_MIN, age_ms // points)


def _thinned(points: Sequence[CommitPoint], until_ms: int, step_ms: int) -> list[CommitPoint]:
    """Returns the points, those before `until_ms` at least `step_ms` apart. A point that is left out makes no row older
    than it is: the next point covers its rows, later."""
    kept: list[CommitPoint] = []
    for point in points:
        if kept and point.time_ms < until_ms and 0 <= point.time_ms - kept[-1].time_ms < step_ms:
            continue
        kept.append(point)
    return kept


def _expired_points(points: Sequence[CommitPoint], age_ms: int, now_ms: int) -> int:
    """How many points are old, from the first on: none after one that is younger."""
    latest_ms, count = 0, 0
    for point in points:
        latest_ms = max(latest_ms, point.time_ms)
        if latest_ms > now_ms - age_ms:
            break
        count += 1
    return count
