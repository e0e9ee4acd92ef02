"""SendMessage as Danube's clients call it: one message of 100 B for each unary call, ack after fdatasync.

    1, 16, 64, 256    calls under way at once: on one connection, the last on four

The client is h2load, which costs less than any client of gRPC, so that the server is what is measured. The broker
itself says afterwards how many messages it has stored. Danube's own figure was recorded on another machine with two
cores, where its acks came from memory: 20,700 messages a second with 64 calls, 45 to 62 us of CPU each.
"""

from __future__ import annotations

import time
from pathlib import Path

import grpc

import icestream
from bench import broker, h2load
from bench.figures import Figure, Goal, Row
from bench.generator import Target
from bench.h2load import Calls
from bench.harness import Bench, RunFailed
from bench.process import HOST, free_port
from icestream.frontends.danube.wire import danube_pb2 as pb

NAME = "danube"
GOAL = "SendMessage, 64 calls at once, ack after fdatasync: ≤ 30 us of server CPU; ≥ 1.2x of Danube's recorded rate"
TOPIC = "/default/bench"
SEND = "/danube.ProducerService/SendMessage"
CREATE = "/danube.ProducerService/CreateProducer"
SHAPES = {1: (1, 1), 16: (1, 16), 64: (1, 64), 256: (4, 64)}
RECORDED_RATE = 20_700
CPU_US_MAX = 30
WARM_CALLS = 2_000


def measure_once(path: Path, count: int) -> dict[int, Calls]:
    """By calls at once."""
    port = free_port()
    settings = {"danube.enable": "true", "ports.danube": port, "ports.danube_admin": 0}
    with broker.running(path, "always", settings=settings) as target:
        broker.warm(target, path)
        message = _message(_producer(port))
        found = {}
        stored = 0
        for at_once, (connections, calls) in SHAPES.items():
            for number in (WARM_CALLS, count if at_once > 1 else max(count // 10, 100)):
                found[at_once] = h2load.call(
                    f"{HOST}:{port}", target.pid, SEND, message, path, number, connections, calls
                )
                stored += number
        _check(target, stored)
        return found


def _producer(port: int) -> int:
    """The listener may come a moment after the native one."""
    until = time.monotonic() + broker.START_SECONDS
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
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


def _check(target: Target, stored: int) -> None:
    """The next message gets the number of those before it."""
    with icestream.connect_sync(target.address) as client, client.producer(TOPIC) as producer:
        found = producer.send(b"the last one").offset
    if found != stored:
        raise RunFailed(f"{stored} calls were answered, {found} messages are stored")


def measure(bench: Bench) -> list[Row]:
    count = int(bench.pick(40_000, 2_000))
    return bench.attempt(NAME, GOAL, Goal(at_most=CPU_US_MAX, unit=" us"), lambda: _rows(bench, count))


def _rows(bench: Bench, count: int) -> list[Row]:
    h2load.program()
    found = bench.interleave(bench.rounds(5), {"ours": lambda path: measure_once(path, count)})["ours"]
    rows = []
    for at_once in SHAPES:
        runs = [one[at_once] for one in found]
        is_goal = at_once == 64
        rows.append(
            Row(
                NAME,
                f"server CPU of one SendMessage, {at_once} at once, `always`",
                Figure([run.server_us for run in runs], " us"),
                Goal(at_most=CPU_US_MAX, unit=" us") if is_goal else None,
                ours=str(Figure([run.rate for run in runs], "/s")),
            )
        )
    rates = [one[64].rate / RECORDED_RATE for one in found]
    rows.append(
        Row(
            NAME,
            "messages a second, 64 at once, against Danube's recorded rate",
            Figure(rates, "x"),
            Goal(at_least=1.2),
            ours=str(Figure([one[64].rate for one in found], "/s")),
            peer=f"{RECORDED_RATE:,}/s, recorded",
            peer_version="0.15.1, another machine",
            note="ours acks after fdatasync, Danube from memory",
        )
    )
    return rows
