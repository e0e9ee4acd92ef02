"""What one producer has under way in one shard: in order, or not at all (hazard 37).

    open       batches are taken
    refused    one was refused, or its outcome is not known: all that come behind it are refused, until a reset

A batch is refused at once, or later, when its receipt says so: in that very moment, so nothing comes in between.
"""

from __future__ import annotations

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.wal.appender import Placed
from icestream.wal.producer_registry import Duplicate
from icestream.wal.receipt import Receipt

STORED, DUPLICATE = "stored", "duplicate"


class ProducerWindow:
    __slots__ = ("in_flight", "is_refused", "key")

    def __init__(self, key: ShardKey) -> None:
        self.key = key
        self.in_flight = 0  # batches that wait for their answer
        self.is_refused = False

    @property
    def is_full(self) -> bool:
        """So many are under way that a retry could not tell them apart any more (hazard 7)."""
        return self.in_flight >= limits.PRODUCER_WINDOW_BATCHES

    def refuse(self) -> None:
        self.is_refused = True

    def put(self) -> None:
        self.in_flight += 1

    def ended(self, how: str) -> None:
        """The outcome of one of those that are under way."""
        self.in_flight -= 1
        if how not in (STORED, DUPLICATE):
            self.is_refused = True

    def reset(self) -> None:
        self.is_refused = False


def outcome(receipt: Receipt) -> str:
    """What became of a batch: stored, a duplicate, or the code of its error."""
    error = receipt.exception()
    if error is not None:
        return error.code
    (result,) = receipt.result()
    if isinstance(result, Placed):
        return STORED
    return DUPLICATE if isinstance(result, Duplicate) else result.code
