"""Key-shared subscriptions against an oracle that knows each message (tests/support).

What the model of the other types says, and of keys:

    one hand      never two messages of one key under way
    order         each delivery is the oldest message of its key that is not acked, redeliveries too
    owner         the consumer that the ring names, by an own and simpler ring
    filters       a message goes only to one that takes its key; it is skipped only when no consumer takes it,
                  and none that took it was connected a short while ago
    look-ahead    bounded; a key that waits does not keep the others from going
"""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.hash_ring import KeyFilter, ring_point
from icestream.broker.dispatch.instruction import Dropped, Instruction
from icestream.broker.dispatch.key_shared import UNWANTED, KeySharedDispatcher
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, SubscriptionType
from tests.support.dispatch_oracle import DispatchOracle
from tests.unit.broker.dispatch.test_dispatcher_model import DispatcherModel

KEYS = [b"a", b"b", b"ab", b"ba", b"a", b"c", b"a", b"abc"]
FILTERS = st.sampled_from([(), (), ("a*",), ("b*", "?b"), ("*c", "a"), ("nobody",)])
LOOK_AHEAD = 7
GRACE_MS = 60


def key_of(offset: int) -> bytes:
    return KEYS[(offset * 7 + offset // 5) % len(KEYS)]


def takes(patterns: tuple[str, ...], key: bytes) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(key.decode(), pattern) for pattern in patterns)


class KeyOracle(DispatchOracle):
    def forget_consumers(self, seen: int) -> None:
        self.seen = seen  # everything below was looked at
        self.filters: dict[int, tuple[str, ...]] = {}
        self.missed: list[tuple[tuple[str, ...], int]] = []  # filters, and until when they are missed

    # --- keys ---

    def owner(self, key: bytes) -> int | None:
        """The place next to the key's, of all consumers that take it."""
        places = [
            ((ring_point(b"%d-%d" % (consumer, number)) - ring_point(key)) % 2**64, consumer)
            for consumer, patterns in self.filters.items()
            if takes(patterns, key)
            for number in range(limits.RING_PLACES_PER_CONSUMER)
        ]
        return min(places)[1] if places else None

    def kept_until_ms(self, key: bytes) -> int:
        return max((until for patterns, until in self.missed if takes(patterns, key)), default=0)

    @property
    def busy(self) -> set[int]:
        return self.under_way - self.ready

    @property
    def sight(self) -> list[int]:
        return [offset for offset in range(self.seen) if offset not in self.acked]

    @property
    def next_of_key(self) -> dict[bytes, int]:
        """Of each key of which nothing is under way, the message that goes next."""
        first_offsets: dict[bytes, int] = {}
        for offset in self.sight:
            first_offsets.setdefault(key_of(offset), offset)
        busy = {key_of(offset) for offset in self.busy}
        return {key: offset for key, offset in first_offsets.items() if key not in busy}

    @property
    def unwanted(self) -> list[bytes]:
        return [key for key in self.next_of_key if self.owner(key) is None] if self.filters else []

    # --- events ---

    def leave(self, consumer: int, now_ms: int) -> None:
        if consumer in self.filters:
            self.missed.append((self.filters.pop(consumer), now_ms + GRACE_MS))
        super().leave(consumer, now_ms)

    def seek(self, position: int) -> None:
        super().seek(position)
        self.seen = self.position

    def skip(self, start: int, end: int) -> None:
        offsets = set(range(start, end)) - self.acked
        self.gaps |= set(range(start, end))
        self.settle({offset for offset in offsets if offset < self.seen})
        self.empty |= {offset for offset in offsets if offset >= self.seen}
        self.step_over()

    def step_over(self) -> None:
        while self.seen in self.empty or self.seen in self.acked:
            if self.seen in self.empty:
                self.empty.discard(self.seen)
                self.failures.pop(self.seen, None)
                self.acked.add(self.seen)
            self.seen += 1

    # --- instructions ---

    def skip_unwanted(self, dropped: Dropped, now_ms: int) -> None:
        for offset in range(dropped.start, dropped.end):
            key = key_of(offset)
            assert offset in self.sight
            assert key in self.unwanted, f"{key!r} is taken"
            assert self.kept_until_ms(key) <= now_ms, f"{key!r} may be taken soon"
        self.settle(set(range(dropped.start, dropped.end)))

    def check_order(self, consumer: int, offset: int) -> None:
        key = key_of(offset)
        assert self.next_of_key.get(key) == offset, f"{offset} is not the next one of {key!r}"
        assert consumer == self.owner(key), f"{key!r} does not belong to {consumer}"
        assert len(self.busy) < self.unacked_max

    def check_is_next(self, offset: int) -> None:
        assert self.next_of_key.get(key_of(offset)) == offset

    def block_again(self) -> None:
        """A message that failed too often before a restart is dropped when its key reaches it."""
        for offset in self.next_of_key.values():
            if self.failures.get(offset, 0) > self.policy.max_redelivery_count:
                self.ready.discard(offset)
                self.give_up(offset)
        assert not self.given_up, f"{self.given_up} was not given up"

    def check_nothing_is_left_undone(self) -> None:
        for key, offset in self.next_of_key.items():
            owner = self.owner(key)
            can_go = owner is not None and self.credit[owner] > 0 and len(self.busy) < self.unacked_max
            assert not can_go, f"{offset} could go to {owner}"

    @property
    def sight_room(self) -> int:
        room = LOOK_AHEAD - len(self.sight)
        if self.seen <= max(self.acked, default=-1):
            return room  # a hole from before a restart
        by_ranges = 2 * limits.ACKED_RANGES_MAX - 1 - len(self.ranges) - len(self.sight)
        return min(room, by_ranges, self.span_room(self.seen))

    @property
    def pause(self) -> Pause | None:
        if len(self.busy) >= self.unacked_max:
            return Pause.UNACKED_FULL
        nothing_can_go = all(self.owner(key) is None for key in self.next_of_key)
        somebody_could = any(self.credit[consumer] > 0 for consumer in self.filters)
        if self.filters and self.sight_room <= 0 and (nothing_can_go or somebody_could):
            return Pause.KEYS_WAIT if len(self.sight) >= LOOK_AHEAD else Pause.ACKED_FULL
        return None


class KeySharedModel(DispatcherModel):
    kind = SubscriptionType.KEY_SHARED
    oracle: KeyOracle
    dispatcher: KeySharedDispatcher
    patterns: tuple[str, ...] = ()
    is_eager = True

    def new_oracle(self, policy: FailurePolicy, unacked_max: int) -> DispatchOracle:
        return KeyOracle(self.kind, policy, unacked_max)

    def build(self, acked: AckedOffsets, attempts: list[tuple[int, int, int]]) -> Dispatcher:
        self.oracle.forget_consumers(acked.position)
        return KeySharedDispatcher(self.oracle.policy, acked, attempts, self.oracle.unacked_max, LOOK_AHEAD)

    def follow(self, instructions: list[Instruction]) -> None:
        self.oracle.expire(self.now)
        others: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Dropped) and instruction.reason == UNWANTED:
                self.oracle.skip_unwanted(instruction, self.now)
            else:
                others.append(instruction)
        super().follow(others)

    @rule(patterns=FILTERS)
    def choose_filters(self, patterns: tuple[str, ...]) -> None:
        """For the next to join."""
        self.patterns = patterns

    @rule(is_eager=st.booleans())
    def change_the_driver(self, is_eager: bool) -> None:
        """Most look ahead after every event; a slow one is there with its keys later."""
        self.is_eager = is_eager

    def let_in(self, credit: Credit) -> None:
        oracle = self.oracle
        if not oracle.filters:
            oracle.missed.append(((), self.now + GRACE_MS))
        oracle.filters[credit.id] = self.patterns
        self.follow(self.dispatcher.join_with(credit, KeyFilter(self.patterns), self.now))

    def join_willing(self) -> None:
        """A consumer joins that takes every key."""
        self.patterns = ()
        super().join_willing()

    @rule(count=st.integers(1, 12))
    def look_ahead(self, count: int = 12) -> None:
        """The driver shows the keys that are wanted, as many as one read finds, or more than was asked for."""
        oracle = self.oracle
        oracle.step_over()
        start, end = self.dispatcher.needed_keys
        if start < end:
            assert start == oracle.seen
            assert end <= oracle.end
            assert end - start <= oracle.sight_room
            oracle.seen = min(end, start + count)
            keys = [key_of(offset) for offset in range(start, start + count)]
            self.follow(self.dispatcher.add_keys(start, keys, self.now))
        elif oracle.filters and oracle.seen < oracle.end:
            assert oracle.sight_room <= 0

    @rule(start=st.integers(0, 60))
    def keys_that_nobody_asked_for_are_not_looked_at(self, start: int) -> None:
        if start != self.dispatcher.needed_keys[0]:
            self.follow(self.dispatcher.add_keys(start, [b"other"] * 3, self.now))

    def check_wake_ms(self) -> None:
        wake_ms, dues = self.dispatcher.wake_ms, [self.oracle.wake_ms] if self.oracle.wake_ms is not None else []
        for key in self.oracle.unwanted:
            assert self.oracle.kept_until_ms(key) > self.now, f"{key!r} was not skipped"
            dues.append(self.oracle.kept_until_ms(key))
        assert (wake_ms is None) == (not dues)
        assert wake_ms is None or self.now < wake_ms <= min(dues)

    @property
    def bound(self) -> int:
        return self.oracle.unacked_max + LOOK_AHEAD

    @invariant()
    def everything_is_in_its_place(self) -> None:
        if self.is_eager:
            self.look_ahead()
        super().everything_is_in_its_place()
        lanes = self.dispatcher.lanes
        assert lanes.messages == len(self.oracle.sight) <= max(LOOK_AHEAD, 0)
        assert len(lanes) == len({key_of(offset) for offset in self.oracle.sight})
        assert lanes.key_bytes == sum(len(key) for key in {key_of(offset) for offset in self.oracle.sight})
        assert len(self.dispatcher._failures) + len(self.dispatcher._unowned) <= 2 * LOOK_AHEAD
        assert not self.dispatcher._changed


def test_any_history_of_keys_filters_failures_seeks_and_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeySharedModel, "bounds", monkeypatch, raising=False)
    monkeypatch.setattr(limits, "DEAD_LETTER_RETRY_MS_MIN", 20)
    monkeypatch.setattr(limits, "KEY_UNWANTED_GRACE_MS", GRACE_MS)
    monkeypatch.setattr(limits, "RING_PLACES_PER_CONSUMER", 3)
    run_state_machine_as_test(KeySharedModel, settings=settings(stateful_step_count=50))
    assert limits.RING_PLACES_PER_CONSUMER == 3
