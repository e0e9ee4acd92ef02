"""A key-shared subscription in one shard: each key with one consumer, its messages in order.

A consumer has one message of a key at a time, unless it asked for more (`Credit.messages_per_key`). Then it gets the
next ones before it has acked the first, as long as none of them fails: a message that failed comes again when the
others of its key are settled, alone, and what lies behind it waits until it is acked.

To find messages of other keys behind one that waits, the dispatcher looks ahead: the driver reads what `wanted` says
and hands over the keys (`read`). The look-ahead is bounded, in messages and in bytes of keys (hazard 50): when
everything in sight waits for keys that are under way, or for a slow consumer while others could take more, `pause` is
KEYS_WAIT.

    a key is     free       its next message goes to the consumer that the ring names, when that one has credit
                 busy       a message of it is in flight, delayed, settling or blocked: the others of the key wait, but
                            those that its consumer takes with it
                 unwanted   no consumer's filter takes it: its messages are skipped and count as acked

A consumer that comes or goes moves its share of keys. A message in flight stays where it is, so that no key is ever in
two hands; one whose consumer is gone goes first to the next owner of its key: nothing is lost, order holds.

A key is not unwanted at once. Consumers restart, and after a restart of the broker they come back one by one: what a
consumer took that left less than KEY_UNWANTED_GRACE_MS ago is kept, and everything is kept for that long after the
first one came. Without any consumer nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import ConsumerRotation, Credit, Member
from icestream.broker.dispatch.delivery_ledger import FAILED_BEFORE, DeliveryFailure
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.hash_ring import DepartedFilters, HashRing, KeyFilter, distance
from icestream.broker.dispatch.instruction import Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_lanes import KeyLane, KeyLanes, LaneRoundRobin
from icestream.broker.dispatch.timed_runs import InFlightDelivery
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription import FailurePolicy, SubscriptionType

UNWANTED = "no consumer takes its key"


class KeySharedDispatcher(Dispatcher):
    def __init__(
        self,
        policy: FailurePolicy,
        acked: AckedOffsets,
        attempts: Iterable[tuple[int, int, int]] = (),
        unacked_max: int = limits.UNACKED_MAX_DEFAULT,
        look_ahead: int = limits.KEY_LOOK_AHEAD_MAX,
        rate: TokenBucket | None = None,
        generation: int = 0,
    ) -> None:
        self.turns = LaneRoundRobin()
        super().__init__(SubscriptionType.KEY_SHARED, policy, acked, attempts, unacked_max, rate, generation)
        self.look_ahead = look_ahead
        self.ring = HashRing()
        self.lanes = KeyLanes()
        self._absent = DepartedFilters(limits.KEY_UNWANTED_GRACE_MS)
        self._changed: dict[KeyLane, None] = {}  # lanes that ask anew where they belong
        self._unowned: dict[KeyLane, int] = {}  # lanes that nobody takes, and until when they are kept
        self._skip_ms = 0  # the earliest of those times
        self._failures: dict[int, int] = {}  # of waiting messages that failed
        self._returned: set[int] = set()  # waiting messages that were delivered before

    def _consumers_for(self, kind: SubscriptionType) -> ConsumerRotation:
        return self.turns

    # --- events ---

    def join_with(self, credit: Credit, keys: KeyFilter, now_ms: int) -> list[Instruction]:
        self._remove(credit.id, now_ms)
        is_first = not len(self.ring)
        if is_first:
            self._absent.left(KeyFilter(), now_ms)
        self.consumers.join(Member(credit))
        places = self.ring.join(credit.id, keys)
        for lane in self.lanes.open:
            is_taken = lane.owner is None or distance(lane.place, places) < lane.distance
            if is_first or (is_taken and keys.accepts(lane.key)):
                self._changed[lane] = None
        return self._go_on(now_ms)

    def join(self, credit: Credit, now_ms: int) -> list[Instruction]:
        return self.join_with(credit, KeyFilter(), now_ms)

    def _remove(self, consumer_id: int, now_ms: int) -> Member | None:
        keys = self.ring.leave(consumer_id)
        if keys is not None:
            self._absent.left(keys, now_ms)
        member = super()._remove(consumer_id, now_ms)
        if member is not None:
            self._changed.update(member.lanes)
        return member

    @property
    def wanted(self) -> tuple[int, int]:
        """Offsets [start, end) whose keys it wants to see next; empty when it has enough in sight."""
        found = self._find_new() if len(self.ring) else None
        if found is None:
            return self.next, self.next
        start, end = found
        return start, min(end, start + max(self._sight_room(start), 0))

    def _sight_room(self, start: int) -> int:
        """How many more messages it may look at from `start` on."""
        room = self._look_ahead_room
        if start >= self.acked.end:
            room = min(room, self._acked_room(self.lanes.messages, start))
        return room

    @property
    def _look_ahead_room(self) -> int:
        return self.look_ahead - self.lanes.messages if self.lanes.key_bytes < limits.KEY_LOOK_AHEAD_BYTES_MAX else 0

    def read(self, start: int, keys: Sequence[bytes], now_ms: int) -> list[Instruction]:
        """The keys of the messages from `start` on, as `wanted` asked for. Others are not looked at."""
        first, end = self.wanted
        if start == first:
            lanes, changed, is_plain = self.lanes, self._changed, not self._failed.size and not self._empty.size
            for offset, key in zip(range(start, end), keys, strict=False):
                if lanes.key_bytes >= limits.KEY_LOOK_AHEAD_BYTES_MAX:
                    break
                if not is_plain:
                    self._see(offset, key)
                    continue
                self.next = offset + 1
                lane = lanes.see(offset, key)
                if lane.waiting[0] == offset and (not lane.under_way or lane.run_room > 0):
                    changed[lane] = None
        return self._go_on(now_ms)

    def ack(self, ranges: Iterable[tuple[int, int]], generation: int, now_ms: int) -> list[Instruction]:
        """Of the messages in sight, those that were delivered."""
        if generation == self.generation:
            done: list[int] = []
            for start, end in ranges:
                in_sight = self.lanes.within(max(start, self.acked.position), min(end, self.next))
                done += [one for one in in_sight if self.lanes.is_under_way(one) or one in self._returned]
            self._settle_all(sorted(set(done)))
        return self._go_on(now_ms)

    def seek(self, position: int, now_ms: int) -> list[Instruction]:
        self.lanes.clear()
        self.turns.clear()
        for held in (self._changed, self._unowned, self._failures, self._returned):
            held.clear()
        return super().seek(position, now_ms)

    def set_policy(self, policy: FailurePolicy, now_ms: int) -> list[Instruction]:
        for offset in self._failures:
            lane = self.lanes.get(offset)
            if lane is not None:
                self._changed[lane] = None
        return super().set_policy(policy, now_ms)

    # --- what is to be seen ---

    @property
    def unacked(self) -> int:
        return self._under_way + len(self._returned)

    @property
    def undelivered(self) -> int:
        return self.end - self.next + self.lanes.messages - self._under_way

    @property
    def pause(self) -> Pause | None:
        if self._under_way >= self.unacked_max:
            return Pause.UNACKED_FULL
        if len(self.ring) and self._sight_room(self.next) <= 0 and (not self._has_free_lane or self._holds_others_up):
            return Pause.KEYS_WAIT if self._look_ahead_room <= 0 else Pause.ACKED_FULL
        return Pause.RATE_REACHED if self.throttle.wake_ms is not None else None

    @property
    def _has_free_lane(self) -> bool:
        """One that has an owner."""
        return len(self.lanes) > self.lanes.busy + len(self._unowned)

    @property
    def _holds_others_up(self) -> bool:
        """What is in sight is for consumers that take no more, and others could."""
        return not self.turns.queue and self.turns.have_credit

    @property
    def wake_ms(self) -> int | None:
        at = super().wake_ms
        if self._unowned and len(self.ring):
            return self._skip_ms if at is None else min(at, self._skip_ms)
        return at

    @property
    def attempts(self) -> list[tuple[int, int, int]]:
        waiting = [(offset, offset + 1, failures) for offset, failures in self._failures.items()]
        return sorted([*super().attempts, *waiting])

    # --- how it goes on ---

    def _see(self, offset: int, key: bytes) -> None:
        if self._failed.size and (known := self._failed.first_within(offset, offset + 1)) is not None:
            self._failures[offset] = known.value
        self._pass(offset + 1)
        lane = self.lanes.see(offset, key)
        if lane.waiting[0] == offset and (not lane.under_way or lane.run_room > 0):
            self._changed[lane] = None

    def _deliver_all(self, now_ms: int) -> None:
        """Everything in sight is in the lane of its key, whether it is new or comes again."""
        while self._changed:
            changed, self._changed = self._changed, {}
            for lane in changed:
                if lane.owner is not None or self._unowned:
                    self._withdraw(lane)
                lane.sort()
                if not lane.under_way:
                    if lane.waiting:
                        self._place(lane, now_ms)
                elif lane.run_room > 0:
                    self._prolong(lane)
        self._skip_unwanted(now_ms)
        self._deliver_in_turn(now_ms)

    def _withdraw(self, lane: KeyLane) -> None:
        self.turns.withdraw(lane)
        self._unowned.pop(lane, None)

    def _place(self, lane: KeyLane, now_ms: int) -> None:
        """Gives a free lane to the consumer that has its key, or its first message up."""
        failures = self._failures.get(lane.waiting[0], 0) if self._failures else 0
        if failures > self.policy.max_redelivery_count:
            offset = self._start(lane)
            lane.held.add(offset)
            self._give_up(offset, offset + 1, DeliveryFailure(failures, FAILED_BEFORE))
            return
        owner = lane.owner_in(self.ring)
        member = self.consumers.get(owner.consumer_id) if owner is not None else None
        if owner is not None and member is not None:
            lane.distance = owner.distance
            self.turns.give(lane, member)
            return
        until_ms = self._absent.until_ms(lane.key, now_ms)
        self._skip_ms = min(self._skip_ms, until_ms) if self._unowned else until_ms
        self._unowned[lane] = until_ms

    def _prolong(self, lane: KeyLane) -> None:
        """Lets the consumer that has messages of the lane have more of them, unless the key belongs to another one by
        now or the next message failed before: then it waits until those are settled."""
        if self._failures and lane.waiting[0] in self._failures:
            return
        owner = lane.owner_in(self.ring)
        if lane.holder is not None and owner is not None and owner.consumer_id == lane.holder.id:
            lane.distance = owner.distance
            self.turns.give(lane, lane.holder)

    def _skip_unwanted(self, now_ms: int) -> None:
        if not self._unowned or not len(self.ring) or now_ms < self._skip_ms:
            return
        unwanted = [lane for lane, until_ms in self._unowned.items() if until_ms <= now_ms]
        for start, end in _runs(sorted(offset for lane in unwanted for offset in lane.waiting)):
            self._settle(start, end)
            self._out.append(Dropped(start, end, 0, UNWANTED))
        self._skip_ms = min(self._unowned.values(), default=0)

    def _deliver_in_turn(self, now_ms: int) -> None:
        """Everything that goes to a consumer in one moment and did not fail before is one delivery, by offset."""
        waves: dict[Member, list[int]] = {}
        left, is_open = self.unacked_max - self._under_way, self.throttle.is_open
        members = self.turns.waiting_lanes(left) if is_open and not self._failures else None
        for member in members or ():
            offsets = self.lanes.start_all(self.turns.take_lanes(member), member)
            if offsets:
                waves[member] = offsets
                left -= len(offsets)
                member.credit.spend(len(offsets))
                member.held += len(offsets)
                if self._returned:
                    self._returned.difference_update(offsets)
        while left > 0 and (chosen := self.turns.choose_lane()) is not None:
            allowed = left if is_open else min(left, self.throttle.allowed(now_ms))
            if not allowed:
                break
            member, lane = chosen
            self.turns.withdraw(lane)
            lane.holder = member
            if self._failures and (attempt := self._failures.get(lane.waiting[0], 0)):
                offset = self._start(lane)
                lane.held.add(offset)
                self._deliver(member, offset, offset + 1, attempt, now_ms)
                left -= 1
                continue
            offsets = self._start_run(lane, min(allowed, member.credit.messages, member.room))
            waves.setdefault(member, []).extend(offsets)
            left -= len(offsets)
            self.turns.took(member, len(offsets))
            member.held += len(offsets)
            self.throttle.spend(len(offsets))
            if member.credit.messages_per_key > 1 and lane.run_room > 0:
                self._prolong(lane)
        for member, picked in waves.items():
            self._deliver_wave(member, picked, now_ms)

    def _start_run(self, lane: KeyLane, room: int) -> list[int]:
        """The next message of the lane; at most `room` of them where the consumer takes several of a key."""
        offsets = [self._start(lane)]
        if room > 1 and (more := lane.run_room) > 0:
            count = min(room, more + 1)
            while len(offsets) < count and lane.waiting and lane.waiting[0] not in self._failures:
                offsets.append(self._start(lane))
        return offsets

    def _deliver_wave(self, member: Member, offsets: list[int], now_ms: int) -> None:
        """Of a key the lower offset is the older message, so the order by offset is the order of every key."""
        offsets.sort()
        ranges = list(_runs(offsets))
        due_ms = now_ms + self.policy.ack_timeout_ms
        delivery = InFlightDelivery(offsets[0], offsets[-1] + 1, due_ms, member, 0, now_ms, picked=len(offsets))
        member.keep(delivery)
        self.in_flight.put_picked(delivery, ranges)
        self._out += [Deliver(member.id, start, end, 0) for start, end in ranges]

    def _start(self, lane: KeyLane) -> int:
        offset = self.lanes.start(lane)
        if self._failures:
            self._failures.pop(offset, None)
        if self._returned:
            self._returned.discard(offset)
        return offset

    def _make_ready(self, start: int, end: int, attempt: int) -> None:
        """Back to the front of its key: what came after it still waits."""
        for offset in range(start, end):
            lane = self.lanes.get(offset)
            assert lane is not None, "what is under way is in sight"
            self.lanes.put_back(lane, offset)
            self._returned.add(offset)
            if attempt:
                self._failures[offset] = attempt
            self._changed[lane] = None

    def _fail(self, start: int, end: int, failure: DeliveryFailure, now_ms: int, asked_ms: int = 0) -> None:
        for offset in range(start, end):
            lane = self.lanes.get(offset)
            assert lane is not None, "what is under way is in sight"
            lane.held.add(offset)
        super()._fail(start, end, failure, now_ms, asked_ms)

    def _settle(self, start: int, end: int) -> None:
        super()._settle(start, end)
        for offset in self.lanes.within(start, end):
            self._forget(offset)

    def _settle_all(self, offsets: list[int]) -> None:
        """`_settle` of many messages in sight at once; they rise."""
        ranges = list(_runs(offsets))
        if len(offsets) <= 2 * len(ranges):
            self.in_flight.take_offsets(offsets)
        else:
            for start, end in ranges:
                self.in_flight.take(start, end)
        if self._under_way > self.in_flight.size:
            for start, end in ranges:
                for runs in (self.delayed, self.ready, self.settling, self.blocked):
                    runs.take(start, end)
        for start, end in ranges:
            self.acked.add(start, end)
        for offset in offsets:
            self._forget(offset)

    def _forget(self, offset: int) -> None:
        lane = self.lanes.forget(offset)
        if self._failures:
            self._failures.pop(offset, None)
        if self._returned:
            self._returned.discard(offset)
        if lane.waiting:
            self._changed[lane] = None
        else:
            self._withdraw(lane)
            self._changed.pop(lane, None)


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Rising offsets as ranges."""
    start = end = -1
    for offset in offsets:
        if offset != end:
            if start < end:
                yield start, end
            start = offset
        end = offset + 1
    if start < end:
        yield start, end
