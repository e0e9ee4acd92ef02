"""Where a replay begins, as clients write it: in the user property `replay-from`, or in `$replay/FROM/FILTER`. Pure.

earliest             the oldest message that any tier has
-24h, -90m, -30s, -7d   so long ago
2026-11-18T08:00:00Z  a time, with its zone
1700000000000        a time in milliseconds since 1970
offset:1500          an offset of every shard
snapshot:ID          behind a snapshot of the table
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum, auto
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.mqtt.reason_codes import ReasonCode

_RELATIVE: Final = re.compile(r"-([0-9]{1,9})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class StartKind(Enum):
    EARLIEST = auto()
    AGE_US = auto()
    TIME_US = auto()
    OFFSET = auto()
    SNAPSHOT = auto()


class ReplayStart(NamedTuple):
    """A start and the text that it was written as."""

    text: str
    kind: StartKind
    value: int = 0


def parse_replay_start(text: str) -> ReplayStart:
    """Raises PacketRefused for a text that is no start."""
    if text == "earliest":
        return ReplayStart(text, StartKind.EARLIEST)
    if (relative := _RELATIVE.fullmatch(text)) is not None:
        seconds = int(relative[1]) * _SECONDS[relative[2]]
        return ReplayStart(text, StartKind.AGE_US, seconds * 1_000_000)
    kind, separator, number = text.partition(":")
    if separator and number.isascii() and number.isdigit():
        value = int(number[:20])
        if kind == "offset" and value <= limits.OFFSET_MAX:
            return ReplayStart(text, StartKind.OFFSET, value)
        if kind == "snapshot" and value < 2**63:
            return ReplayStart(text, StartKind.SNAPSHOT, value)
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return ReplayStart(text, StartKind.TIME_US, int(text) * 1_000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is not None:
        return ReplayStart(text, StartKind.TIME_US, int(moment.timestamp() * 1_000_000))
    raise errors.PacketRefused(
        f"replay-from {text[:100]!r} is no start",
        reason_code=ReasonCode.IMPLEMENTATION_ERROR,
        hint="earliest, an age such as -24h, a time such as 2026-11-18T08:00:00Z, offset:N or snapshot:ID",
    )
