"""Non-reliable dispatch: messages go to consumers that have credit now; without one they are skipped (hazard 45).

The messages are stored like all others; only delivery differs. A delivery counts as acked when it is dispatched, so
nothing is ever in flight, fails or is redelivered, and the cursor follows the end of what can be read. Rotation, keys
and filters are those of reliable dispatch. A rate delays and skips nothing: while it is reached, `next` stays.

    history    stored before the subscription was created or sought (`kept_below`): it waits for credit, because a start
               or a seek has requested it; over restarts too (the cursor stores `kept_below`)
    live       stored later: skipped unless a consumer with credit is connected
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Member
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import ring_point
from icestream.broker.dispatch.instruction import Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_shared import UNWANTED, KeySharedDispatcher
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, SubscriptionType

NO_ROOM = "no consumer had room"


class BestEffortDispatcher(Dispatcher):
    """Non-reliable dispatch of exclusive, failover and shared subscriptions."""

    def __init__(
        self,
        kind: SubscriptionType,
        acked: AckedOffsets,
        rate: TokenBucket | None = None,
        generation: int = 0,
        kept_below: int = 0,
    ) -> None:
        super().__init__(kind, FailurePolicy(), acked, rate=rate, generation=generation)
        self.kept_below = kept_below

    def seek(self, position: int, now_ms: int) -> list[Instruction]:
        self.kept_below = self.end  # everything that is stored now was requested by the seek
        return super().seek(position, now_ms)

    def _deliver_new(self, now_ms: int) -> None:
        while (new := self._next_new()) is not None:
            start, end = new
            # No window: a delivery is acked at once, so only credit and rate bound it.
            stop = self._assign(start, end, 0, now_ms, limits.OFFSET_MAX)
            self._advance_to(stop)
            # The rest waits if the rate is reached, or if it is history; otherwise it is skipped. Live messages behind
            # history are not skipped before it: that would reorder them.
            if self.throttle.wake_ms is not None or stop < min(end, self.kept_below):
                return
            if stop < end:
                self._out.append(Dropped(stop, end, 0, NO_ROOM))
                self.acked.add(stop, end)
                self._advance_to(end)

    def _deliver(self, member: Member, start: int, end: int, attempt: int, now_ms: int) -> None:
        # Acked instead of put in flight: there is no deadline, no failure and no redelivery.
        self.consumers.on_delivered(member, end - start)
        self.throttle.spend(end - start)
        self.acked.add(start, end)
        self._out.append(Deliver(member.id, start, end, attempt))


class KeySharedBestEffortDispatcher(KeySharedDispatcher):
    """Non-reliable dispatch of key-shared subscriptions: each key goes to its owner, if that consumer has credit.

    Messages are delivered or dropped as their keys arrive, so the look-ahead is always empty.
    """

    def __init__(
        self,
        acked: AckedOffsets,
        look_ahead: int = limits.KEY_LOOK_AHEAD_MAX,
        rate: TokenBucket | None = None,
        generation: int = 0,
        kept_below: int = 0,
    ) -> None:
        super().__init__(FailurePolicy(), acked, look_ahead=look_ahead, rate=rate, generation=generation)
        self.kept_below = kept_below

    def seek(self, position: int, now_ms: int) -> list[Instruction]:
        self.kept_below = self.end
        return super().seek(position, now_ms)

    @property
    def needed_keys(self) -> tuple[int, int]:
        # Empty while the next message must wait: reading further keys would be for nothing.
        must_wait = self.throttle.wake_ms is not None or self._must_keep(self.next)
        return (self.next, self.next) if must_wait else super().needed_keys

    def _must_keep(self, offset: int) -> bool:
        """True for history while no consumer has credit."""
        return offset < self.kept_below and not self.consumers.have_credit

    def add_keys(self, start: int, keys: Sequence[bytes], now_ms: int) -> list[Instruction]:
        first, end = self.needed_keys
        if start == first:
            for offset, key in zip(range(start, end), keys, strict=False):
                if not self._deliver_or_drop(offset, key, now_ms):
                    break
                self.acked.add(offset, offset + 1)
                self._advance_to(offset + 1)
        return self._dispatch(now_ms)

    def _deliver_or_drop(self, offset: int, key: bytes, now_ms: int) -> bool:
        """False if the message must wait: the rate is reached, or it is history and no consumer has credit."""
        if self._must_keep(offset):
            return False
        owner = self.ring.owner(key, ring_point(key))
        member = self.consumers.get(owner.consumer_id) if owner is not None else None
        if member is None or member.credit.messages <= 0:
            # Not to another consumer: a key has one owner, and without acks nothing could keep its order.
            self._append(Dropped(offset, offset + 1, 0, UNWANTED if member is None else NO_ROOM))
            return True
        if not self.throttle.allowed(now_ms):
            return False
        member.credit.spend(1)
        self.throttle.spend(1)
        self._append(Deliver(member.id, offset, offset + 1, 0))
        return True

    def _append(self, new: Deliver | Dropped) -> None:
        """Adds an instruction; extends the last one if the new one continues it."""
        last = self._out[-1] if self._out else None
        if isinstance(last, type(new)) and last.end == new.start and last._replace(start=new.start, end=new.end) == new:
            self._out[-1] = last._replace(end=new.end)
        else:
            self._out.append(new)

    def _deliver_all(self, now_ms: int) -> None:
        # Without consumers the driver reads no keys, so live messages are dropped here.
        if len(self.ring):
            if self.next < self.end:
                self.throttle.allowed(now_ms)  # sets `wake_ms` if the rate is reached
            return
        while (new := self._next_new()) is not None and not self._must_keep(new[0]):
            self._out.append(Dropped(*new, 0, NO_ROOM))
            self.acked.add(*new)
            self._advance_to(new[1])
