"""Headers as an Arrow map: many values at a time, header by header.

A value is u16 count, then for each header u16 key bytes, key, u32 value bytes, value (model/block.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from icestream import errors
from icestream.pipeline.rows.arrow_columns import Elements, bytes_taken
from icestream.pipeline.rows.block_columns import Blocks
from icestream.pipeline.rows.log_sections import Ints


def header_maps(blocks: Blocks, elements: Elements) -> Any:
    """Returns an Arrow map for each element. Raises DecodeError."""
    octets, at = blocks.octets, elements.start
    is_short = elements.end - at < 2
    counts = np.where(is_short, 0, _number(octets, np.minimum(at, len(octets) - 2), 2))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    keys = np.empty((2, int(offsets[-1])), np.int64)
    values = np.empty((2, int(offsets[-1])), np.int64)
    place, at, which = offsets[:-1], at + 2, np.arange(len(counts))
    for number in range(int(counts.max()) if len(counts) else 0):
        more = counts[which] > number
        which, at = which[more], at[more]
        slot = place[which] + number
        stop = elements.end[which]
        keys[:, slot] = _piece(octets, at, 2, stop)
        values[:, slot] = _piece(octets, keys[1, slot], 4, stop)
        at = values[1, slot]
    _check_ends(elements, counts, offsets, values)
    texts = [bytes_taken(blocks.data, bounds[0], bounds[1], None, pa.utf8()) for bounds in (keys, values)]
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *texts)


def _number(octets: Any, at: Ints, width: int) -> Ints:
    value: Ints = octets[at].astype(np.int64)
    for byte in range(1, width):
        value |= octets[at + byte].astype(np.int64) << (8 * byte)
    return value


def _piece(octets: Any, at: Ints, width: int, stop: Ints) -> tuple[Ints, Ints]:
    """Returns start and end of a key or value whose length is at `at`."""
    if np.any(at + width > stop):
        raise errors.DecodeError("headers end before their declared length")
    start = at + width
    end = start + _number(octets, at, width)
    if np.any(end > stop):
        raise errors.DecodeError("headers end before their declared length")
    return start, end


def _check_ends(elements: Elements, counts: Ints, offsets: Ints, values: Any) -> None:
    has_any = counts > 0
    if np.any(values[1, offsets[1:][has_any] - 1] != elements.end[has_any]):
        raise errors.DecodeError("headers do not end with their element")
