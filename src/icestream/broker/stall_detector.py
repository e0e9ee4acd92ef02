"""Detects and logs that the delivery of a shard has stalled although messages wait: why, at which message, how old.

Only stalls that need intervention are logged: acked ranges at their bound (hazard 17), a blocked message, a window full
of waiting keys (hazard 50), consumers that ack later messages but not the first. A slow consumer or a reached rate is
normal operation; descriptions of the subscription show it (`pause`).

    progress   the first unacked message has changed: a consumer with a full window is at the bound all the time, and
               works
    stalled    it is the same message after STANDSTILL_MS: logged, and again every STANDSTILL_SAID_EVERY_MS
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
_HINT: Final = "`icestream sub describe` shows the consumers and the first unacked message of each shard"


class StallDetector:
    """Watches the progress of one shard of a subscription."""

    def __init__(self, name: str, stream: ShardStream, dispatcher: Dispatcher, clock: Clock, tasks: Tasks) -> None:
        self._name = name
        self._stream = stream
        self._dispatcher = dispatcher
        self._clock = clock
        self._tasks = tasks
        self._alarm = Alarm(clock, tasks, self.check)
        self._stalled_at: tuple[Pause, int] | None = None  # the reason, and the first unacked offset
        self._due_ms = 0  # when to log, unless there is progress until then

    def check(self) -> None:
        """Compares the state with that of the last check; logs a stall that has lasted. Called after each event and
        when the alarm is due."""
        dispatcher = self._dispatcher
        pause = dispatcher.pause if dispatcher.next < dispatcher.end else None
        # A full window with acked ranges above a hole: consumers ack later messages, but not the first one.
        has_hole = pause is Pause.UNACKED_FULL and len(dispatcher.acked)
        if pause is None or (pause not in REPORTED_PAUSES and not has_hole):
            self._stalled_at = None
            return
        now_ms = self._clock.monotonic_ns() // 1_000_000
        # Progress is a change of the first unacked message, not of the pause: a full window changes with every ack.
        if self._stalled_at != (pause, dispatcher.acked.position):
            self._stalled_at = (pause, dispatcher.acked.position)
            self._due_ms = now_ms + limits.STANDSTILL_MS
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + limits.STANDSTILL_SAID_EVERY_MS
            metrics.DELIVERY_STANDSTILLS.add(pause.name.lower())
            unacked = dispatcher.acked.hole or (dispatcher.acked.position, dispatcher.next)
            self._tasks.start(self._report(pause, unacked), f"{self._name}-stall")
        self._alarm.set(self._due_ms)

    def close(self) -> None:
        self._alarm.close()

    async def _report(self, pause: Pause, unacked: tuple[int, int]) -> None:
        """Logs a stall. In a task: finding the age of the message may need a read."""
        age_ms = await message_age_ms(self._stream, unacked[0], self._clock.wall_us())
        _log.warning(
            "delivery stalled",
            where=self._name,
            reason=pause.value,
            unacked_from=unacked[0],
            unacked_to=unacked[1] - 1,
            age_seconds=None if age_ms is None else age_ms // 1000,
            hint=_HINT,
        )


async def message_age_ms(stream: ShardStream, offset: int, now_us: int) -> int | None:
    """The milliseconds since a message was stored; None if it does not exist (yet), or cannot be read."""
    if offset >= stream.visible:
        return None
    try:
        sections = stream.read_hot(offset, 1) or (await stream.read(offset, 1)).sections
    except (errors.IcestreamError, OSError):
        return None
    return max(now_us - sections[0].append_time_us, 0) // 1000 if sections else None
