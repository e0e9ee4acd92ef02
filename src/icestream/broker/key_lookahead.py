"""Shows a key-shared dispatcher the keys that it wants to see: from memory at once, else by one read at a time.

A read that fails is tried again after a while. One that was begun before a seek does not count. A table that nobody
here can read ends the consumers, with the reason: whose a message is, nobody can see (hazard 22).
"""

from __future__ import annotations

from typing import Protocol

from icestream import errors, limits
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.instruction import Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.broker.slow_read_watch import SlowReadWatch
from icestream.broker.storage import ShardRead, ShardStream
from icestream.model.shard import Gap, GapState
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.rpc.blocks import row_keys
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("delivery")


class KeyedDelivery(Protocol):
    """The delivery (shard_delivery.py) whose keys are looked at."""

    name: str
    is_closed: bool

    @property
    def stream(self) -> ShardStream: ...

    @property
    def dispatcher(self) -> Dispatcher: ...

    @property
    def generation(self) -> int: ...

    def now_ms(self) -> int: ...

    def carry_out(self, instructions: list[Instruction]) -> None: ...

    def nothing_there(self, gap: Gap) -> None: ...

    def cannot_read(self, offset: int, error: Exception) -> None: ...

    def can_read(self, start: int, end: int) -> None: ...

    def unreadable(self, start: int, error: errors.TableUnreadable) -> None: ...


class KeyLookahead:
    def __init__(self, delivery: KeyedDelivery, clock: Clock, tasks: Tasks) -> None:
        self._delivery = delivery
        self._clock = clock
        self._tasks = tasks
        self._is_looking = False
        self._slow_read = SlowReadWatch(clock, tasks)

    def close(self) -> None:
        self._slow_read.close()

    def look(self) -> None:
        """Shows what is wanted, as long as it is in memory; begins a read for what is not."""
        delivery = self._delivery
        dispatcher = delivery.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        while not self._is_looking and not delivery.is_closed:
            start, end = dispatcher.wanted
            if start >= end:
                return
            sections = delivery.stream.read_hot(start, limits.READ_BYTES_DEFAULT)
            if sections:
                self._show(dispatcher, ShardRead(sections, [], end), start, end)
            else:
                self._is_looking = True
                self._tasks.start(self._read(dispatcher, start, end), f"{delivery.name}-keys")

    def look_elsewhere(self) -> None:
        """After a seek: a read under way is of the generation before, and nobody waits for it."""
        self._is_looking = False

    async def _read(self, dispatcher: KeySharedDispatcher, start: int, end: int) -> None:
        delivery, generation = self._delivery, self._delivery.generation
        try:
            found = await self._slow_read.read(
                delivery.stream, start, lambda error: delivery.cannot_read(start, error), cache=True
            )
            if generation == delivery.generation:
                delivery.can_read(start, found.next_offset)
                self._take(dispatcher, found, start, end)
        except errors.StaleRead:
            pass  # the file was recycled under the read: the position is looked up again
        except errors.TableUnreadable as error:
            if generation == delivery.generation:
                delivery.unreadable(start, error)
        except (errors.IcestreamError, OSError) as error:
            if generation == delivery.generation and not self._step_over_gone(start, error):
                await self._rest(start, error)
        if generation == delivery.generation and not delivery.is_closed:
            self._is_looking = False
            delivery.carry_out([])

    def _take(self, dispatcher: KeySharedDispatcher, found: ShardRead, start: int, end: int) -> None:
        for gap in found.gaps:
            self._delivery.nothing_there(gap)
        if found.sections:
            self._show(dispatcher, found, start, end)
        elif not found.gaps:
            raise errors.LogError(f"offset {start} of {self._delivery.stream.key} can be seen and not be read")

    def _show(self, dispatcher: KeySharedDispatcher, found: ShardRead, start: int, end: int) -> None:
        """Nested calls of `look` do nothing meanwhile: the loop there goes on."""
        was_looking, self._is_looking = self._is_looking, True
        try:
            for section in found.sections:
                low, high = max(start, section.base_offset), min(end, section.base_offset + section.rows)
                if low < high:
                    keys = row_keys(section.body)[low - section.base_offset : high - section.base_offset]
                    self._delivery.carry_out(dispatcher.read(low, keys, self._delivery.now_ms()))
                    start = high
        finally:
            self._is_looking = was_looking

    def _step_over_gone(self, start: int, error: Exception) -> bool:
        """Whether a retention took it: then the log begins behind it."""
        stream = self._delivery.stream
        earliest = stream.log_start()
        if not isinstance(error, errors.PositionGone) or earliest <= start:
            return False
        lost = Gap(stream.key, start, earliest, stream.epoch, "no longer in the log", GapState.LOST)
        self._delivery.nothing_there(lost)
        return True

    async def _rest(self, start: int, error: Exception) -> None:
        metrics.READ_FAILURES.value += 1
        where = f"{self._delivery.stream.key} offset {start}"
        _log.error("messages cannot be read; they are tried again", where=where, error=str(error))
        self._delivery.cannot_read(start, error)
        await self._clock.sleep(limits.READ_RETRY_MS / 1000)
