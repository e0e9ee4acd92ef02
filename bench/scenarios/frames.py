"""Native frames of 1,000 messages of 100 B in bursts, against NATS JetStream and Redis `appendfsync always`.

One connection of one producer with 32 frames in flight, into an empty log; then into the same log again, after the
topic of the first burst was deleted:

    fresh       files that were never written
    recycled    files that the log used before

In `none` the ack leaves after the write, as NATS acks (peers/nats.py); in `always` after fdatasync, as Redis answers.
NATS gets the messages one by one with a window of 1,000, on one connection and on four; Redis gets one command for
each, 1,000 in flight on one connection and 100 on each of 64, as RPUSH and as XADD. The best of each peer in a round is
its figure. In a row of its own Redis gets 1,000 values with each RPUSH, which is a batch, if not of a log.

Server CPU is that of the server and its children, from the first message until a second after the last ack: what is
put off counts too.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import broker, generator
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, generator_note
from bench.harness import Bench, settle
from bench.peers import nats, redis
from icestream import limits

NAME = "frames"
GOAL = "frames of 1000 x 100 B: ≥ 60x NATS JetStream, server CPU ≤ 1/60; `always` ≥ 40x Redis always"
KINDS = ("fresh", "recycled")
REST_SECONDS = 1.0


def ours(path: Path, mode: str, messages: int, rest_seconds: float) -> dict[str, Load]:
    found = {}
    with broker.running(path, mode) as target:
        for kind in KINDS:
            broker.wait_for_spare(path)
            settle(path)
            load = broker.burst(target, messages, topic=kind)
            found[kind] = generator.with_aftermath(load, target, rest_seconds)
            broker.delete_topic(target, kind)
    return found


def with_nats(path: Path, seconds: float, rest_seconds: float) -> dict[str, Load]:
    found = {}
    for connections in (1, 4):
        place = path / str(connections)
        place.mkdir()
        with nats.running(place) as target:
            name = f"{connections} connection{'s' if connections > 1 else ''} x 1,000 in flight"
            load = generator.publish("nats", target, connections=connections, in_flight=1000, seconds=seconds)
            found[name] = generator.with_aftermath(load, target, rest_seconds)
    return found


def with_redis(path: Path, seconds: float) -> dict[str, Load]:
    found = {}
    with redis.running(path) as server:
        for protocol, connections, in_flight in (
            ("redis-rpush", 1, 1000),
            ("redis-xadd", 1, 1000),
            ("redis-rpush", 64, 100),
            ("redis-xadd", 64, 100),
        ):
            name = f"{protocol.removeprefix('redis-').upper()} {connections} x {in_flight} in flight"
            found[name] = generator.publish(
                protocol, server.target, connections=connections, in_flight=in_flight, seconds=seconds
            )
            server.forget()
        found["many"] = generator.publish("redis-rpush-many", server.target, batch=1000, in_flight=8, seconds=seconds)
    return found


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "`none` against NATS", Goal(at_least=60), partial(_against_nats, bench)),
        *bench.attempt(NAME, "`always` against Redis", Goal(at_least=40), partial(_against_redis, bench)),
    ]


def _messages(bench: Bench) -> int:
    return int(bench.pick(limits.GIB, 64 * limits.MIB)) // 100


def _against_nats(bench: Bench) -> list[Row]:
    version, seconds, rest = nats.version(), bench.pick(3, 0.5), bench.pick(REST_SECONDS, 0.1)
    found = bench.interleave(
        bench.rounds(5),
        {
            "ours, none": lambda path: ours(path, "none", _messages(bench), rest),
            "nats": lambda path: with_nats(path, seconds, rest),
        },
    )
    best = [max(run.values(), key=lambda load: load.rate) for run in found["nats"]]
    least = [min(load.server_us for load in run.values()) for run in found["nats"]]
    winners = sorted({max(run, key=lambda name: run[name].rate) for run in found["nats"]})
    rows = []
    for kind in KINDS:
        loads = [run[kind] for run in found["ours, none"]]
        rows.append(
            Row(
                NAME,
                f"`none`, messages per second, {kind} files",
                ratios([load.rate for load in loads], [load.rate for load in best]),
                Goal(at_least=60),
                ours=_rate(loads),
                peer=_rate(best),
                peer_version=version,
                note=f"{generator_note(loads)}; peer: {'; '.join(winners)}, {generator_note(best)}",
            )
        )
    for kind in KINDS:
        used = [run[kind].server_us for run in found["ours, none"]]
        rows.append(
            Row(
                NAME,
                f"`none`, how many times less server CPU for a message, {kind} files",
                ratios(least, used),
                Goal(at_least=60),
                ours=f"{Figure(used, ' us')}",
                peer=f"{Figure(least, ' us')}",
                peer_version=version,
                note="until a second after the last ack; peer: the lower of both",
            )
        )
    return rows


def _against_redis(bench: Bench) -> list[Row]:
    version, seconds = redis.version(), bench.pick(1.5, 0.3)
    found = bench.interleave(
        bench.rounds(5),
        {
            "ours, always": lambda path: ours(path, "always", _messages(bench), 0),
            "redis": lambda path: with_redis(path, seconds),
        },
    )
    singles = [{name: load for name, load in run.items() if name != "many"} for run in found["redis"]]
    best = [max(single.values(), key=lambda load: load.rate) for single in singles]
    winners = sorted({max(single, key=lambda name: single[name].rate) for single in singles})
    many = [run["many"] for run in found["redis"]]
    rows = []
    for kind in KINDS:
        loads = [run[kind] for run in found["ours, always"]]
        for peer, goal, note in (
            (best, Goal(at_least=40), f"peer: {'; '.join(winners)}, {generator_note(best)}"),
            (many, None, f"peer: RPUSH of 1,000 values, 1 x 8 in flight, {generator_note(many)}"),
        ):
            rows.append(
                Row(
                    NAME,
                    f"`always`, messages per second, {kind} files{'' if goal else ', against batches of Redis'}",
                    ratios([load.rate for load in loads], [load.rate for load in peer]),
                    goal,
                    ours=_rate(loads),
                    peer=_rate(peer),
                    peer_version=version,
                    note=f"{generator_note(loads)}; {note}",
                )
            )
    return rows


def _rate(loads: list[Load]) -> str:
    return f"{Figure([load.rate for load in loads], '/s')}"
