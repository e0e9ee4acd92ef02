"""Reads the keys that a key-shared dispatcher needs for its look-ahead: from memory at once, else one read at a time.

A read that fails is retried after a while. The result of a read that was started before a seek is ignored. A table that
cannot be read at all disconnects the consumers with the reason, because the owner of a message is unknown (hazard 22).
"""

from __future__ import annotations

from typing import Protocol

from icestream import errors, limits
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.instruction import Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.broker.slow_read_watch import SlowReadWatch
from icestream.broker.storage import ShardRead, ShardStream
from icestream.model.shard import DeclaredGap, GapState
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.rpc.blocks import row_keys
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("delivery")


class KeyedDelivery(Protocol):
    """The delivery (shard_delivery.py) whose dispatcher needs the keys."""

    name: str
    is_closed: bool

    @property
    def stream(self) -> ShardStream: ...

    @property
    def dispatcher(self) -> Dispatcher: ...

    @property
    def generation(self) -> int: ...

    def now_ms(self) -> int: ...

    def apply(self, instructions: list[Instruction]) -> None: ...

    def skip_gap(self, gap: DeclaredGap) -> None: ...

    def report_unreadable(self, offset: int, error: Exception) -> None: ...

    def report_readable(self, start: int, end: int) -> None: ...

    def disconnect_all(self, start: int, error: errors.TableUnreadable) -> None: ...


class KeyLookahead:
    """Reads the keys of one delivery. At most one read is in flight: `needed_keys` depends on what it returns."""

    def __init__(self, delivery: KeyedDelivery, clock: Clock, tasks: Tasks) -> None:
        self._delivery = delivery
        self._clock = clock
        self._tasks = tasks
        self._is_reading = False
        self._slow_read = SlowReadWatch(clock, tasks)

    def close(self) -> None:
        self._slow_read.close()

    def advance(self) -> None:
        """Passes the needed keys to the dispatcher while they are in memory; starts a read for those that are not."""
        delivery = self._delivery
        dispatcher = delivery.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        while not self._is_reading and not delivery.is_closed:
            start, end = dispatcher.needed_keys
            if start >= end:
                return
            sections = delivery.stream.read_hot(start, limits.READ_BYTES_DEFAULT)
            if sections:
                self._pass_keys(dispatcher, ShardRead(sections, [], end), start, end)
            else:  # the loop ends: `_is_reading` is set
                self._is_reading = True
                self._tasks.start(self._read(dispatcher, start, end), f"{delivery.name}-keys")

    def on_seek(self) -> None:
        """Abandons a read in flight: it belongs to the generation before the seek."""
        self._is_reading = False

    async def _read(self, dispatcher: KeySharedDispatcher, start: int, end: int) -> None:
        """Reads the keys of [start, end) and passes them on; retries or skips what cannot be read."""
        delivery, generation = self._delivery, self._delivery.generation
        try:
            read = await self._slow_read.read(
                delivery.stream, start, lambda error: delivery.report_unreadable(start, error), cache=True
            )
            if generation == delivery.generation:
                delivery.report_readable(start, read.next_offset)
                self._process(dispatcher, read, start, end)
        except errors.StaleRead:
            pass  # the file was recycled during the read: `advance` looks the position up again
        except errors.TableUnreadable as error:
            if generation == delivery.generation:
                delivery.disconnect_all(start, error)
        except (errors.IcestreamError, OSError) as error:
            if generation == delivery.generation and not self._skip_dropped(start, error):
                await self._wait_for_retry(start, error)
        if generation == delivery.generation and not delivery.is_closed:
            self._is_reading = False
            delivery.apply([])  # calls `advance`, and updates stalls and alarms after whatever happened here

    def _process(self, dispatcher: KeySharedDispatcher, read: ShardRead, start: int, end: int) -> None:
        """Skips the gaps of a read and passes its keys on. Raises LogError for an empty read."""
        for gap in read.gaps:
            self._delivery.skip_gap(gap)
        if read.sections:
            self._pass_keys(dispatcher, read, start, end)
        elif not read.gaps:
            raise errors.LogError(
                f"offset {start} of {self._delivery.stream.key} is visible, but a read returned nothing",
                hint="`icestream wal inspect` shows the offsets and gaps of the shard",
            )

    def _pass_keys(self, dispatcher: KeySharedDispatcher, read: ShardRead, start: int, end: int) -> None:
        """Passes the keys of [start, end), as far as the read holds them, to the dispatcher."""
        # Applying instructions calls `advance` again; the flag makes these nested calls return at once.
        was_reading, self._is_reading = self._is_reading, True
        try:
            for section in read.sections:
                low, high = max(start, section.base_offset), min(end, section.base_offset + section.rows)
                if low < high:
                    keys = row_keys(section.body)[low - section.base_offset : high - section.base_offset]
                    self._delivery.apply(dispatcher.add_keys(low, keys, self._delivery.now_ms()))
                    start = high
        finally:
            self._is_reading = was_reading

    def _skip_dropped(self, start: int, error: Exception) -> bool:
        """Skips messages that a retention has dropped: the log starts after them. False for any other error."""
        stream = self._delivery.stream
        log_start = stream.log_start()
        if not isinstance(error, errors.PositionGone) or log_start <= start:
            return False
        self._delivery.skip_gap(
            DeclaredGap(stream.key, start, log_start, stream.epoch, "no longer in the log", GapState.LOST)
        )
        return True

    async def _wait_for_retry(self, start: int, error: Exception) -> None:
        """Reports a failed read, and waits before the next attempt."""
        metrics.READ_FAILURES.value += 1
        where = f"{self._delivery.stream.key} offset {start}"
        _log.error("messages cannot be read; retrying", where=where, error=str(error))
        self._delivery.report_unreadable(start, error)
        await self._clock.sleep(limits.READ_RETRY_MS / 1000)
