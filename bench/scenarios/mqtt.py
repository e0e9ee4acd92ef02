"""MQTT: publishes of QoS 1, deliveries, sessions that return, and connections that do nothing.

    pipelined   messages of 100 B with 1,000 in flight, on one connection and on four; the better one counts. After the
                write (`none`, as NATS and mosquitto ack) against both; after the sync (`always`) with 64 connections x
                100 in flight against Redis `appendfsync always`, at its best of RPUSH and XADD
    awaited     one client that awaits each PUBACK, and 500 that do
    fan-out     one publisher, ten subscribers of QoS 1 that ack; the clock stops when each has everything. NATS pushes
                without acks
    resume      a durable session with a backlog returns: the time to its first message, and the rate against that of a
                subscriber that follows live
    idle        10,000 connected clients that do nothing: resident memory for each, and CPU. Fewer where the system does
                not allow the broker 50,000 open files: a listener has a fifth of them, and refuses the rest

The clients speak 3.1.1, which bounds no messages in flight: servers of 5.0 do, mosquitto to 20. Every PUBACK is checked
to be in order, every delivery to follow the one before it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import broker, generator, process
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, Target, generator_note
from bench.harness import Bench
from bench.peers import mosquitto, nats, redis
from bench.scenarios.footprint import raise_open_files_limit
from icestream import limits
from icestream.runtime.open_files import connections_allowed

NAME = "mqtt"
GOAL = (
    "QoS 1 pipelined ≥ 4x NATS, ≥ 8x mosquitto; after fsync ≥ 2.5x Redis, one awaited p50 ≤ 1.3x Redis; 500 x 1 in "
    "flight ≥ 2x NATS, ≥ 1x mosquitto, after fsync ≥ 1x Redis; fan-out 1 to 10 ≥ 5x NATS, ≥ 10x mosquitto; resume: "
    "first message < 1 s, ≥ 0.5x of live"
)
CONSUMERS = 10
MANY = 500
WINDOW = 1000
CONNECTIONS = (1, 4)
REDIS_CONNECTIONS, REDIS_WINDOW = 64, 100
IDLE_SECONDS = 10


@contextmanager
def running(path: Path, mode: str, **settings: object) -> Iterator[Target]:
    """A broker of ours; the target is its MQTT port."""
    port = process.free_port()
    chosen = {"mqtt.enable": "true", "ports.mqtt": port, "ports.mqtt_ws": 0, **settings}
    with broker.running(path, mode, settings=chosen) as target:
        broker.warm(target, path)
        yield Target(f"{process.HOST}:{port}", target.pid, "icestream")


class Published(NamedTuple):
    """Loads of one server: the best pipelined one, 500 clients, and one alone."""

    pipelined: Load
    many: Load
    alone: Load


def _published(protocol: str, target: Target, seconds: float, shapes: tuple[tuple[int, int], ...]) -> Published:
    """`shapes`: connections and messages in flight on each."""

    def publish(connections: int, in_flight: int) -> Load:
        topic = f"{protocol}-{connections}-{in_flight}"
        return generator.publish(
            protocol, target, connections=connections, in_flight=in_flight, seconds=seconds, warm_seconds=seconds / 5,
            topic=topic,
        )  # fmt: skip

    pipelined = max((publish(*shape) for shape in shapes), key=lambda load: load.rate)
    return Published(pipelined, publish(MANY, 1), publish(1, 1))


PIPELINED = tuple((connections, WINDOW) for connections in CONNECTIONS)
SYNCED = ((REDIS_CONNECTIONS, REDIS_WINDOW), *PIPELINED)


def ours(path: Path, seconds: float, mode: str) -> Published:
    with running(path, mode) as target:
        return _published("mqtt", target, seconds, SYNCED if mode == "always" else PIPELINED)


def with_mosquitto(path: Path, seconds: float) -> Published:
    with mosquitto.running(path) as target:
        return _published("mqtt", target, seconds, PIPELINED)


def with_nats(path: Path, seconds: float) -> Published:
    """A stream has its own name, so each shape is a run of its own."""
    with nats.running(path) as target:
        return _published("nats", target, seconds, PIPELINED)


def with_redis(path: Path, seconds: float) -> Published:
    with redis.running(path) as server:
        both = [_published(f"redis-{name}", server.target, seconds, SYNCED) for name in ("rpush", "xadd")]
    return Published(
        max((run.pipelined for run in both), key=lambda load: load.rate),
        max((run.many for run in both), key=lambda load: load.rate),
        min((run.alone for run in both), key=lambda load: load.p50_us),
    )


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "publishes against NATS and mosquitto", Goal(at_least=4), partial(_written, bench)),
        *bench.attempt(NAME, "publishes against Redis", Goal(at_least=2.5), partial(_synced, bench)),
        *bench.attempt(NAME, "fan-out", Goal(at_least=5), partial(_fan_out, bench)),
        *bench.attempt(NAME, "resume", Goal(at_most=1, unit=" s"), partial(_resume, bench)),
        *bench.attempt(NAME, "idle connections", None, partial(_idle, bench)),
    ]


# --- publishes --------------------------------------------------------------------------------------------------------


def _written(bench: Bench) -> list[Row]:
    versions = {"nats": nats.version(), "mosquitto": mosquitto.version()}
    seconds = bench.pick(2.5, 0.3)
    found = bench.interleave(
        bench.rounds(5),
        {
            "ours": partial(ours, seconds=seconds, mode="none"),
            "nats": partial(with_nats, seconds=seconds),
            "mosquitto": partial(with_mosquitto, seconds=seconds),
        },
    )
    goals = {"nats": (Goal(at_least=4), Goal(at_least=2)), "mosquitto": (Goal(at_least=8), Goal(at_least=1))}
    rows = []
    for peer, (pipelined, many) in goals.items():
        mine, theirs = found["ours"], found[peer]
        rows += [
            _rate_row("QoS 1 pipelined, ack after write", [run.pipelined for run in mine],
                      [run.pipelined for run in theirs], versions[peer], pipelined),
            _rate_row(f"{MANY} clients x 1 in flight, ack after write", [run.many for run in mine],
                      [run.many for run in theirs], versions[peer], many),
            _latency_row("one awaited QoS 1 publish, p50, ack after write", [run.alone for run in mine],
                         [run.alone for run in theirs], versions[peer], None),
        ]  # fmt: skip
    return rows


def _synced(bench: Bench) -> list[Row]:
    version, seconds = redis.version(), bench.pick(2.5, 0.3)
    found = bench.interleave(
        bench.rounds(5),
        {"ours": partial(ours, seconds=seconds, mode="always"), "redis": partial(with_redis, seconds=seconds)},
    )
    mine, theirs = found["ours"], found["redis"]
    return [
        _rate_row("QoS 1 pipelined, ack after fsync", [run.pipelined for run in mine],
                  [run.pipelined for run in theirs], version, Goal(at_least=2.5)),
        _rate_row(f"{MANY} clients x 1 in flight, ack after fsync", [run.many for run in mine],
                  [run.many for run in theirs], version, Goal(at_least=1)),
        _latency_row("one awaited QoS 1 publish, p50, ack after fsync", [run.alone for run in mine],
                     [run.alone for run in theirs], version, Goal(at_most=1.3)),
    ]  # fmt: skip


def _rate_row(what: str, mine: list[Load], theirs: list[Load], version: str, goal: Goal | None) -> Row:
    return Row(
        NAME,
        f"{what}, messages per second, against {version.split(maxsplit=1)[0]}",
        ratios([load.rate for load in mine], [load.rate for load in theirs]),
        goal,
        ours=_rates(mine),
        peer=_rates(theirs),
        peer_version=version,
        note=f"{generator_note(mine)}; peer: {generator_note(theirs)}",
    )


def _latency_row(what: str, mine: list[Load], theirs: list[Load], version: str, goal: Goal | None) -> Row:
    return Row(
        NAME,
        f"{what}, against {version.split(maxsplit=1)[0]}",
        ratios([load.p50_us for load in mine], [load.p50_us for load in theirs]),
        goal,
        ours=_latency(mine),
        peer=_latency(theirs),
        peer_version=version,
    )


def _rates(loads: list[Load]) -> str:
    return f"{Figure([load.rate for load in loads], '/s')}; server {Figure([load.server_us for load in loads], ' us')}"


def _latency(loads: list[Load]) -> str:
    p50, p99 = Figure([load.p50_us for load in loads], " us"), Figure([load.p99_us for load in loads], " us")
    return f"p50 {p50}, p99 {p99}"


# --- deliveries -------------------------------------------------------------------------------------------------------


def fan_out(path: Path, messages: int) -> Load:
    with running(path, "none") as target:
        return generator.fan_out("mqtt", target, consumers=CONSUMERS, in_flight=WINDOW, messages=messages)


def mosquitto_fan_out(path: Path, messages: int) -> Load:
    with mosquitto.running(path) as target:
        return generator.fan_out("mqtt", target, consumers=CONSUMERS, in_flight=WINDOW, messages=messages)


def nats_fan_out(path: Path, messages: int) -> Load:
    with nats.running(path) as target:
        return generator.fan_out("nats", target, consumers=CONSUMERS, in_flight=WINDOW, messages=messages)


def _fan_out(bench: Bench) -> list[Row]:
    versions = {"nats": nats.version(), "mosquitto": mosquitto.version()}
    mine, theirs = int(bench.pick(500_000, 20_000)), int(bench.pick(100_000, 5_000))
    found = bench.interleave(
        bench.rounds(5),
        {
            "ours": lambda path: fan_out(path, mine),
            "nats": lambda path: nats_fan_out(path, theirs),
            "mosquitto": lambda path: mosquitto_fan_out(path, theirs),
        },
    )
    goals = {"nats": Goal(at_least=5), "mosquitto": Goal(at_least=10)}
    what = f"QoS 1, 1 to {CONSUMERS} subscribers, published"
    return [_rate_row(what, found["ours"], found[peer], versions[peer], goal) for peer, goal in goals.items()]


class Resumed(NamedTuple):
    backlog: Load
    live: Load


def resume(path: Path, messages: int) -> Resumed:
    """The first backlog is in the log, and not in the memory of the session. Live: one publisher, one subscriber."""
    with running(path, "none") as target:
        live = generator.fan_out("mqtt", target, consumers=1, in_flight=WINDOW, messages=messages // 2, topic="live")
        generator.consume("mqtt", target, seconds=1, session="resumed", topic="backlog")
        generator.publish("mqtt", target, in_flight=WINDOW, messages=messages, topic="backlog")
        backlog = generator.consume("mqtt", target, messages=messages, session="resumed", resumed="true")
        return Resumed(backlog, live)


def _resume(bench: Bench) -> list[Row]:
    messages = int(bench.pick(1_000_000, 20_000))
    found = bench.interleave(bench.rounds(3), {"ours": lambda path: resume(path, messages)})["ours"]
    backlogs, lives = [run.backlog for run in found], [run.live for run in found]
    what = f"a durable session returns to {messages:,} messages"
    return [
        Row(
            NAME,
            f"{what}: time to the first",
            Figure([load.first_us / 1e6 for load in backlogs], " s"),
            Goal(at_most=1, unit=" s"),
        ),
        Row(
            NAME,
            f"{what}: rate, of that of one live subscriber",
            ratios([load.rate for load in backlogs], [load.rate for load in lives]),
            Goal(at_least=0.5),
            ours=f"{_rates(backlogs)}; live {_rates(lives)}",
            note=generator_note(backlogs),
        ),
    ]


# --- idle connections -------------------------------------------------------------------------------------------------


class Idle(NamedTuple):
    """KiB of resident memory for each connection, and the share of a core while nothing happens, in per cent."""

    kib: float
    cpu: float


CONNECT = b"\x10\x18\x00\x04MQTT\x04\x02\x00\x00\x00\x0c"


def _idle_at(target: Target, count: int) -> Idle:
    host, _, port = target.address.rpartition(":")
    with ExitStack() as stack:
        before = 0.0
        shared = count // 100  # the first ones fill what all connections share
        for number in range(count):
            opened = stack.enter_context(socket.create_connection((host, int(port))))
            opened.sendall(CONNECT + b"idle%08d" % number)
            opened.recv(64)
            if number == shared:
                before = process.resident_mib(target.pid)
        kib = 1024 * (process.resident_mib(target.pid) - before) / (count - shared)
        pids = process.family(target.pid)
        began, cpu = time.monotonic(), process.thread_seconds(pids)
        time.sleep(IDLE_SECONDS)
        return Idle(kib, 100 * (process.thread_seconds(pids) - cpu) / (time.monotonic() - began))


def idle(path: Path, count: int) -> Idle:
    with running(path, "always") as target:
        return _idle_at(target, count)


def mosquitto_idle(path: Path, count: int) -> Idle:
    with mosquitto.running(path, connections=count) as target:
        return _idle_at(target, count)


def _idle(bench: Bench) -> list[Row]:
    raise_open_files_limit()
    version = mosquitto.version()
    count = connections_allowed(int(bench.pick(10_000, 200)), limits.OPEN_FILES_MESSAGE_SHARE)
    found = bench.interleave(
        1, {"ours": lambda path: idle(path, count), "mosquitto": lambda path: mosquitto_idle(path, count)}
    )
    mine, theirs = found["ours"], found["mosquitto"]
    return [
        Row(
            NAME,
            f"{count:,} idle MQTT connections: resident memory of the broker for each",
            Figure([run.kib for run in mine], " KiB"),
            peer=str(Figure([run.kib for run in theirs], " KiB")),
            peer_version=version,
        ),
        Row(
            NAME,
            f"{count:,} idle MQTT connections: share of a core",
            Figure([run.cpu for run in mine], " %"),
            peer=str(Figure([run.cpu for run in theirs], " %")),
            peer_version=version,
        ),
    ]
