"""How the planted tests say that a bug was caught, and by which words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.planted.order import acks_in
from tests.support.syscall_recorder import Event

ACKED_BEFORE_SYNC = (
    r"^log-\d+\.wal position \d+: record \d+ was written at #\d+-#\d+ and acked at #\d+ without a sync in between"
)
ACKED_AND_GONE = r"^power loss at the ack of record \d+: record \d+ \(offset \d+ of .*\) was acked and is gone"
LENGTH_FLIPPED = r"^log-\d+\.wal position \d+, bit \d flipped \(record_bytes of record 3\): not reported, and 3 acked"
BODY_FLIPPED = r"^log-\d+\.wal position \d+, bit \d flipped \(body of record 3\): not reported, and 4 acked messages"
PAST_IS_BACK = (
    r"^(offset \d+ is 'failed\.\d+', which was never acked|what was taken for the log cannot be read: .*): "
    r"from position \d+ on, behind record \d+, log-\d+\.wal holds"
)
FREED_TOO_EARLY = r"^log-\d+\.wal with records up to \d+ was freed at #\d+-#\d+, but the durable checkpoints were"
DOES_NOT_OPEN = r"^files freed .*: the log does not open after a kill: .*log-\d+\.wal begins with record \d+"


def named_acks(violations: Sequence[str], events: Sequence[Event]) -> list[int]:
    """The places among all acks of those that the order checker complains about."""
    moments = {int(ack[1]) for text in violations if (ack := re.search(r"acked at #(\d+) without a sync", text))}
    return [number for number, ack in enumerate(acks_in(events)) if ack.event.begin in moments]


def check_caught(violations: Sequence[str], pattern: str) -> None:
    assert any(re.search(pattern, text) for text in violations), "\n".join(["not caught; found:", *violations[:20]])
