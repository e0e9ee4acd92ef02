"""Hazard 17, dispatch: acked ranges are bounded, nothing acked is forgotten, and failures are known after a restart.

What the driver does with it (a cursor never passes synced, flushes in few transactions) is tested with the driver.
"""

from __future__ import annotations

import random

import pytest

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.instruction import DeadLetter, Deliver, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType

MESSAGES = 1_000_000
FOREVER = FailurePolicy(ack_timeout_ms=limits.FAILURE_POLICY_VALUE_MAX)
DEAD_LETTER = FailurePolicy(max_redelivery_count=3, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead")

Stored = tuple[int, list[tuple[int, int]], list[tuple[int, int, int]]]


def stored(dispatcher: Dispatcher) -> Stored:
    return dispatcher.acked.position, dispatcher.acked.ranges, dispatcher.attempts


def started(
    cursor: Stored, policy: FailurePolicy = FOREVER, end: int = MESSAGES
) -> tuple[Dispatcher, list[Instruction]]:
    """After a restart, with one consumer that takes everything."""
    position, ranges, attempts = cursor
    dispatcher = Dispatcher(SubscriptionType.EXCLUSIVE, policy, AckedOffsets(position, ranges), attempts)
    dispatcher.readable(end, 0)
    return dispatcher, dispatcher.join(Credit(1, 10**9), 0)


def offsets(instructions: list[Instruction]) -> list[int]:
    return [
        offset
        for instruction in instructions
        if isinstance(instruction, Deliver)
        for offset in range(instruction.start, instruction.end)
    ]


def test_hazard_17_alternating_acks_pause_at_the_bound_and_resume_when_a_hole_closes() -> None:
    dispatcher, out = started((0, [], []))
    todo, acked = offsets(out), 0
    while todo:
        fresh: list[int] = []
        for offset in todo:
            if offset % 2:
                fresh += offsets(dispatcher.ack([(offset, offset + 1)], 0, 0))
                acked += 1
            assert len(dispatcher.acked) <= limits.ACKED_RANGES_MAX
        todo = fresh
    assert dispatcher.pause is Pause.ACKED_FULL
    assert len(dispatcher.acked) == acked == limits.ACKED_RANGES_MAX - 1
    assert dispatcher.acked.hole == (0, 1)
    assert dispatcher.readable(2 * MESSAGES, 0) == []
    closed = dispatcher.ack([(0, 1)], 0, 0)
    assert len(offsets(closed)) == 2, "one hole less, one range less"


def test_hazard_17_a_million_acks_after_one_hole_use_bounded_memory() -> None:
    """The others go on for the whole span, and what is held does not grow with it. After a crash the hole comes again,
    and what was acked since the last flush, and nothing else."""
    dispatcher, out = started((0, [], []))
    flushed, acked_by_then, chance, flush_at = stored(dispatcher), 1, random.Random(1), 0
    while out:
        start, end = out[0].start, out[-1].end
        if start >= flush_at:
            flushed, acked_by_then = stored(dispatcher), start
            flush_at += chance.randrange(300_000)
        out = dispatcher.ack([(max(start, 1), end)], 0, 0)
        assert len(dispatcher.acked) == 1
        assert len(dispatcher.in_flight) + len(dispatcher.in_flight._heap) < 500
    assert dispatcher.acked.ranges == [(1, limits.ACKED_SPAN_OFFSETS_MAX)]
    assert dispatcher.readable(2 * MESSAGES, 0) == []
    assert dispatcher.pause is Pause.ACKED_FULL
    again, out = started(flushed)
    repeated: list[int] = []
    while out:
        repeated += offsets(out)
        out = again.ack([(delivery.start, delivery.end) for delivery in out], 0, 0)
    assert repeated == [0, *range(max(acked_by_then, 1), MESSAGES)]
    assert again.acked.position == MESSAGES


def test_hazard_17_a_restart_with_a_full_cursor_delivers_its_holes() -> None:
    """Only acks of the holes can shrink the cursor, so the bound must not hold the holes back."""
    count = limits.ACKED_RANGES_MAX
    ranges = [(offset, offset + 1) for offset in range(1, 2 * count, 2)]
    dispatcher, out = started((0, ranges, []), end=2 * count + 100)
    assert offsets(out) == [*range(0, 2 * count, 2)]
    assert dispatcher.pause is Pause.ACKED_FULL
    assert offsets(dispatcher.ack([(0, 2 * count - 2)], 0, 0)) == [*range(2 * count, 2 * count + 100)]


def test_hazard_17_a_key_that_waits_pauses_the_rest_before_the_ranges_are_too_many() -> None:
    dispatcher = KeySharedDispatcher(FOREVER, AckedOffsets())
    dispatcher.readable(MESSAGES, 0)
    dispatcher.join(Credit(1, 10**9), 0)
    while (key_range := dispatcher.needed_keys)[0] < key_range[1]:
        keys = [b"%d" % offset if offset % 3 else b"stuck" for offset in range(*key_range)]
        for key in dispatcher.add_keys(key_range[0], keys, 0):
            if key.start:
                dispatcher.ack([(key.start, key.end)], 0, 0)
        assert len(dispatcher.acked) <= limits.ACKED_RANGES_MAX
    assert dispatcher.pause is Pause.KEYS_WAIT
    assert dispatcher.lanes.messages == limits.KEY_LOOK_AHEAD_MAX


@pytest.mark.parametrize("seed", range(5))
def test_hazard_17_twenty_restarts_and_the_poison_message_still_ends_in_the_dead_letters(seed: int) -> None:
    """Consumers and broker stop again and again, at any moment; each start knows the failures that were stored."""
    chance, letters, failed = random.Random(seed), list[DeadLetter](), 0
    cursor: Stored = (0, [], [])
    for _ in range(20):
        dispatcher, out = started(cursor, DEAD_LETTER, end=10)
        now = 0
        for _ in range(chance.randrange(1, 3)):
            dispatcher.ack([(offset, offset + 1) for offset in offsets(out) if offset != 5], 0, now)
            if 5 in offsets(out):
                failed += 1
                out += dispatcher.nack([(5, 6)], 0, now)
            letters += [effect for effect in out if isinstance(effect, DeadLetter)]
            cursor = stored(dispatcher)
            now += 60_000
            out = dispatcher.tick(now)
    assert letters, "the poison message never became a dead letter"
    assert failed == DEAD_LETTER.max_redelivery_count + 1
    assert {(letter.start, letter.end, letter.attempt) for letter in letters} == {(5, 6, failed)}
