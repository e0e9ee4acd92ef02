"""The in-flight window of one producer in one shard: its batches are stored in order, or not at all (hazard 37).

    open       batches are accepted
    refused    a batch was refused, or its outcome is unknown: all later batches are refused until a reset
    closed     its producer is closed: all later batches are refused

A batch is refused at once, or later, when its receipt completes: the window changes in that very moment, so that no
later batch can slip in between.
"""

from __future__ import annotations

from icestream import limits
from icestream.model.shard import ShardKey


class ProducerWindow:
    """Whether further batches of a producer are accepted in a shard, and how many are in flight there."""

    __slots__ = ("in_flight", "is_closed", "is_refused", "key")

    def __init__(self, key: ShardKey) -> None:
        self.key = key
        self.in_flight = 0  # batches without an outcome yet
        self.is_refused = False
        self.is_closed = False

    @property
    def is_full(self) -> bool:
        """True if a retry of one more batch might no longer be recognised as a duplicate (hazard 7)."""
        return self.in_flight >= limits.PRODUCER_WINDOW_BATCHES

    def refuse(self) -> None:
        """Refuses all later batches: each of them would overtake the retry of the refused one."""
        self.is_refused = True

    def reset(self) -> None:
        """Accepts batches again: the client knows of the refusal and resends from the refused batch on."""
        self.is_refused = False
