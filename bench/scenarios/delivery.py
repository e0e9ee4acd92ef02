"""Consumers: one that catches up from the log, and ten that follow a producer live, against NATS JetStream.

    catch-up   a stored topic from its first message on. The broker was restarted, so that nothing is in its memory:
               all of it comes from the log, each CRC verified. One exclusive subscription; every delivery is acked.
               Both sides have their files in the page cache.
    fan-out    one producer and ten subscriptions on connections of their own; the clock stops when each has everything.
               Frames of 1,000 messages with a window of 16; in rows of their own frames of 100, and of one.

NATS pushes without acks, which is the fastest that it has; its publisher has 1,000 messages in flight. Each message on
either side must be the one that follows. Sync mode `none`, which acks as NATS does.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import broker, generator
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, generator_note
from bench.harness import Bench
from bench.peers import nats
from icestream import limits

NAME = "delivery"
GOAL = "catch-up ≥ 12x NATS; fan-out 1 to 10: frames of 1,000 ≥ 10x NATS, single messages ≥ 1.2x"
CONSUMERS = 10
# Messages of a frame, and frames in flight.
FRAMES = ((1000, 16), (100, 32), (1, 32))
# Small frames take longer: less of them is enough.
SHARE = {1000: 1, 100: 4, 1: 40}


def catch_up(path: Path, messages: int) -> Load:
    with broker.running(path, "none", stops=True) as target:
        broker.burst(target, messages)
    with broker.running(path, "none") as target:
        return generator.consume("native", target, messages=messages)


def nats_catch_up(path: Path, messages: int) -> Load:
    with nats.running(path) as target:
        generator.publish("nats", target, connections=4, in_flight=1000, messages=messages)
        return generator.consume("nats", target, messages=messages)


def fan_out(path: Path, messages: int) -> dict[int, Load]:
    with broker.running(path, "none") as target:
        broker.warm(target, path)
        return {
            batch: generator.fan_out(
                "native",
                target,
                consumers=CONSUMERS,
                batch=batch,
                in_flight=in_flight,
                messages=messages // SHARE[batch],
                topic=f"frames-of-{batch}",
            )
            for batch, in_flight in FRAMES
        }


def nats_fan_out(path: Path, messages: int) -> dict[int, Load]:
    with nats.running(path) as target:
        return {1: generator.fan_out("nats", target, consumers=CONSUMERS, in_flight=1000, messages=messages)}


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "catch-up against NATS", Goal(at_least=12), partial(_catch_up, bench)),
        *bench.attempt(NAME, "fan-out against NATS", Goal(at_least=10), partial(_fan_out, bench)),
    ]


def _catch_up(bench: Bench) -> list[Row]:
    version = nats.version()
    mine, theirs = int(bench.pick(limits.GIB, 64 * limits.MIB)) // 100, int(bench.pick(1_000_000, 100_000))
    found = bench.interleave(
        bench.rounds(5),
        {"catch-up": lambda path: catch_up(path, mine), "catch-up, nats": lambda path: nats_catch_up(path, theirs)},
    )
    what = f"catch-up of {mine / 1e6:.3g} M messages from the log, messages per second"
    return [_row(what, found["catch-up"], found["catch-up, nats"], version, Goal(at_least=12))]


def _fan_out(bench: Bench) -> list[Row]:
    version = nats.version()
    mine, theirs = int(bench.pick(2_000_000, 200_000)), int(bench.pick(200_000, 20_000))
    found = bench.interleave(
        bench.rounds(5),
        {"fan-out": lambda path: fan_out(path, mine), "fan-out, nats": lambda path: nats_fan_out(path, theirs)},
    )
    return [
        _row(
            f"1 to {CONSUMERS} consumers, frames of {batch:,}, published messages per second",
            [run[batch] for run in found["fan-out"]],
            [run[1] for run in found["fan-out, nats"]],
            version,
            {1: Goal(at_least=1.2), 1000: Goal(at_least=10)}.get(batch),
        )
        for batch, _ in FRAMES
    ]


def _row(what: str, mine: list[Load], theirs: list[Load], version: str, goal: Goal | None) -> Row:
    return Row(
        NAME,
        what,
        ratios([load.rate for load in mine], [load.rate for load in theirs]),
        goal,
        ours=_text(mine),
        peer=_text(theirs),
        peer_version=version,
        note=f"{generator_note(mine)}; peer: {generator_note(theirs)}",
    )


def _text(loads: list[Load]) -> str:
    return f"{Figure([load.rate for load in loads], '/s')}; server {Figure([load.server_us for load in loads], ' us')}"
