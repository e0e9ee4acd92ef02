"""MQTT topic filters of a read: which row groups can hold a row that one of them matches, and which rows they match.

A row group is left out only by what its own file says of it (hazard 70): the bounds of the level columns
(level_bounds.py). Streams and the learned structure take no part, so it does not matter what was learned before or
after a file was written, or which engine wrote it. Whatever is not known is read.

Rows that no filter matches are left out of replies. The caller applies its filter to the topic of each row all the
same: a reply may hold more rows than match, never fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from icestream import limits
from icestream.model import envelope
from icestream.mqtt.topic_arrays import match_any, row_topics
from icestream.mqtt.topics import native_topic
from icestream.readers.level_bounds import GroupLevels


class TopicFilters:
    """The filters of one read. Their topics are those of a topic's rows, by the keys."""

    def __init__(self, filters: Sequence[str], topic: str) -> None:
        """`filters`: valid ones (mqtt/topics.py). `topic`: the name of the Icestream topic."""
        self.filters = tuple(filters)
        self._native_topic = native_topic(topic)
        self._levels = [[level.encode() for level in text.split("/")] for text in self.filters]

    def may_match(self, levels: GroupLevels | None) -> bool:
        """True if some row with these bounds may match; None: nothing is known of them."""
        return levels is None or any(_may_match(filter_levels, levels) for filter_levels in self._levels)

    def select(self, rows: Any) -> Any:
        """Returns the rows that match, of an Arrow table with the envelope's columns."""
        key = envelope.KEY.name
        keys = rows[key] if key in rows.column_names else None
        topics, codes = row_topics(keys, len(rows), self._native_topic)
        return rows.filter(pa.array(match_any(topics, self.filters)[codes]))


def _may_match(filter_levels: Sequence[bytes], levels: GroupLevels) -> bool:
    has_rest = filter_levels[-1] == b"#"
    fixed = filter_levels[:-1] if has_rest else filter_levels
    if filter_levels[0] in (b"+", b"#") and levels[0].is_dollar:
        return False
    for level, bounds in zip(fixed, levels, strict=False):
        if not (bounds.has_values if level == b"+" else bounds.may_hold(level)):
            return False
    # Without `#` a topic has as many levels as the filter: the next column is null in its row.
    is_exact = not has_rest and len(fixed) < len(levels)
    return not is_exact or levels[len(fixed)].has_nulls


def filters_of(filters: Sequence[str], topic: str) -> TopicFilters | None:
    """The filters of a request; None if it wants all rows, or has too many filters to choose by."""
    return TopicFilters(filters, topic) if filters and len(filters) <= limits.SCAN_FILTERS_MAX else None
