"""The result of a published group (model/block_group.py): one value for many batches that arrived together.

    is_done   base_offsets            rejected                            error
    False     empty                   empty                               None; the group is in flight
    True      of each shard, of its   by index: batches that were not     None
              first stored message    stored now, each with its outcome
    True      empty                   empty                               why no batch of the group was stored, or
                                                                          OutcomeUnknown

The batches of a shard that are not rejected have offsets one behind the other from its base offset on. Each batch
counts in the window of its producer from the moment in which it is accepted to the moment in which its outcome is
known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import sub
from typing import NamedTuple

from icestream import errors
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.publish_result import PublishOutcome
from icestream.model.block_group import BlockGroup
from icestream.observability import metrics
from icestream.wal.appender import PlacedGroup
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.receipt import Receipt


class RejectedBatch(NamedTuple):
    """A batch of a group that was not stored now: a duplicate, or refused with an error."""

    outcome: PublishOutcome
    base_offset: int | None = None  # of a duplicate, as in PublishResult
    error: errors.IcestreamError | None = None


NONE_REJECTED: Mapping[int, RejectedBatch] = {}


class PublishGroupResult:
    """The outcome of a group; the table above has its states."""

    __slots__ = (
        "_group", "_on_done", "_topics", "_windows", "base_offsets", "error", "is_done", "pause_ms",
        "rejected",
    )  # fmt: skip

    def __init__(
        self,
        receipt: Receipt,
        topics: Sequence[BrokerTopic],
        windows: Sequence[ProducerWindow],
        group: BlockGroup,
        on_done: Callable[[PublishGroupResult], object],
    ) -> None:
        """`topics`: of each shard; `windows`: of the producer of each batch.

        `on_done` is called in the moment in which the outcome is known.
        """
        self.is_done = False
        self.base_offsets: Sequence[int] = ()
        self.rejected = NONE_REJECTED
        self.error: errors.IcestreamError | None = None
        self.pause_ms = receipt.pause_ms
        self._topics = topics
        self._windows = windows
        self._group = group
        self._on_done = on_done
        # Before the receipt can call back: a group that is done at once must not count below zero.
        for window in windows:
            window.in_flight += 1
        receipt.add_done_callback(self._complete)

    @property
    def batches(self) -> int:
        """How many batches the group has."""
        return len(self._windows)

    def _complete(self, receipt: Receipt) -> None:
        """Takes the outcome from the receipt, closes the windows of refused producers, and calls `on_done`."""
        for window in self._windows:
            window.in_flight -= 1
        self.is_done = True
        error = receipt.exception()
        if error is None:
            (result,) = receipt.result()
            if isinstance(result, PlacedGroup):
                self._complete_placed(result)
            else:
                assert isinstance(result, errors.IcestreamError)
                error = result
        if error is not None:
            self.error = error
            metrics.PUBLISH_OUTCOMES.add(error.code, len(self._windows))
            for window in self._windows:
                window.refuse()  # those behind it must not overtake the retry (hazard 37)
        self._on_done(self)

    def _complete_placed(self, placed: PlacedGroup) -> None:
        """Counts what was stored, without the rejected batches."""
        self.base_offsets = placed.base_offsets
        group, batches = self._group, len(self._windows)
        # A rejected batch counts as 0 rows and 0 bytes.
        rows: Sequence[int] = group.rows
        sizes: Sequence[int] = [*map(sub, group.ends, (0, *group.ends))]
        if placed.rejected:
            self.rejected = {index: self._reject(index, result) for index, result in placed.rejected.items()}
            rows = [0 if index in self.rejected else count for index, count in enumerate(rows)]
            sizes = [0 if index in self.rejected else size for index, size in enumerate(sizes)]
            batches -= len(self.rejected)
        if not group.has_single_blocks:
            rows = [sum(rows[start:end]) for start, end in group.shard_ranges()]
            sizes = [sum(sizes[start:end]) for start, end in group.shard_ranges()]
        for topic, row_count, size_bytes in zip(self._topics, rows, sizes, strict=True):
            topic.published_messages += row_count
            topic.published_bytes += size_bytes
        metrics.PUBLISH_OUTCOMES.add("stored", batches)
        metrics.PUBLISHED_MESSAGES.value += sum(rows)
        metrics.PUBLISHED_BYTES.value += sum(sizes)

    def _reject(self, index: int, result: Duplicate | errors.IcestreamError) -> RejectedBatch:
        """Returns the outcome of a batch that was not stored now."""
        if isinstance(result, Duplicate):
            metrics.PUBLISH_OUTCOMES.add("duplicate")
            return RejectedBatch(PublishOutcome.DUPLICATE, result.base_offset)
        metrics.PUBLISH_OUTCOMES.add(result.code)
        self._windows[index].refuse()
        return RejectedBatch(PublishOutcome.REFUSED, error=result)
