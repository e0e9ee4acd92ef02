"""Rows of a shard that were read with topic filters: neither their offsets nor their append times follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FilteredSection(NamedTuple):
    """Rows of a shard as one block (model/block.py), with the offset and the append time of each, rising by offset."""

    offsets: Sequence[int]
    append_times_us: Sequence[int]
    epoch: int
    body: bytes
