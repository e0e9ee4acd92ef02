"""The child process of the scenario `danube`: messages that are sent, delivered and acked, so many under way at once.

python -m bench.danube_round_trip ADDRESS AT_ONCE WARM_SECONDS SECONDS PIDS

One connection has all calls: SendMessage, one stream of ReceiveMessages, and an Ack for each message when it comes. The
next message is sent when one is acked. So no backlog forms, of which Danube would skip what is beyond 256 messages. A
broker that follows its consumer's rate has the warm-up for that. PIDS: the server, for what it used meanwhile.
"""

from __future__ import annotations

import json
import struct
import sys
import time

from bench import process
from bench.http2 import Connection, Failed, Refused
from icestream.frontends.danube.wire import danube_pb2 as pb

TOPIC = "/default/round-trip"
SILENCE_SECONDS = 10.0
PRODUCER, CONSUMER = "/danube.ProducerService/", "/danube.ConsumerService/"


class RoundTrips:
    def __init__(self, address: str) -> None:
        self._connection = Connection(address, SILENCE_SECONDS)
        self._message = self._prepare(address)
        self._sends: set[int] = set()
        self._acks: set[int] = set()
        self._stored = 0
        self._pending = b""
        self._next_offset: int | None = None
        self.acked = 0
        self.out_of_order = 0

    def _prepare(self, address: str) -> bytes:
        """A producer, a consumer and its stream; the message that is sent again and again."""
        call = self._connection.answer
        asked = pb.ProducerRequest(request_id=1, producer_name="p", topic_name=TOPIC, dispatch_strategy=pb.Reliable)
        created = pb.ProducerResponse.FromString(self._create(asked.SerializeToString()))
        wanted = pb.ConsumerRequest(request_id=2, topic_name=TOPIC, consumer_name="c", subscription="s")
        joined = pb.ConsumerResponse.FromString(call(CONSUMER + "Subscribe", wanted.SerializeToString()))
        stream = pb.ReceiveRequest(request_id=3, consumer_id=joined.consumer_id)
        self._stream = self._connection.call(CONSUMER + "ReceiveMessages", stream.SerializeToString())
        where = pb.MsgID(producer_id=created.producer_id, topic_name=TOPIC, broker_addr=address)
        return pb.StreamMessage(
            request_id=7,
            msg_id=where,
            payload=bytes(100),
            publish_time=int(time.time() * 1000),
            producer_name="p",
        ).SerializeToString()

    def _create(self, asked: bytes) -> bytes:
        """A cluster of Danube refuses it until the topic that it makes has its place; clients try again."""
        until = time.monotonic() + SILENCE_SECONDS
        while True:
            try:
                return self._connection.answer(PRODUCER + "CreateProducer", asked)
            except Refused:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def send(self, count: int) -> None:
        for _ in range(count):
            self._sends.add(self._connection.call(PRODUCER + "SendMessage", self._message))

    def go_on(self) -> int:
        """One turn; how many were acked in it."""
        self._connection.flush()
        before = self.acked
        for came in self._connection.come():
            if came.stream == self._stream:
                if came.is_over:
                    raise Failed("the stream ended")
                self._take(came.data)
            elif came.data:
                self._answered(came.stream)
            elif came.stream in self._sends or came.stream in self._acks:
                raise Failed("a call was refused")
        return self.acked - before

    def _answered(self, stream: int) -> None:
        if stream in self._acks:
            self._acks.remove(stream)
            self.acked += 1
        else:
            self._sends.remove(stream)
            self._stored += 1

    def _take(self, data: bytes) -> None:
        """The consumer has the subscription for itself: each should come once, in the order of its offset."""
        raw, at = self._pending + data, 0
        while len(raw) - at >= 5 and len(raw) - at >= 5 + (size := struct.unpack_from(">I", raw, at + 1)[0]):
            where = pb.StreamMessage.FromString(raw[at + 5 : at + 5 + size]).msg_id
            if self._next_offset not in (None, where.topic_offset):
                self.out_of_order += 1
            self._next_offset = where.topic_offset + 1
            ack = pb.AckRequest(request_id=9, msg_id=where, subscription_name="s")
            self._acks.add(self._connection.call(CONSUMER + "Ack", ack.SerializeToString()))
            at += 5 + size
        self._pending = raw[at:]

    def run_for(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.send(self.go_on())

    def close(self) -> None:
        self._connection.close()


def main(words: list[str]) -> None:
    match words:
        case [address, at_once, warm_seconds, seconds, pids]:
            print(json.dumps(measure(address, int(at_once), float(warm_seconds), float(seconds), pids)))
        case _:
            sys.exit(__doc__)


def measure(address: str, at_once: int, warm_seconds: float, seconds: float, pids: str) -> dict[str, float]:
    server = [int(one) for one in pids.split(",")]
    trips = RoundTrips(address)
    trips.send(1)
    while not trips.go_on():  # the consumer is there when the first message was acked
        pass
    trips.send(at_once)
    trips.run_for(warm_seconds)
    began, cpu, used, before = time.perf_counter(), time.process_time(), process.cpu_seconds(server), trips.acked
    trips.run_for(seconds)
    found = {
        "messages": trips.acked - before,
        "out_of_order": trips.out_of_order,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "server_cpu_seconds": process.cpu_seconds(server) - used,
    }
    trips.close()
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
