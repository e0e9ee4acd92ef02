"""The result of a published batch: one value for all front ends, decoded once from the receipt of the log.

    outcome      base_offset                     error
    None         None                            None; the batch is in flight
    STORED       of its first message            None
    DUPLICATE    of the first time it was        None
                 stored; None if that is so long
                 ago that it is unknown
    REFUSED      None                            why; nothing was stored
    UNKNOWN      None                            OutcomeUnknown; it may or may not be stored

A batch costs one object here: it is the callback of the receipt, does the accounting of the broker (the producer's
window, the counters of the topic, the refund of its rate), then calls the front end, all in the moment in which the
outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import Any

from icestream import errors
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.producer_window import ProducerWindow
from icestream.observability import metrics
from icestream.wal.appender import Placed
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.receipt import Receipt


class PublishOutcome(Enum):
    """How a batch ended; the table at the top of the module has the rest."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class PublishResult:
    """The result of one published batch. `await` it, or add a callback."""

    __slots__ = (
        "_on_done", "_receipt", "_rows", "_size_bytes", "_topic", "_window", "base_offset", "error", "outcome",
        "pause_ms",
    )  # fmt: skip

    def __init__(
        self, receipt: Receipt, topic: BrokerTopic, window: ProducerWindow, rows: int, size_bytes: int, pause_ms: int
    ) -> None:
        self.outcome: PublishOutcome | None = None
        self.base_offset: int | None = None
        self.error: errors.IcestreamError | None = None
        self.pause_ms = pause_ms  # by how much the ack is to be delayed, to slow the producer: a rate, or a near quota
        self._receipt = receipt
        self._topic = topic
        self._window = window
        self._rows = rows
        self._size_bytes = size_bytes
        self._on_done: Callable[[PublishResult], object] | None = None
        window.in_flight += 1
        # The only callback of the receipt: the accounting is done before the front end hears of the outcome.
        receipt.add_done_callback(self._complete)

    def add_done_callback(self, on_done: Callable[[PublishResult], object]) -> None:
        """Calls `on_done` when the outcome is known; at once if it is known already. One callback per result."""
        if self.outcome is not None:
            on_done(self)
        else:
            self._on_done = on_done

    def _complete(self, receipt: Receipt) -> None:
        """Decodes the receipt of one batch, does the accounting, and calls the front end."""
        error = receipt.exception()
        if error is None:
            (result,) = receipt.result()
            if isinstance(result, Placed):
                self._complete_stored(result.base_offset)
                return
            if isinstance(result, Duplicate):
                self.base_offset = result.base_offset
                self._finish(PublishOutcome.DUPLICATE, "duplicate")
                return
            assert isinstance(result, errors.IcestreamError)
            error = result
        self.error = error
        self._window.is_refused = True  # refused late, by its sequence or a full disk: those behind it must not pass
        is_unknown = isinstance(error, errors.OutcomeUnknown)
        self._finish(PublishOutcome.UNKNOWN if is_unknown else PublishOutcome.REFUSED, error.code)

    def _complete_stored(self, base_offset: int) -> None:
        # The same steps as `_finish`, written out: this is the path of nearly every batch.
        self.base_offset = base_offset
        self.outcome = PublishOutcome.STORED
        self._window.in_flight -= 1
        metrics.PUBLISH_OUTCOMES.add("stored")
        self._topic.published_messages += self._rows
        self._topic.published_bytes += self._size_bytes
        metrics.PUBLISHED_MESSAGES.value += self._rows
        metrics.PUBLISHED_BYTES.value += self._size_bytes
        if self._on_done is not None:
            self._on_done(self)

    def _finish(self, outcome: PublishOutcome, label: str) -> None:
        """Completes a batch of which nothing was stored now."""
        self.outcome = outcome
        self._window.in_flight -= 1
        metrics.PUBLISH_OUTCOMES.add(label)
        self._topic.publish_rate.refund(self._rows)  # only stored messages count against the rate
        if self._on_done is not None:
            self._on_done(self)

    def __await__(self) -> Generator[Any, None, PublishResult]:
        """Waits for the outcome. Raises `error` if the batch was refused or its outcome is unknown."""
        yield from self._receipt.__await__()
        if self.error is not None:
            raise self.error
        return self
