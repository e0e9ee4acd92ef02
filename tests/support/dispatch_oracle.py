"""A dispatcher as a person would write it down: one entry for each message, no ranges, no heaps, no turns.

It is told every event before the dispatcher, says what must become of each message, and judges every instruction:
whether it was allowed, and afterwards whether anything was left undone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from icestream import limits
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.instruction import DeadLetter, Deliver, Dropped, Instruction
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType


class InFlightMessage(NamedTuple):
    """With a consumer."""

    consumer: int
    since_ms: int


class DelayedMessage(NamedTuple):
    """Waits for its next delivery."""

    since_ms: int
    asked_ms: int
    least_ms: int = 0


@dataclass
class DispatchOracle:
    kind: SubscriptionType
    policy: FailurePolicy
    unacked_max: int
    end: int = 0
    acked: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    held: dict[int, InFlightMessage] = field(default_factory=dict)
    resting: dict[int, DelayedMessage] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    settling: set[int] = field(default_factory=set)
    blocked: set[int] = field(default_factory=set)
    empty: set[int] = field(default_factory=set)  # new, and no message
    gaps: set[int] = field(default_factory=set)  # no message, acked or not
    credit: dict[int, int] = field(default_factory=dict)  # in order of arrival
    given_up: list[tuple[int, int]] = field(default_factory=list)  # what the next instructions must name

    # --- what is where ---

    @property
    def position(self) -> int:
        return next(offset for offset in range(len(self.acked) + 1) if offset not in self.acked)

    @property
    def under_way(self) -> set[int]:
        return {*self.held, *self.resting, *self.ready, *self.settling, *self.blocked}

    @property
    def new(self) -> list[int]:
        """In order; what is empty stands in its place."""
        settled = self.acked | self.under_way
        return [offset for offset in range(self.end) if offset not in settled]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The acked ranges above the position."""
        position = self.position
        above = sorted(offset for offset in self.acked if offset > position)
        edges = [offset for offset in above if offset - 1 not in self.acked]
        return [(start, self._end_of(start)) for start in edges]

    def _end_of(self, start: int) -> int:
        while start in self.acked:
            start += 1
        return start

    # --- events ---

    def settle(self, offsets: set[int]) -> None:
        self.acked |= offsets
        for collection in (self.held, self.resting, self.failures):
            for offset in offsets & collection.keys():
                del collection[offset]
        for waiting in (self.ready, self.settling, self.blocked, self.empty):
            waiting.difference_update(offsets)

    def skip(self, start: int, end: int) -> None:
        offsets = set(range(start, end)) - self.acked
        self.gaps |= set(range(start, end))
        self.settle(offsets & self.under_way)
        self.empty |= offsets - self.acked
        self.step_over()

    def step_over(self) -> None:
        """Empty offsets count as acked when no undelivered message is in front of them."""
        if not self.empty:
            return
        settled = self.under_way | self.acked
        first = next(offset for offset in range(len(settled) + 1) if offset not in settled)
        while first in self.empty or first in self.acked:
            if first in self.empty:
                self.empty.discard(first)
                self.acked.add(first)
                self.failures.pop(first, None)
            first += 1

    def fail(self, offset: int, now_ms: int, asked_ms: int = 0) -> None:
        del self.held[offset]
        self.failures[offset] = self.failures.get(offset, 0) + 1
        self.judge(offset, now_ms, asked_ms)

    def judge(self, offset: int, now_ms: int, asked_ms: int = 0) -> None:
        """Decides about a message that failed: it is redelivered, or handled as poison."""
        if self.failures[offset] <= self.policy.max_redelivery_count:
            self.resting[offset] = DelayedMessage(now_ms, asked_ms)
        else:
            self.give_up(offset)

    def give_up(self, offset: int) -> None:
        if self.policy.poison is PoisonPolicy.BLOCK:
            self.blocked.add(offset)
            return
        self.given_up.append((offset, self.failures[offset]))
        if self.policy.poison is PoisonPolicy.DROP:
            self.settle({offset})
        else:
            self.settling.add(offset)

    def bring_back(self, offset: int) -> None:
        if self.failures.get(offset, 0) > self.policy.max_redelivery_count:
            self.give_up(offset)
        else:
            self.ready.add(offset)

    def leave(self, consumer: int, now_ms: int) -> None:
        self.credit.pop(consumer, None)
        for offset in [offset for offset, message in self.held.items() if message.consumer == consumer]:
            del self.held[offset]
            self.bring_back(offset)

    def not_settled(self, offset: int, now_ms: int) -> None:
        self.settling.discard(offset)
        self.resting[offset] = DelayedMessage(now_ms, self.policy.max_delay_ms, limits.DEAD_LETTER_RETRY_MS_MIN)

    def set_policy(self, policy: FailurePolicy, now_ms: int) -> None:
        self.policy = policy
        for offset in sorted(self.blocked):
            self.blocked.discard(offset)
            self.judge(offset, now_ms)
        for offset in sorted(self.ready):
            self.ready.discard(offset)
            self.bring_back(offset)

    def expire(self, now_ms: int) -> None:
        for offset in [candidate for candidate in self.held if self.due_ms(candidate) <= now_ms]:
            self.fail(offset, now_ms)
        for offset in [candidate for candidate in self.resting if self.due_ms(candidate) <= now_ms]:
            del self.resting[offset]
            self.bring_back(offset)

    def due_ms(self, offset: int) -> int:
        if offset in self.held:
            return self.held[offset].since_ms + self.policy.ack_timeout_ms
        rest = self.resting[offset]
        return rest.since_ms + max(self.policy.delay_ms(self.failures[offset], rest.asked_ms), rest.least_ms)

    @property
    def wake_ms(self) -> int | None:
        return min(map(self.due_ms, {**self.held, **self.resting}), default=None)

    def seek(self, position: int) -> None:
        """Moves the cursor and forgets the state of all messages."""
        self.acked = set(range(min(position, self.end)))
        self.gaps.clear()
        for collection in (self.failures, self.held, self.resting, self.ready, self.settling, self.blocked, self.empty):
            collection.clear()

    # --- instructions ---

    def follow(self, instructions: list[Instruction], now_ms: int) -> None:
        for instruction in instructions:
            match instruction:
                case Deliver(consumer, start, end, attempt):
                    for offset in range(start, end):
                        self.deliver(consumer, offset, attempt, now_ms)
                case DeadLetter(start, end, attempt, reason) | Dropped(start, end, attempt, reason):
                    assert reason
                    for offset in range(start, end):
                        self.check_given_up(offset, attempt)
        assert not self.given_up, f"{self.given_up} was not given up"
        self.block_again()

    def block_again(self) -> None:
        """Messages that failed too often before a restart are blocked when reached: a stretch at once, up to a gap."""
        self.step_over()
        room, last = self.room, None
        if self.policy.poison is not PoisonPolicy.BLOCK or self.ready or self.blocked:
            return
        for offset in self.new[: max(room, 0)]:
            failures = self.failures.get(offset, 0)
            if failures <= self.policy.max_redelivery_count or last not in (None, (offset - 1, failures)):
                return
            if offset in self.empty:
                return
            self.blocked.add(offset)
            last = (offset, failures)

    def check_given_up(self, offset: int, attempt: int) -> None:
        if (offset, attempt) not in self.given_up:
            self.check_is_next(offset)
            assert attempt == self.failures[offset] > self.policy.max_redelivery_count
            self.give_up(offset)
        self.given_up.remove((offset, attempt))

    def deliver(self, consumer: int, offset: int, attempt: int, now_ms: int) -> None:
        assert offset < self.end, f"{offset} cannot be read"
        assert offset not in self.acked, f"{offset} was acked"
        assert attempt == self.failures.get(offset, 0)
        assert attempt <= self.policy.max_redelivery_count, f"{offset} failed too often"
        assert self.credit.get(consumer, 0) > 0, f"{consumer} has no credit for {offset}"
        self.check_order(consumer, offset)
        self.check_share(consumer, offset)
        self.ready.discard(offset)
        assert offset not in self.under_way, f"{offset} is in two hands"
        self.credit[consumer] -= 1
        self.held[offset] = InFlightMessage(consumer, now_ms)

    def check_order(self, consumer: int, offset: int) -> None:
        if self.kind is not SubscriptionType.SHARED:
            assert consumer == next(iter(self.credit)), f"{offset} went to one that stands by"
        if self.ready:
            assert offset == min(self.ready), f"{offset} went out before {min(self.ready)}"
        else:
            self.check_is_next(offset)

    def check_share(self, consumer: int, offset: int) -> None:
        """A consumer with its share in flight gets no new message, and redeliveries only when all have theirs."""
        if self.kind is SubscriptionType.SHARED and self.is_sated(consumer):
            assert offset in self.ready, f"{consumer} has enough already"
            assert all(map(self.is_sated, self.takers)), f"{offset} could go to a consumer with fewer in flight"

    def is_sated(self, consumer: int) -> bool:
        """True if no new message may go to the consumer."""
        in_flight = sum(message.consumer == consumer for message in self.held.values())
        return self.kind is SubscriptionType.SHARED and in_flight >= limits.UNACKED_SHARE * (
            max(self.room, 0) + len(self.ready)
        )

    def check_is_next(self, offset: int) -> None:
        self.step_over()
        assert not self.ready, "redeliveries go before new messages"
        assert not self.blocked, f"{offset} went out although something is blocked"
        assert offset == self.new[0], f"{offset} is not the next one"
        assert self.room > 0, f"{offset} went out although there is no room"

    @property
    def room(self) -> int:
        """The number of new messages that may be delivered now."""
        self.step_over()
        count, ranges = len(self.under_way), len(self.ranges)
        room = self.unacked_max - count
        behind = max([self.end - 1, *self.acked, *self.under_way]) + 1
        first = next((offset for offset in self.new if offset not in self.empty), behind)
        if first < max(self.acked, default=-1):
            return room  # a hole from before a restart
        return min(room, 2 * limits.ACKED_RANGES_MAX - 1 - ranges - count, self.span_room(first))

    def span_room(self, offset: int) -> int:
        """The number of messages that may still lie between the first unacked and the last acked one."""
        between = [other for other in range(self.position, offset) if other not in self.gaps]
        return limits.ACKED_SPAN_OFFSETS_MAX - len(between)

    # --- afterwards ---

    @property
    def takers(self) -> list[int]:
        """The consumers that would get a message."""
        able = list(self.credit) if self.kind is SubscriptionType.SHARED else list(self.credit)[:1]
        return [consumer for consumer in able if self.credit[consumer] > 0]

    def check_nothing_is_left_undone(self) -> None:
        if not self.takers:
            return
        assert not self.ready, f"{self.ready} could go out"
        self.step_over()
        waiting = [offset for offset in self.new if offset not in self.empty]
        all_hold_enough = all(map(self.is_sated, self.takers))
        assert not waiting or self.blocked or self.room <= 0 or all_hold_enough, f"{waiting[0]} could go out"

    @property
    def pause(self) -> Pause | None:
        if self.blocked:
            return Pause.BLOCKED
        if len(self.under_way) >= self.unacked_max:
            return Pause.UNACKED_FULL
        if self.room <= 0:
            return Pause.ACKED_FULL
        self.step_over()
        waiting = [offset for offset in self.new if offset not in self.empty]
        return Pause.UNACKED_FULL if waiting and self.takers and all(map(self.is_sated, self.takers)) else None

    def check_same_as(self, dispatcher: Dispatcher) -> None:
        self.step_over()
        assert dispatcher.acked.position == self.position
        assert dispatcher.acked.ranges == self.ranges
        places = {
            "in flight": (_offsets(dispatcher.in_flight), set(self.held)),
            "delayed": (_offsets(dispatcher.delayed), set(self.resting)),
            "settling": (_offsets(dispatcher.settling), self.settling),
            "blocked": (_offsets(dispatcher.blocked), self.blocked),
        }
        for name, (actual, expected) in places.items():
            assert actual == expected, name
        attempts = {offset: count for start, end, count in dispatcher.attempts for offset in range(start, end)}
        assert attempts == {
            offset: count for offset, count in self.failures.items() if count and offset not in self.empty
        }
        assert dispatcher.unacked == len(self.under_way)
        assert dispatcher.next <= max(dispatcher.end, dispatcher.acked.end)


def _offsets(runs: object) -> set[int]:
    """The offsets of a RunSet; they are in one run each, and runs are in order."""
    ranges = list(runs)  # type: ignore[call-overload]
    assert all(left.end <= right.start for left, right in pairwise(ranges))
    return {offset for run in ranges for offset in range(run.start, run.end)}
