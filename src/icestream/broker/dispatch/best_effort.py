"""Non-reliable dispatch: what can be read now goes to whoever has room now, the rest is skipped (hazard 45).

The messages are stored like all others; only delivery differs. A delivery counts as acked when it is decided, so
nothing is ever in flight, fails or comes again, and the cursor follows the end of what can be read. Whose turn it is,
the keys and the filters are those of reliable dispatch. A rate slows it down and skips nothing: while it is reached,
`next` stays.

    history    stored before the subscription was made or sought (`kept_below`): it waits while nobody has room, so that
               a start and a seek mean something, over restarts too (the cursor knows how far it reaches)
    live       comes later: a consumer must be there and have room, or it is skipped
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Member
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import place_of
from icestream.broker.dispatch.instruction import Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_shared import UNWANTED, KeySharedDispatcher
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription import FailurePolicy, SubscriptionType

NO_ROOM = "no consumer had room"


class BestEffortDispatcher(Dispatcher):
    """Exclusive, failover and shared."""

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
        self.kept_below = self.end
        return super().seek(position, now_ms)

    def _deliver_new(self, now_ms: int) -> None:
        while (found := self._find_new()) is not None:
            start, end = found
            stop = self._hand_out(start, end, 0, now_ms, limits.OFFSET_MAX)
            self._pass(stop)
            if self.throttle.wake_ms is not None or stop < min(end, self.kept_below):
                return
            if stop < end:
                self._out.append(Dropped(stop, end, 0, NO_ROOM))
                self.acked.add(stop, end)
                self._pass(end)

    def _deliver(self, member: Member, start: int, end: int, attempt: int, now_ms: int) -> None:
        self.consumers.took(member, end - start)
        self.throttle.spend(end - start)
        self.acked.add(start, end)
        self._out.append(Deliver(member.id, start, end, attempt))


class KeySharedBestEffortDispatcher(KeySharedDispatcher):
    """Each key to the consumer that has it, if that one has room."""

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
    def wanted(self) -> tuple[int, int]:
        must_wait = self.throttle.wake_ms is not None or self._is_kept(self.next)
        return (self.next, self.next) if must_wait else super().wanted

    def _is_kept(self, offset: int) -> bool:
        """History, and nobody has room for anything."""
        return offset < self.kept_below and not self.consumers.have_credit

    def read(self, start: int, keys: Sequence[bytes], now_ms: int) -> list[Instruction]:
        first, end = self.wanted
        if start == first:
            for offset, key in zip(range(start, end), keys, strict=False):
                if not self._hand_over(offset, key, now_ms):
                    break
                self.acked.add(offset, offset + 1)
                self._pass(offset + 1)
        return self._go_on(now_ms)

    def _hand_over(self, offset: int, key: bytes, now_ms: int) -> bool:
        """False: the rate is reached or nobody has room for history, and the message waits."""
        if self._is_kept(offset):
            return False
        owner = self.ring.owner(key, place_of(key))
        member = self.consumers.get(owner.consumer_id) if owner is not None else None
        if member is None or member.credit.messages <= 0:
            self._note(Dropped(offset, offset + 1, 0, UNWANTED if member is None else NO_ROOM))
            return True
        if not self.throttle.allowed(now_ms):
            return False
        member.credit.spend(1)
        self.throttle.spend(1)
        self._note(Deliver(member.id, offset, offset + 1, 0))
        return True

    def _note(self, one: Deliver | Dropped) -> None:
        """Neighbours that go the same way are one instruction."""
        last = self._out[-1] if self._out else None
        if isinstance(last, type(one)) and last.end == one.start and last._replace(start=one.start, end=one.end) == one:
            self._out[-1] = last._replace(end=one.end)
        else:
            self._out.append(one)

    def _deliver_all(self, now_ms: int) -> None:
        """Without consumers nobody asks for keys."""
        if len(self.ring):
            if self.next < self.end:
                self.throttle.allowed(now_ms)
            return
        while (found := self._find_new()) is not None and not self._is_kept(found[0]):
            self._out.append(Dropped(*found, 0, NO_ROOM))
            self.acked.add(*found)
            self._pass(found[1])
