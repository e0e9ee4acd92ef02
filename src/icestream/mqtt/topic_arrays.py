"""The MQTT topics of many rows at once, as Arrow arrays: what `row_topic` and `matches` (topics.py) say of one row.

Rows share topics, so everything is decided once for each distinct key (`RowTopics`), and nothing for a row. Not
imported by the broker process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import limits
from icestream.mqtt.topics import has_wildcard, row_topic

_NOT_IN_A_NAME = r"[+#\x00]"


class RowTopics(NamedTuple):
    """The topics of rows: those that occur, each at least once, and which of them each row has."""

    topics: Any  # Arrow text, without nulls
    codes: NDArray[np.int64]  # of each row: an index into `topics`


def row_topics(keys: Any, rows: int, native_topic: str) -> RowTopics:
    """The topics of rows with these keys (Arrow binary, maybe in chunks; None: no row has a key)."""
    if keys is None:
        return RowTopics(pa.array([native_topic][:rows], pa.utf8()), np.zeros(rows, np.int64))
    # A row without a key is one with an empty key: neither is a topic name.
    encoded = _combined(pc.dictionary_encode(pc.fill_null(keys, b"")))
    names, is_name = _topic_names(encoded.dictionary, native_topic)
    codes = encoded.indices.to_numpy().astype(np.int64)
    if is_name.all():
        return RowTopics(names, codes)
    # Several keys are the native topic, and one may spell it.
    distinct = pc.dictionary_encode(names)
    return RowTopics(distinct.dictionary, distinct.indices.to_numpy().astype(np.int64)[codes])


def _combined(array: Any) -> Any:
    return array.unify_dictionaries().combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _topic_names(keys: Any, native_topic: str) -> tuple[Any, NDArray[np.bool_]]:
    """The topic of each key, and which keys are topic names themselves."""
    try:
        texts = keys.cast(pa.utf8())
    except pa.ArrowInvalid:  # one of them is not UTF-8
        names = [row_topic(key, native_topic) for key in keys.to_pylist()]
        return pa.array(names, pa.utf8()), np.zeros(len(keys), np.bool_)
    sizes = pc.binary_length(texts)
    is_name = pc.and_(pc.greater(sizes, 0), pc.less_equal(sizes, limits.MQTT_TEXT_BYTES_MAX))
    is_name = pc.and_(is_name, pc.less(pc.count_substring(texts, "/"), limits.MQTT_TOPIC_LEVELS_MAX))
    is_name = pc.and_(is_name, pc.invert(pc.match_substring_regex(texts, _NOT_IN_A_NAME)))
    return pc.if_else(is_name, texts, native_topic), is_name.to_numpy(zero_copy_only=False)


def topic_levels(topics: Any, levels: int) -> list[Any]:
    """The first levels of topics, an Arrow array for each: null where a topic has fewer."""
    parts = pc.split_pattern(topics, "/", max_splits=levels)
    starts = parts.offsets.to_numpy()[:-1].astype(np.int64)
    counts = np.diff(parts.offsets.to_numpy())
    values = parts.values
    return [values.take(pa.array(starts + level, pa.int64(), mask=counts <= level)) for level in range(levels)]


def level_counts(topics: Any) -> NDArray[np.int64]:
    """The number of levels of each topic."""
    counts: NDArray[np.int64] = pc.count_substring(topics, "/").to_numpy().astype(np.int64) + 1
    return counts


def match_any(topics: Any, filters: Sequence[str]) -> NDArray[np.bool_]:
    """Which topics are matched by at least one of the filters, which are valid."""
    is_match = np.zeros(len(topics), np.bool_)
    for topic_filter in filters:
        if not has_wildcard(topic_filter):
            is_match |= pc.equal(topics, topic_filter).to_numpy(zero_copy_only=False)
        else:
            matches = pc.match_substring_regex(topics, _regex(topic_filter))
            is_match |= matches.to_numpy(zero_copy_only=False)
    return is_match


def _regex(topic_filter: str) -> str:
    """A filter as an expression of RE2, which knows the same syntax for what is used here."""
    levels = topic_filter.split("/")
    has_rest = levels[-1] == "#"
    fixed = [_level(level, is_first=number == 0) for number, level in enumerate(levels[: len(levels) - has_rest])]
    if not fixed:
        return r"^[^$]|^$"
    # `a/#` matches `a` too.
    return "^" + "/".join(fixed) + (r"(?s:/.*)?$" if has_rest else "$")


def _level(level: str, *, is_first: bool) -> str:
    if level != "+":
        return re.escape(level)
    # A topic whose first level begins with `$` matches no filter whose first level is a wildcard (MQTT-4.7.2-1).
    return r"(?:[^$/][^/]*)?" if is_first else r"[^/]*"
