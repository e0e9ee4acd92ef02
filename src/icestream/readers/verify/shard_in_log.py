"""What the broker knows of a shard whose table is verified. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ShardLogState(NamedTuple):
    """Where its log begins and ends, the gaps that it declared, and readers that the table has stopped: at which offset
    and why."""

    earliest: int
    synced: int
    gaps: Sequence[tuple[int, int, str]] = ()
    stopped: Sequence[tuple[int, str]] = ()
