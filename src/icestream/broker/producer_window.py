"""The in-flight window of one producer in one shard: its batches are stored in order, or not at all (hazard 37).

    open       batches are accepted
    refused    a batch was refused, or its outcome is unknown: all later batches are refused until a reset

A batch is refused at once, or later, when its receipt completes: the window changes in that very moment, so that no
later batch can slip in between.
"""

from __future__ import annotations

from icestream import limits
from icestream.model.shard import ShardKey


class ProducerWindow:
    __slots__ = ("in_flight", "is_refused", "key")

    def __init__(self, key: ShardKey) -> None:
        self.key = key
        self.in_flight = 0  # batches without an outcome yet
        self.is_refused = False

    @property
    def is_full(self) -> bool:
        """True if a retry of one more batch might no longer be recognised as a duplicate (hazard 7)."""
        return self.in_flight >= limits.PRODUCER_WINDOW_BATCHES

    def refuse(self) -> None:
        self.is_refused = True

    def reset(self) -> None:
        self.is_refused = False
