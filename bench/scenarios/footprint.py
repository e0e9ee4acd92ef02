"""What a broker with its lake process takes: memory under slow consumers, time and writes when nothing happens.

memory   10 million messages of 100 B go through a topic to a consumer that keeps up. Three others hang on the same
         topic: one that looks at its socket every 50 ms, one that never acks, one that asks for messages and never
         looks. In frames of 1,000, and of 10. Peak of the resident memory, broker and lake process added up.
idle     a broker that has had 100 topics written, with a client that has a producer and a subscription open. After
         all that was put off is done: CPU time and bytes written, from /proc, lake process included.
connections   10,000 native connections that have done their handshake and nothing else: resident memory of the broker
         for each. Fewer where the system does not allow the descriptors for so many: then a row says so.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import icestream
from bench import broker, generator, process
from bench.figures import Figure, Goal, Row
from bench.generator import Load, Target, generator_note
from bench.harness import Bench, RunFailed
from icestream import limits
from icestream.rpc import frame, handshake
from icestream.runtime.open_files import connections_allowed

NAME = "footprint"
GOAL = (
    "10 million messages with slow consumers: RSS < 1 GiB; an idle broker: < 0.5 % of a core, writes nothing; "
    "10,000 idle connections ≤ 20 KiB each"
)
SLOW: dict[str, dict[str, float | str]] = {
    "slow": {"pace_ms": 50},
    "silent": {"acks": "false", "credit": 1_000_000},
    "stuck": {"stuck": "true", "credit": 1_000_000},
}
# Messages of a frame, and frames in flight.
FRAMES = ((1000, 16), (10, 32))


def memory(path: Path, messages: int, batch: int, in_flight: int) -> tuple[float, float, Load]:
    """Peak of broker and lake process together, the broker's alone, in MiB."""
    with broker.running(path, "none", has_lake=True) as target, ExitStack() as stack:
        broker.wait_for_lake(target)
        broker.create_topic(target, "bench")
        for name, options in SLOW.items():
            stack.enter_context(generator.slow_consumer(target, subscription=name, **options))
        load = generator.fan_out("native", target, batch=batch, in_flight=in_flight, messages=messages)
        peaks = [process.resident_mib(pid, peak=True) for pid in process.family(target.pid)]
        return sum(peaks), peaks[0], load


def idle(path: Path, seconds: float, calm_seconds: float, cursor_flush_ms: float) -> tuple[float, float]:
    """Per cent of a core, and bytes written."""
    settings = {"broker.cursor_flush_ms": int(cursor_flush_ms)}
    with broker.running(path, "always", settings=settings, has_lake=True) as target, _client(target):
        broker.burst(target, 100_000, topics=100, topic="idle")
        broker.wait_for_lake(target)
        broker.wait_until_quiet(target, calm_seconds)
        pids = process.family(target.pid)
        began, cpu, written = time.monotonic(), process.thread_seconds(pids), process.written_bytes(pids)
        time.sleep(seconds)
        took = time.monotonic() - began
        return 100 * (process.thread_seconds(pids) - cpu) / took, float(process.written_bytes(pids) - written)


def connections(path: Path, count: int) -> float:
    """KiB of the broker's resident memory for each of `count` connections, but for the first hundredth of them."""
    shared = count // 100  # the first ones fill what all connections share
    with broker.running(path, "always") as target, ExitStack() as stack:
        host, _, port_text = target.address.rpartition(":")
        port = int(port_text)
        hello = frame.encode_frame(frame.FrameKind.HELLO, 1, handshake.encode_hello(handshake.Hello()))
        for number in range(count):
            opened = stack.enter_context(socket.create_connection((host, port)))
            opened.sendall(hello)
            kind = frame.HEAD.unpack_from(opened.recv(4096))[1]
            if kind != frame.FrameKind.WELCOME:
                raise RunFailed(f"connection {number + 1} of {count} was refused")
            if number == shared:
                before = process.resident_mib(target.pid)
        return 1024 * (process.resident_mib(target.pid) - before) / (count - shared)


@contextmanager
def _client(target: Target) -> Iterator[None]:
    with (
        icestream.connect_sync(target.address) as client,
        client.producer("/default/open") as producer,
        client.subscribe("/default/open", "open") as subscription,
    ):
        producer.send(b"x")
        next(subscription).ack()
        yield


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "peak of RSS", Goal(at_most=1024, unit=" MiB"), partial(_memory, bench)),
        *bench.attempt(NAME, "an idle broker", Goal(at_most=0.5, unit=" %"), partial(_idle, bench)),
        *bench.attempt(NAME, "idle connections", Goal(at_most=20, unit=" KiB"), partial(_connections, bench)),
    ]


def _memory(bench: Bench) -> list[Row]:
    messages = int(bench.pick(10_000_000, 200_000))
    sides = {
        f"frames of {batch}": partial(memory, messages=messages, batch=batch, in_flight=in_flight)
        for batch, in_flight in FRAMES
    }
    found = bench.interleave(bench.rounds(1), sides)
    rows = []
    for name, rounds in found.items():
        alone = Figure([one for _, one, _ in rounds], " MiB")
        loads = [load for *_, load in rounds]
        rows.append(
            Row(
                NAME,
                f"{messages / 1e6:g} M messages, {name}, slow consumers: peak of RSS, broker and lake process",
                Figure([total for total, *_ in rounds], " MiB"),
                Goal(at_most=1024, unit=" MiB"),
                ours=f"the broker alone {alone}; {Figure([load.rate for load in loads], '/s')}",
                note=generator_note(loads),
            )
        )
    return rows


def _connections(bench: Bench) -> list[Row]:
    raise_open_files_limit()
    wanted = int(bench.pick(10_000, 500))
    count = connections_allowed(wanted, limits.OPEN_FILES_MESSAGE_SHARE)
    found = bench.interleave(1, {"connections": lambda path: connections(path, count)})["connections"]
    what = f"{count:,} idle connections: resident memory of the broker for each"
    note = "" if count == wanted else f"the system allows descriptors for {count:,} of {wanted:,} connections"
    return [Row(NAME, what, Figure(found, " KiB"), Goal(at_most=20, unit=" KiB"), note=note)]


def raise_open_files_limit() -> None:
    """Both ends of the connections are on this machine, and the broker inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _idle(bench: Bench) -> list[Row]:
    seconds, calm = bench.pick(60, 4), bench.pick(12, 1)
    flush_ms = bench.pick(limits.CURSOR_FLUSH_MS_DEFAULT, 500)
    found = bench.interleave(1, {"idle": lambda path: idle(path, seconds, calm, flush_ms)})["idle"]
    return [
        Row(
            NAME,
            f"an idle broker, {seconds:g} s: share of a core",
            Figure([share for share, _ in found], " %"),
            Goal(at_most=0.5, unit=" %"),
            note="broker and lake process, all threads, schedstat of /proc",
        ),
        Row(
            NAME,
            f"an idle broker, {seconds:g} s: bytes written",
            Figure([written for _, written in found], " B"),
            Goal(at_most=0, unit=" B"),
            note="broker and lake process, write_bytes of /proc",
        ),
    ]
