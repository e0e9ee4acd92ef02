"""Frames of 1,000 messages of 100 B for 1,000 topics, against the same number of messages for one topic.

    one topic             each frame has one batch of 1,000 messages; one producer
    many topics           the same, but each frame is for the next topic
    mixed, 10 topics      each frame has 10 batches of 100 messages, each for another topic
    mixed, all topics     each frame has 1,000 batches of one message, each for another topic
    one topic, as mixed   each frame has 1,000 batches of one message of 1,000 producers, all for one topic: what is
                          left of the difference when the cost of small batches is taken out

All on one connection with 32 frames in flight, into fresh files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import broker
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, generator_note
from bench.harness import Bench

NAME = "manytopics"
GOAL = "1000 topics, one topic per frame ≥ 0.8x of one topic; mixed frames of 10 topics ≥ 0.6x, of 1,000 ≥ 0.2x"
ONE, MANY, TENS, MIXED, AS_MIXED = "one topic", "many topics", "mixed, 10 topics", "mixed, all topics", "as mixed"
# Parts of a frame; how often each is for another topic, and for another producer.
SHAPES = {ONE: (1, False, False), MANY: (1, True, True), TENS: (10, True, True)}
SHAPES |= {MIXED: (1000, True, True), AS_MIXED: (1000, False, True)}
# Batches of one message are some hundred times slower: less of them is enough.
SLOW = (MIXED, AS_MIXED)


def ours(path: Path, mode: str, shape: str, topics: int, messages: int) -> Load:
    parts, has_topics, has_producers = SHAPES[shape]
    with broker.running(path, mode) as target:
        broker.wait_for_spare(path)
        return broker.burst(
            target,
            messages,
            parts=parts,
            topics=topics if has_topics else 1,
            handles=topics if has_producers else 1,
            warm_requests=topics // parts + 10,  # the first message of a topic waits for a sync, in any mode
        )


def measure(bench: Bench) -> list[Row]:
    everything, some = partial(_of_mode, bench, "none", tuple(SHAPES)), partial(_of_mode, bench, "always", (ONE, MANY))
    return [
        *bench.attempt(NAME, "many topics, `none`", Goal(at_least=0.8), everything),
        *bench.attempt(NAME, "many topics, `always`", None, some),
    ]


def _of_mode(bench: Bench, mode: str, shapes: tuple[str, ...]) -> list[Row]:
    many, few, topics = (5_000_000, 100_000, 1000) if not bench.quick else (500_000, 10_000, 100)
    sides = {
        shape: partial(ours, mode=mode, shape=shape, topics=topics, messages=few if shape in SLOW else many)
        for shape in shapes
    }
    found = bench.interleave(bench.rounds(5 if mode == "none" else 3), sides)
    goals = {MANY: 0.8, TENS: 0.6, MIXED: 0.2} if mode == "none" else {}
    pairs = [(shape, ONE) for shape in shapes if shape != ONE]
    pairs += [(MIXED, AS_MIXED)] if MIXED in found else []
    return [
        _row(f"`{mode}`, {topics:,} topics", (shape, found[shape]), (peer, found[peer]), goals.get(shape))
        for shape, peer in pairs
    ]


def _row(what: str, side: tuple[str, list[Load]], peer: tuple[str, list[Load]], goal: float | None) -> Row:
    (shape, mine), (other, theirs) = side, peer
    return Row(
        NAME,
        f"{what}: {shape}, messages per second",
        ratios([load.rate for load in mine], [load.rate for load in theirs]),
        Goal(at_least=goal) if goal and other == ONE else None,
        ours=_text(mine),
        peer=_text(theirs),
        peer_version=f"ours, {ONE}{'' if other == ONE else ', as mixed'}",
        note=generator_note([*mine, *theirs]),
    )


def _text(loads: list[Load]) -> str:
    return f"{Figure([load.rate for load in loads], '/s')}; server {Figure([load.server_us for load in loads], ' us')}"
