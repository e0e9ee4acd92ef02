"""What one producer has under way in one shard: in order, or not at all (hazard 37).

    open       batches are taken
    refused    one was refused, or its outcome is not known: all that come behind it are refused, until a reset

A batch is refused at once, or later, when its future says so. Whoever sends the next one looks at the last future
himself: between the moment in which it fails and the callback that notes it others may already come.
"""

from __future__ import annotations

from icestream import errors, limits
from icestream.broker.storage import Stored
from icestream.model.shard import ShardKey
from icestream.wal.producers import Duplicate

STORED, DUPLICATE = "stored", "duplicate"


class Pipe:
    __slots__ = ("_is_refused", "_last", "in_flight", "key")

    def __init__(self, key: ShardKey) -> None:
        self.key = key
        self.in_flight = 0  # batches that wait for their answer
        self._last: Stored | None = None
        self._is_refused = False

    @property
    def is_refused(self) -> bool:
        if not self._is_refused and self._last is not None and self._last.done():
            self._is_refused = outcome(self._last) not in (STORED, DUPLICATE)
        return self._is_refused

    @property
    def is_full(self) -> bool:
        """So many are under way that a retry could not tell them apart any more (hazard 7)."""
        return self.in_flight >= limits.PRODUCER_WINDOW_BATCHES

    def refuse(self) -> None:
        self._is_refused = True

    def put(self, stored: Stored) -> None:
        self._last = stored
        self.in_flight += 1

    def ended(self, how: str) -> None:
        """The outcome of one of those that are under way."""
        self.in_flight -= 1
        if how not in (STORED, DUPLICATE):
            self._is_refused = True

    def reset(self) -> None:
        self._is_refused = False
        self._last = None


def outcome(stored: Stored) -> str:
    """What became of a batch: stored, a duplicate, or the code of its error."""
    if stored.cancelled():
        return errors.OutcomeUnknown.code
    error = stored.exception()
    if error is not None:
        return error.code if isinstance(error, errors.IcestreamError) else errors.IcestreamError.code
    (result,) = stored.result()
    if isinstance(result, errors.IcestreamError):
        return result.code
    return DUPLICATE if isinstance(result, Duplicate) else STORED
