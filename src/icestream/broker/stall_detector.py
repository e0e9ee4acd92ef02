"""Says when the delivery of a shard stands still although messages wait: why, at which message, and how old that is.

Only what somebody must end is said: acked ranges at their bound (hazard 17), a blocked message, a window full of keys
that wait (hazard 50), consumers that ack later messages and not the first. A slow consumer or a rate that is reached is
ordinary, and is shown to whoever asks (`pause`).

    moves        the first unacked message is another one than before: a consumer that has as much as it may have is
                 at the bound all the time, and works
    stands       it is the same one, STANDSTILL_MS later: it is said, and again every STANDSTILL_SAID_EVERY_MS
"""

from __future__ import annotations

from typing import Final

from icestream import errors, limits
from icestream.broker.alarm import Alarm
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.storage import ShardStream
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

REPORTED_PAUSES: Final = frozenset((Pause.ACKED_FULL, Pause.BLOCKED, Pause.KEYS_WAIT))
_log = get_logger("delivery")


class StallDetector:
    def __init__(self, name: str, stream: ShardStream, dispatcher: Dispatcher, clock: Clock, tasks: Tasks) -> None:
        self._name = name
        self._stream = stream
        self._dispatcher = dispatcher
        self._clock = clock
        self._tasks = tasks
        self._alarm = Alarm(clock, tasks, self.look)
        self._at: tuple[Pause, int] | None = None
        self._due_ms = 0  # when it is said, if nothing moves until then

    def look(self) -> None:
        """After each event, and when it is due. Where nothing waits there is nothing to say."""
        dispatcher = self._dispatcher
        pause = dispatcher.pause if dispatcher.next < dispatcher.end else None
        is_torn = pause is Pause.UNACKED_FULL and len(dispatcher.acked)
        if pause is None or (pause not in REPORTED_PAUSES and not is_torn):
            self._at = None
            return
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if self._at != (pause, dispatcher.acked.position):
            self._at = (pause, dispatcher.acked.position)
            self._due_ms = now_ms + limits.STANDSTILL_MS
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + limits.STANDSTILL_SAID_EVERY_MS
            metrics.DELIVERY_STANDSTILLS.add(pause.name.lower())
            hole = dispatcher.acked.hole or (dispatcher.acked.position, dispatcher.next)
            self._tasks.start(self._say(pause, hole), f"{self._name}-standstill")
        self._alarm.set(self._due_ms)

    def close(self) -> None:
        self._alarm.close()

    async def _say(self, pause: Pause, hole: tuple[int, int]) -> None:
        age_ms = await message_age_ms(self._stream, hole[0], self._clock.wall_us())
        _log.warning(
            "delivery stands still",
            where=self._name,
            reason=pause.value,
            unacked_from=hole[0],
            unacked_to=hole[1] - 1,
            age_seconds=None if age_ms is None else age_ms // 1000,
        )


async def message_age_ms(stream: ShardStream, offset: int, now_us: int) -> int | None:
    """How many milliseconds ago a message was stored; None when there is none, or it is gone."""
    if offset >= stream.visible:
        return None
    try:
        sections = stream.read_hot(offset, 1) or (await stream.read(offset, 1)).sections
    except (errors.IcestreamError, OSError):
        return None
    return max(now_us - sections[0].append_time_us, 0) // 1000 if sections else None
