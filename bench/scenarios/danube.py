"""What clients of Danube see, messages of 100 B, reliable, ack after fdatasync. Danube itself acks from memory.

    send         SendMessage, one message for each unary call: 1, 16, 64, 256 at once, on one connection, the last on
                 four. The client is h2load, which costs less than any client of gRPC: the server is what is measured
    round trip   sent, delivered and acked, 64 under way; the client is the load generator (bench/load/src/danube.rs),
                 which needs 1 to 2 us for a message. Every message must come once and in order, and ours must have
                 stored as many
    PyPI         `danube-client` sends, so many at once (bench/danube_client.py)

Where a real Danube has been built (bench/peers/danube.py) it does the same in the same rounds. Else the goals against
it count as not measured, and what was recorded of it stands beside ours for orientation.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import grpc

import icestream
from bench import broker, generator, h2load
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, Target, generator_note
from bench.h2load import Calls
from bench.harness import Bench, MissingPeer, RunFailed
from bench.peers import danube
from bench.process import HOST, free_port
from icestream.frontends.danube.wire import danube_pb2 as pb

NAME = "danube"
GOAL = (
    "64 SendMessage at once, ack after fdatasync: ≤ 30 us of server CPU, ≥ 1.2x of Danube's rate; "
    "delivered and acked: ≥ 2x of Danube's rate"
)
TOPIC = "/default/bench"
ROUND_TRIP_TOPIC = "round-trip"
SEND = "/danube.ProducerService/SendMessage"
CREATE = "/danube.ProducerService/CreateProducer"
SHAPES = {1: (1, 1), 16: (1, 16), 64: (1, 64), 256: (4, 64)}  # connections, calls on each
UNDER_WAY = 64
CPU_US_MAX = 30
WARM_CALLS = 2_000
ANSWER_BYTES = len(pb.MessageResponse(request_id=7).SerializeToString())
# Of Danube 0.15.1 with the clients of this scenario, on other days and machines with two cores (docs/benchmarks.md).
RECORDED_SENDS = 40_930
RECORDED_SEND_US = 32.8
RECORDED_ROUND_TRIPS = 17_428
RECORDED_PYPI = {1: 2_778, 16: 9_274, 64: 12_907, 256: 14_322}
RECORDED = "0.15.1, recorded on another day"
NO_PEER = "no danube-broker was built (DANUBE_BROKER): the goals against Danube are not measured"
PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Sizes:
    calls: int
    pypi_messages: int
    warm_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """What one broker did, by how many were at once."""

    sends: dict[int, Calls]
    pypi: dict[int, dict[str, float]]
    round_trip: Load


def ours(path: Path, sizes: Sizes) -> Round:
    port = free_port()
    settings = {"danube.enable": "true", "ports.danube": port, "ports.danube_admin": 0}
    with broker.running(path, "always", settings=settings) as target:
        broker.warm(target, path)
        found = measure_once(Target(f"{HOST}:{port}", target.pid), path, sizes)
        if found.round_trip.disordered:
            raise RunFailed(f"{found.round_trip.disordered} times an offset of ours did not follow the one before it")
        _check(target, TOPIC, sum(sum(_counts(at_once, sizes.calls)) for at_once in SHAPES))
        _check(target, f"/default/{ROUND_TRIP_TOPIC}-0", found.round_trip.checked)
        return found


def theirs(path: Path, sizes: Sizes, warn: Callable[[str], None]) -> Round | None:
    """None when it fails: what is measured of ours counts all the same."""
    try:
        with danube.running(path) as target:
            return measure_once(target, path, sizes)
    except RunFailed as reason:
        warn(f"{NAME}: Danube failed, so it is not compared: {reason}")
        return None


def measure_once(target: Target, path: Path, sizes: Sizes) -> Round:
    sends: dict[int, Calls] = {}
    message = _message(_producer(target.address))
    for at_once, (connections, calls) in SHAPES.items():
        for count in _counts(at_once, sizes.calls):
            sends[at_once] = h2load.call(
                target.address, target.pid, SEND, message, path, count, connections, calls, ANSWER_BYTES
            )
    pypi = {
        at_once: _child("bench.danube_client", [target.address, str(sizes.pypi_messages), str(at_once)])
        for at_once in SHAPES
    }
    round_trip = generator.round_trip(
        "danube",
        target,
        in_flight=UNDER_WAY,
        warm_seconds=sizes.warm_seconds,
        seconds=sizes.seconds,
        topic=ROUND_TRIP_TOPIC,
    )
    return Round(sends, pypi, round_trip)


def _counts(at_once: int, calls: int) -> tuple[int, int]:
    """Calls that warm up, and those that are counted."""
    return WARM_CALLS, calls if at_once > 1 else max(calls // 10, 100)


def _child(module: str, words: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"{module} {' '.join(words)}: {done.stderr.strip()[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _producer(address: str) -> int:
    """A broker may need a moment until it takes one."""
    until = time.monotonic() + broker.START_SECONDS
    with grpc.insecure_channel(address) as channel:
        create = channel.unary_unary(CREATE, response_deserializer=pb.ProducerResponse.FromString)
        asked = pb.ProducerRequest(request_id=1, producer_name="bench", topic_name=TOPIC, dispatch_strategy=pb.Reliable)
        while True:
            try:
                return int(create(asked.SerializeToString()).producer_id)
            except grpc.RpcError as error:
                if time.monotonic() > until:
                    raise RunFailed(f"no producer: {error}") from None
                time.sleep(0.05)


def _message(producer_id: int) -> bytes:
    where = pb.MsgID(producer_id=producer_id, topic_name=TOPIC, broker_addr=f"{HOST}:6650")
    message = pb.StreamMessage(
        request_id=7, msg_id=where, payload=bytes(100), publish_time=1_790_000_000_000, producer_name="bench"
    )
    return message.SerializeToString()


def _check(target: Target, topic: str, stored: int) -> None:
    """The next message gets the number of those before it."""
    with icestream.connect_sync(target.address) as client, client.producer(topic) as producer:
        found = producer.send(b"the last one").offset
    if found != stored:
        raise RunFailed(f"{topic}: {stored} messages were answered, {found} are stored")


# --- the report -------------------------------------------------------------------------------------------------------


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, GOAL, Goal(at_most=CPU_US_MAX, unit=" us"), lambda: _measure(bench))


def _measure(bench: Bench) -> list[Row]:
    h2load.program()
    if importlib.util.find_spec("danube") is None:
        raise MissingPeer("danube-client is not installed: make bench installs it (requirements/bench.txt)")
    sizes = Sizes(
        calls=int(bench.pick(40_000, 2_000)),
        pypi_messages=int(bench.pick(10_000, 500)),
        warm_seconds=bench.pick(6, 3),
        seconds=bench.pick(6, 1),
    )
    sides: dict[str, Callable[[Path], Round | None]] = {"ours": lambda path: ours(path, sizes)}
    if danube.is_here():
        sides["danube"] = lambda path: theirs(path, sizes, bench.warn)
    else:
        bench.warn(f"{NAME}: {NO_PEER}")
    found = bench.interleave(bench.rounds(5), sides)
    mine, known = (_whole(found.get(side, [])) for side in ("ours", "danube"))
    report = Report(mine, known or None)
    return [*report.sends(), report.send_rate(), report.round_trips(), *report.pypi()]


def _whole(rounds: Sequence[Round | None]) -> list[Round]:
    """Nothing where one failed: a ratio is one of the same round."""
    return [run for run in rounds if run is not None] if None not in rounds else []


@dataclass(frozen=True, slots=True)
class Report:
    ours: list[Round]
    theirs: list[Round] | None

    @property
    def peer_version(self) -> str:
        return RECORDED if self.theirs is None else "danube-broker, built here"

    def sends(self) -> list[Row]:
        rows = []
        for at_once in SHAPES:
            used = Figure([run.sends[at_once].server_us for run in self.ours], " us")
            rate = Figure([run.sends[at_once].rate for run in self.ours], "/s")
            what = f"server CPU of one SendMessage, {at_once} at once, `always`"
            goal = Goal(at_most=CPU_US_MAX, unit=" us") if at_once == UNDER_WAY else None
            rows.append(
                Row(
                    NAME,
                    what,
                    used,
                    goal,
                    str(rate),
                    self._their_sends(at_once),
                    self.peer_version,
                    details={"rate": rate},
                )
            )
        return rows

    def _their_sends(self, at_once: int) -> str:
        if self.theirs is None:
            return f"{RECORDED_SEND_US} us" if at_once == UNDER_WAY else ""
        used = Figure([run.sends[at_once].server_us for run in self.theirs], " us")
        return f"{used}; {Figure([run.sends[at_once].rate for run in self.theirs], '/s')}"

    def send_rate(self) -> Row:
        what = f"messages sent in a second, {UNDER_WAY} at once, against Danube"
        rates = [run.sends[UNDER_WAY].rate for run in self.ours]
        known = None if self.theirs is None else [run.sends[UNDER_WAY].rate for run in self.theirs]
        note = "ours acks after fdatasync, Danube from memory"
        return self._against(what, Goal(at_least=1.2), rates, known, RECORDED_SENDS, note)

    def round_trips(self) -> Row:
        what = f"messages delivered and acked in a second, {UNDER_WAY} under way, against Danube"
        mine, theirs = ([run.round_trip for run in side] for side in (self.ours, self.theirs or ()))
        note = f"server CPU of ours for send, delivery and ack: {Figure([load.server_us for load in mine], ' us')}"
        if theirs:
            note += f"; Danube's: {Figure([load.server_us for load in theirs], ' us')}"
            note += f", {sum(load.disordered for load in theirs)} times messages were skipped or out of order"
        note += f"; {generator_note([*mine, *theirs])}"
        known = [load.rate for load in theirs] or None
        return self._against(what, Goal(at_least=2), [load.rate for load in mine], known, RECORDED_ROUND_TRIPS, note)

    def pypi(self) -> list[Row]:
        rows = []
        for at_once in SHAPES:
            rates = Figure(_rates([run.pypi[at_once] for run in self.ours]), "/s")
            busy = max(run.pypi[at_once]["cpu_seconds"] / run.pypi[at_once]["seconds"] for run in self.ours)
            peer = f"{RECORDED_PYPI[at_once]:,}/s"
            if self.theirs is not None:
                peer = str(Figure(_rates([run.pypi[at_once] for run in self.theirs]), "/s"))
            what = f"messages sent in a second by danube-client {version('danube-client')}, {at_once} at once"
            rows.append(
                Row(
                    NAME,
                    what,
                    rates,
                    peer=peer,
                    peer_version=self.peer_version,
                    note=f"client: {100 * busy:.0f} % of a core",
                )
            )
        return rows

    def _against(
        self, what: str, goal: Goal, rates: list[float], known: list[float] | None, recorded: int, note: str
    ) -> Row:
        ours = str(Figure(rates, "/s"))
        if known is None:
            missing = f"{NO_PEER}; {note}"
            return Row(NAME, what, None, goal, ours, f"{recorded:,}/s", self.peer_version, missing=missing)
        return Row(NAME, what, ratios(rates, known), goal, ours, str(Figure(known, "/s")), self.peer_version, note)


def _rates(found: Sequence[dict[str, float]]) -> list[float]:
    return [run["messages"] / run["seconds"] for run in found]
