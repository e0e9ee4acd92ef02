"""What a file or row group says of the levels of its topics: bounds and null counts of the level columns
(pipeline/rows/mqtt_columns.py). Pure.

    level_1 without nulls     all rows have level columns, and a level column that the file lacks is null in every row:
                              no topic of the file has so many levels
    anything else             nothing is known: older files, files of other engines that left the columns out
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class LevelBounds(NamedTuple):
    """What is known of a level column in some rows."""

    low: bytes | None = None  # UTF-8, inclusive, as `high` is; None: unknown
    high: bytes | None = None
    has_values: bool = True  # False: null in every row
    has_nulls: bool = True  # False: null in no row

    def may_hold(self, level: bytes) -> bool:
        is_above = self.low is None or self.low <= level
        return self.has_values and is_above and (self.high is None or level <= self.high)

    @property
    def is_dollar(self) -> bool:
        """True if every value begins with `$`: so does whatever lies between two such bounds."""
        return self.low is not None and self.high is not None and self.low[:1] == b"$" == self.high[:1]


NO_LEVEL: Final = LevelBounds(has_values=False)
GroupLevels = tuple[LevelBounds, ...]  # of all level columns


def known_levels(levels: Sequence[LevelBounds | None]) -> GroupLevels | None:
    """The bounds of a file's or row group's level columns, level_1 first (None: it has no such column); None if they
    are not those of all of its rows."""
    if not levels or levels[0] is None or levels[0].has_nulls:
        return None
    return tuple(NO_LEVEL if level is None else level for level in levels)
