"""The dispatcher of a key-shared subscription in one shard: each key goes to one consumer, its messages in order.

A consumer has one message of a key at a time, unless it requested more (`Credit.messages_per_key`). Then it gets the
next ones before it has acked the first, as long as none of them fails: a failed message is redelivered alone, after the
other pending ones of its key are settled, and the messages behind it wait until it is acked.

To find messages of other keys behind a waiting one, the dispatcher looks ahead: the driver reads the keys of
`needed_keys` and passes them to `add_keys`. The look-ahead is bounded, in messages and in bytes of keys (hazard 50): if
everything in it waits for pending keys, or for a slow consumer while others could take more, `pause` is KEYS_WAIT.

    a key is     free       its next message goes to its owner in the hash ring, when that consumer has credit
                 busy       a message of it is in flight, delayed, settling or blocked: the others of the key wait,
                            except those that its consumer takes with it
                 unwanted   no consumer's filter accepts it: its messages are skipped and count as acked

A consumer that joins or leaves moves its share of the keys. A message in flight stays with its consumer, so that a key
is never with two consumers; if its consumer has left, it goes first to the next owner of its key: nothing is lost, and
the order holds.

A key does not become unwanted at once. Consumers restart, and after a restart of the broker they return one by one:
keys that a consumer accepted which left less than KEY_UNWANTED_GRACE_MS ago are kept, and all keys are kept for that
long after the first consumer has joined. Without any consumer nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import ConsumerRotation, Credit, Member
from icestream.broker.dispatch.delivery_ledger import FAILED_BEFORE, DeliveryFailure
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.hash_ring import DepartedFilters, HashRing, KeyFilter, ring_distance
from icestream.broker.dispatch.instruction import Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_lanes import KeyLane, KeyLanes, LaneRoundRobin
from icestream.broker.dispatch.timed_runs import InFlightDelivery
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, SubscriptionType

UNWANTED = "no consumer takes its key"


class KeySharedDispatcher(Dispatcher):
    """Dispatches the messages of each key in order to one consumer.

    A message of the look-ahead waits in the lane of its key (key_lanes.py) until it is delivered. Afterwards its state
    is that of the ledger, except `ready`: a message that is to be redelivered goes back to the front of its lane.
    `_changed` collects the lanes whose assignment an event may have changed, so that an event costs as much as the
    lanes that it touches, not as the look-ahead.
    """

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
        self.turns = LaneRoundRobin()  # before the base class, which calls `_consumers_for`
        super().__init__(SubscriptionType.KEY_SHARED, policy, acked, attempts, unacked_max, rate, generation)
        self.look_ahead = look_ahead
        self.ring = HashRing()
        self.lanes = KeyLanes()
        self._departed = DepartedFilters(limits.KEY_UNWANTED_GRACE_MS)
        self._changed: dict[KeyLane, None] = {}  # lanes whose assignment must be decided again
        self._unowned: dict[KeyLane, int] = {}  # lanes without an owner, and until when they are kept
        self._skip_ms = 0  # the earliest of those times
        self._failures: dict[int, int] = {}  # failure counts of waiting messages
        self._returned: set[int] = set()  # waiting messages that were delivered before

    def _consumers_for(self, kind: SubscriptionType) -> ConsumerRotation:
        return self.turns

    # --- events ---

    def join_with(self, credit: Credit, keys: KeyFilter, now_ms: int) -> list[Instruction]:
        """Adds a consumer that takes the keys which its filter accepts."""
        self._remove(credit.id, now_ms)
        is_first = not len(self.ring)
        if is_first:
            # As if a consumer of all keys had just left: no key becomes unwanted before the others had time to return.
            self._departed.add(KeyFilter(), now_ms)
        self.consumers.join(Member(credit))
        points = self.ring.join(credit.id, keys)
        # Only lanes whose nearest point is one of the new consumer's move to it.
        for lane in self.lanes.sendable:
            is_closer = lane.consumer is None or ring_distance(lane.point, points) < lane.distance
            if is_first or (is_closer and keys.accepts(lane.key)):
                self._changed[lane] = None
        return self._dispatch(now_ms)

    def join(self, credit: Credit, now_ms: int) -> list[Instruction]:
        return self.join_with(credit, KeyFilter(), now_ms)

    def _remove(self, consumer_id: int, now_ms: int) -> Member | None:
        # From the ring first: its messages go back to their lanes below, and must be assigned to the next owner.
        keys = self.ring.leave(consumer_id)
        if keys is not None:
            self._departed.add(keys, now_ms)
        member = super()._remove(consumer_id, now_ms)
        if member is not None:
            self._changed.update(member.lanes)
        return member

    @property
    def needed_keys(self) -> tuple[int, int]:
        """Offsets [start, end) whose keys it needs next; empty if the look-ahead is full."""
        new = self._next_new() if len(self.ring) else None
        if new is None:
            return self.next, self.next
        start, end = new
        return start, min(end, start + max(self._lookahead_room_from(start), 0))

    def _lookahead_room_from(self, start: int) -> int:
        """How many more messages may enter the look-ahead from `start` on."""
        room = self._lookahead_room
        # As in `_room`: messages below the acked ranges close holes, and the cursor sets no bound on them.
        if start >= self.acked.end:
            room = min(room, self._acked_room(self.lanes.messages, start))
        return room

    @property
    def _lookahead_room(self) -> int:
        return self.look_ahead - self.lanes.messages if self.lanes.key_bytes < limits.KEY_LOOK_AHEAD_BYTES_MAX else 0

    def add_keys(self, start: int, keys: Sequence[bytes], now_ms: int) -> list[Instruction]:
        """Adds messages from `start` on with their keys to the look-ahead; keys that are not needed are ignored."""
        first, end = self.needed_keys
        if start == first:  # else a seek or a gap has moved on since the keys were requested
            # The common case without `_add_key`: no failure counts and no gaps from before, so only `next` moves.
            lanes, changed, is_plain = self.lanes, self._changed, not self._failed.size and not self._empty.size
            for offset, key in zip(range(start, end), keys, strict=False):
                if lanes.key_bytes >= limits.KEY_LOOK_AHEAD_BYTES_MAX:
                    break
                if not is_plain:
                    self._add_key(offset, key)
                    continue
                self.next = offset + 1
                lane = lanes.add(offset, key)
                if lane.waiting[0] == offset and (not lane.pending or lane.run_room > 0):
                    changed[lane] = None
        return self._dispatch(now_ms)

    def ack(self, ranges: Iterable[tuple[int, int]], generation: int, now_ms: int) -> list[Instruction]:
        """Acks messages of the look-ahead; those that were not delivered are ignored."""
        if generation == self.generation:
            delivered: list[int] = []
            # Below `next` is not enough here: a message of the look-ahead may be waiting and never have been sent.
            for start, end in ranges:
                offsets = self.lanes.within(max(start, self.acked.position), min(end, self.next))
                delivered += [offset for offset in offsets if self.lanes.is_pending(offset) or offset in self._returned]
            self._settle_all(sorted(set(delivered)))
        return self._dispatch(now_ms)

    def seek(self, position: int, now_ms: int) -> list[Instruction]:
        self.lanes.clear()
        self.turns.clear()
        for state in (self._changed, self._unowned, self._failures, self._returned):
            state.clear()
        return super().seek(position, now_ms)

    def set_policy(self, policy: FailurePolicy, now_ms: int) -> list[Instruction]:
        # The lanes of failed messages: under the new policy such a message may have failed too often.
        for offset in self._failures:
            lane = self.lanes.get(offset)
            if lane is not None:
                self._changed[lane] = None
        return super().set_policy(policy, now_ms)

    # --- state ---

    @property
    def unacked(self) -> int:
        return self._pending + len(self._returned)

    @property
    def undelivered(self) -> int:
        # The waiting messages of the look-ahead are below `next`, but were not delivered either.
        return self.end - self.next + self.lanes.messages - self._pending

    @property
    def pause(self) -> Pause | None:
        # A blocked message is not a reason here: it holds back the messages of its key alone.
        if self._pending >= self.unacked_max:
            return Pause.UNACKED_FULL
        if (
            len(self.ring)
            and self._lookahead_room_from(self.next) <= 0
            and (not self._has_free_lane or self._starves_others)
        ):
            return Pause.KEYS_WAIT if self._lookahead_room <= 0 else Pause.ACKED_FULL
        return Pause.RATE_REACHED if self.throttle.wake_ms is not None else None

    @property
    def _has_free_lane(self) -> bool:
        """True if a lane with an owner has nothing pending."""
        return len(self.lanes) > self.lanes.busy + len(self._unowned)

    @property
    def _starves_others(self) -> bool:
        """True if the look-ahead is full of messages for consumers without credit, while others have some."""
        return not self.turns.queue and self.turns.have_credit

    @property
    def wake_ms(self) -> int | None:
        wake_ms = super().wake_ms
        if self._unowned and len(self.ring):
            return self._skip_ms if wake_ms is None else min(wake_ms, self._skip_ms)
        return wake_ms

    @property
    def attempts(self) -> list[tuple[int, int, int]]:
        waiting = [(offset, offset + 1, failures) for offset, failures in self._failures.items()]
        return sorted([*super().attempts, *waiting])

    # --- dispatch ---

    def _add_key(self, offset: int, key: bytes) -> None:
        """Adds a message to the lane of its key, with the failures that it had before a restart."""
        if self._failed.size and (failed := self._failed.first_within(offset, offset + 1)) is not None:
            self._failures[offset] = failed.value
        self._advance_to(offset + 1)
        lane = self.lanes.add(offset, key)
        if lane.waiting[0] == offset and (not lane.pending or lane.run_room > 0):
            self._changed[lane] = None

    def _deliver_all(self, now_ms: int) -> None:
        """Assigns the changed lanes, skips unwanted keys, then delivers in turn.

        Everything in the look-ahead is in the lane of its key, new messages and redeliveries alike.
        """
        while self._changed:  # a poison policy that is applied below settles a message, which changes its lane again
            changed, self._changed = self._changed, {}
            for lane in changed:
                if lane.consumer is not None or self._unowned:
                    self._withdraw(lane)
                lane.sort()
                if not lane.pending:
                    if lane.waiting:
                        self._assign_lane(lane, now_ms)
                elif lane.run_room > 0:
                    self._extend(lane)
        self._skip_unwanted(now_ms)
        self._deliver_in_turn(now_ms)

    def _withdraw(self, lane: KeyLane) -> None:
        self.turns.withdraw(lane)
        self._unowned.pop(lane, None)

    def _assign_lane(self, lane: KeyLane, now_ms: int) -> None:
        """Assigns a free lane to the owner of its key, or applies the poison policy to its first message."""
        failures = self._failures.get(lane.waiting[0], 0) if self._failures else 0
        if failures > self.policy.max_redelivery_count:
            offset = self._start(lane)
            lane.retried.add(offset)
            self._apply_poison_policy(offset, offset + 1, DeliveryFailure(failures, FAILED_BEFORE))
            return
        # By the ring of this moment: an owner that joined after the message arrived gets it, because nothing of the key
        # is pending and the order cannot break.
        owner = lane.owner_in(self.ring)
        member = self.consumers.get(owner.consumer_id) if owner is not None else None
        if owner is not None and member is not None:
            lane.distance = owner.distance
            self.turns.assign(lane, member)
            return
        until_ms = self._departed.until_ms(lane.key, now_ms)
        self._skip_ms = min(self._skip_ms, until_ms) if self._unowned else until_ms
        self._unowned[lane] = until_ms

    def _extend(self, lane: KeyLane) -> None:
        """Assigns further messages of a lane to the consumer of its pending ones, unless the key has another owner by
        now or the next message failed before: then it waits until the pending ones are settled."""
        if self._failures and lane.waiting[0] in self._failures:
            return
        owner = lane.owner_in(self.ring)
        if lane.holder is not None and owner is not None and owner.consumer_id == lane.holder.id:
            lane.distance = owner.distance
            self.turns.assign(lane, lane.holder)

    def _skip_unwanted(self, now_ms: int) -> None:
        """Acks and drops the messages of keys that no consumer accepts, once their grace has ended."""
        if not self._unowned or not len(self.ring) or now_ms < self._skip_ms:
            return
        # Acked and not kept: keys that no consumer accepts would fill the look-ahead and stop the delivery of all
        # others.
        unwanted = [lane for lane, until_ms in self._unowned.items() if until_ms <= now_ms]
        for start, end in _runs(sorted(offset for lane in unwanted for offset in lane.waiting)):
            self._settle(start, end)
            self._out.append(Dropped(start, end, 0, UNWANTED))
        self._skip_ms = min(self._unowned.values(), default=0)

    def _deliver_in_turn(self, now_ms: int) -> None:
        """Sends messages of assigned lanes. What goes to a consumer in one moment and never failed is one delivery."""
        waves: dict[Member, list[int]] = {}
        free, is_open = self.unacked_max - self._pending, self.throttle.is_open
        # First all lanes of a consumer at once, if the result is the same as in turns: enough room for all of them, no
        # rate, no failure counts. Then one lane at a time what is left.
        members = self.turns.bulk_members(free) if is_open and not self._failures else None
        for member in members or ():
            offsets = self.lanes.start_all(self.turns.take_lanes(member), member)
            if offsets:
                waves[member] = offsets
                free -= len(offsets)
                member.credit.spend(len(offsets))
                member.unacked += len(offsets)
                if self._returned:
                    self._returned.difference_update(offsets)
        while free > 0 and (chosen := self.turns.choose_lane()) is not None:
            allowed = free if is_open else min(free, self.throttle.allowed(now_ms))
            if not allowed:
                break
            member, lane = chosen
            self.turns.withdraw(lane)
            lane.holder = member
            if self._failures and (attempt := self._failures.get(lane.waiting[0], 0)):
                # A redelivery is a delivery of its own: deliveries of one wave share their attempt.
                offset = self._start(lane)
                lane.retried.add(offset)
                self._deliver(member, offset, offset + 1, attempt, now_ms)
                free -= 1
                continue
            offsets = self._start_run(lane, min(allowed, member.credit.messages, member.room))
            waves.setdefault(member, []).extend(offsets)
            free -= len(offsets)
            self.turns.on_delivered(member, len(offsets))
            member.unacked += len(offsets)
            self.throttle.spend(len(offsets))
            # The lane left the rotation above and is due again at once: its consumer takes several messages of a key.
            if member.credit.messages_per_key > 1 and lane.run_room > 0:
                self._extend(lane)
        for member, picked in waves.items():
            self._deliver_wave(member, picked, now_ms)

    def _start_run(self, lane: KeyLane, room: int) -> list[int]:
        """Makes the next message of the lane pending; up to `room` of them if the consumer takes several of a key."""
        offsets = [self._start(lane)]
        if room > 1 and (more := lane.run_room) > 0:
            count = min(room, more + 1)
            while len(offsets) < count and lane.waiting and lane.waiting[0] not in self._failures:
                offsets.append(self._start(lane))
        return offsets

    def _deliver_wave(self, member: Member, offsets: list[int], now_ms: int) -> None:
        """Puts the offsets in flight with a consumer, as one delivery."""
        # Of one key the lower offset is the older message, so the order by offset keeps the order of every key.
        offsets.sort()
        ranges = list(_runs(offsets))
        due_ms = now_ms + self.policy.ack_timeout_ms
        delivery = InFlightDelivery(offsets[0], offsets[-1] + 1, due_ms, member, 0, now_ms, picked=len(offsets))
        member.track(delivery)
        self.in_flight.put_picked(delivery, ranges)
        self._out += [Deliver(member.id, start, end, 0) for start, end in ranges]

    def _start(self, lane: KeyLane) -> int:
        """Makes the oldest message of a lane pending; returns its offset."""
        offset = self.lanes.start(lane)
        if self._failures:
            self._failures.pop(offset, None)
        if self._returned:
            self._returned.discard(offset)
        return offset

    def _make_ready(self, start: int, end: int, attempt: int) -> None:
        """Puts messages back to the front of their lanes."""
        for offset in range(start, end):
            lane = self.lanes.get(offset)
            assert lane is not None, "pending messages are in the look-ahead"
            self.lanes.put_back(lane, offset)
            self._returned.add(offset)
            if attempt:
                self._failures[offset] = attempt
            self._changed[lane] = None

    def _fail(self, start: int, end: int, failure: DeliveryFailure, now_ms: int, requested_ms: int = 0) -> None:
        for offset in range(start, end):
            lane = self.lanes.get(offset)
            assert lane is not None, "pending messages are in the look-ahead"
            lane.retried.add(offset)
        super()._fail(start, end, failure, now_ms, requested_ms)

    def _settle(self, start: int, end: int) -> None:
        super()._settle(start, end)
        for offset in self.lanes.within(start, end):
            self._forget(offset)

    def _settle_all(self, offsets: list[int]) -> None:
        """As `_settle`, for many messages of the look-ahead at once, in rising order."""
        ranges = list(_runs(offsets))
        # Many keys make single offsets, one key makes ranges: each by the cheaper operation.
        if len(offsets) <= 2 * len(ranges):
            self.in_flight.take_offsets(offsets)
        else:
            for start, end in ranges:
                self.in_flight.take(start, end)
        if self._pending > self.in_flight.size:
            for start, end in ranges:
                for runs in (self.delayed, self.ready, self.settling, self.blocked):
                    runs.take(start, end)
        for start, end in ranges:
            self.acked.add(start, end)
        for offset in offsets:
            self._forget(offset)

    def _forget(self, offset: int) -> None:
        """Removes a settled message from its lane; the next message of the lane may be assigned then."""
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
    """Groups rising offsets into ranges."""
    start = end = -1
    for offset in offsets:
        if offset != end:
            if start < end:
                yield start, end
            start = offset
        end = offset + 1
    if start < end:
        yield start, end
