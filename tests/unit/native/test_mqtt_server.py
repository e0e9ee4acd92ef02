"""The native MQTT server by itself: what it hands to Python, in which order, and what it answers alone."""

from __future__ import annotations

import select
import socket
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest

from icestream import limits
from icestream.model import envelope
from icestream.model.block import Block, check_block, iter_blocks
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId

native = pytest.importorskip("icestream_native", reason="the native extension is not built (make native)")

V3, V5 = ProtocolVersion.V3_1_1, ProtocolVersion.V5
CONNECTED, GONE, ROOM, SILENT, ACCEPT_FAILED, PACKETS, GROUP, ACKS, ANSWERED = range(9)
TIME_US = 1_700_000_000_000_000
BOUNDS = {
    "connect_bytes_max": 1_000,
    "packet_bytes_max": 100_000,
    "levels_max": limits.MQTT_TOPIC_LEVELS_MAX,
    "connection_bytes_max": 10_000,
    "pending_bytes_max": 1_000_000,
    "answer_bytes_max": 1_000,
    "row_bytes_max": 50_000,
    "group_bytes_max": 100_000,
}


class Server:
    """The server, and all rows that it has handed over."""

    def __init__(self, **bounds: int) -> None:
        self.native = native.MqttServer(**{**BOUNDS, **bounds})
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self.native.listen(listener.detach(), 60)
        self.rows: list[tuple[Any, ...]] = []
        self.sockets: list[socket.socket] = []

    def connect(self) -> socket.socket:
        self.sockets.append(socket.create_connection(("127.0.0.1", self.port)))
        return self.sockets[-1]

    def close(self) -> None:
        self.native.close()
        for each in self.sockets:
            each.close()

    def poll(self, seconds: float = 5.0) -> list[tuple[Any, ...]]:
        """One burst; it waits until there is something."""
        select.select([self.native.fileno()], [], [], seconds)
        rows: list[tuple[Any, ...]] = self.native.poll(TIME_US)
        self.rows += rows
        return rows

    def poll_until(self, kind: int, count: int = 1) -> list[tuple[Any, ...]]:
        """Polls until there were so many rows of the kind; returns them."""
        deadline = time.monotonic() + 10
        while len(rows := [row for row in self.rows if row[0] == kind]) < count:
            assert time.monotonic() < deadline, self.rows
            self.poll()
        return rows

    def client(self, version: ProtocolVersion = V3, client_id: str = "c") -> MqttSocket:
        """A connection whose CONNECT was accepted."""
        return MqttSocket(self, version, client_id)


class MqttSocket:
    def __init__(self, server: Server, version: ProtocolVersion, client_id: str) -> None:
        self.server, self.version = server, version
        self.socket = server.connect()
        self.socket.settimeout(10)
        self.send(packets.ConnectPacket(client_id, version))
        before = len([row for row in server.rows if row[0] == PACKETS])
        self.number = server.poll_until(PACKETS, before + 1)[-1][1]
        server.native.open(self.number, version)
        server.rows.clear()

    def send(self, *sent: packets.Packet | bytes) -> None:
        self.socket.sendall(b"".join(map(self.encode, sent)))

    def encode(self, packet: packets.Packet | bytes) -> bytes:
        return packet if isinstance(packet, bytes) else encode_packet(packet, self.version)

    def receive(self, count: int) -> list[packets.Packet]:
        decoder = PacketDecoder(version=self.version)
        received: list[packets.Packet] = []
        while len(received) < count:
            data = self.socket.recv(65_536)
            assert data, received
            received += decoder.feed(data)
        return received

    def has_nothing(self) -> bool:
        return not select.select([self.socket], [], [], 0.02)[0]

    def allow(self, *topics: str, queue: int = 1, receive_maximum: int = 100) -> None:
        self.server.native.allow_rows(self.number, b"client", receive_maximum)
        for topic in topics:
            self.server.native.declare(self.number, topic.encode(), queue, 0)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def message(packet_id: int, topic: str = "t", payload: bytes = b"x", qos: int = 1) -> packets.PublishPacket:
    return packets.PublishPacket(topic, payload, qos, packet_id if qos else 0)


def blocks_of(row: tuple[Any, ...]) -> dict[int, Block]:
    """The blocks of a group, by queue."""
    _, _, queues, ends, rows, _, joined, _ = row
    blocks = dict(zip(array("I", queues), iter_blocks(joined), strict=True))
    assert [block.rows for block in blocks.values()] == list(array("I", rows))
    start = 0
    for end in array("I", ends):
        check_block(joined[start:end])
        start = end
    assert start == len(joined)
    return blocks


def column(block: Block, name: envelope.EnvelopeColumn) -> list[Any]:
    return list(block.values(name))


# --- what goes to Python ----------------------------------------------------------------------------------------------


def test_connect_goes_to_python_and_nothing_behind_it_until_it_is_accepted(server: Server) -> None:
    client = server.connect()
    connect, leave = packets.ConnectPacket("c", V5), packets.DisconnectPacket()
    client.sendall(encode_packet(connect, V5) + encode_packet(leave, V5))
    ((_, number, data),) = server.poll_until(PACKETS)
    assert data == encode_packet(connect, V5)
    assert server.poll(0.02) == []
    assert server.native.inspect(number)[3] is False, "it is not read"
    server.native.open(number, V5)
    assert server.poll() == [(PACKETS, number, encode_packet(leave, V5))]


def test_a_first_packet_that_is_larger_than_a_connect_may_be_is_handed_over_as_a_head(server: Server) -> None:
    client = server.connect()
    data = encode_packet(packets.ConnectPacket("c" * 2_000, V5), V5)
    client.sendall(data)
    ((_, _, head),) = server.poll_until(PACKETS)
    assert head == data[:5]


def test_packets_that_are_no_rows_are_handed_over_in_one_piece(server: Server) -> None:
    client = server.client()
    sent: list[packets.Packet] = [
        packets.SubscribePacket(1, (packets.SubscriptionRequest("a"),)),
        message(1),
        packets.PubackPacket(9),
    ]
    client.send(*sent)
    assert server.poll() == [(PACKETS, client.number, b"".join(map(client.encode, sent)))]


def test_hazard_55_what_is_before_a_malformed_packet_and_the_end_comes_before_them(server: Server) -> None:
    client = server.client()
    client.allow("t")
    client.send(message(1), packets.PingreqPacket(), message(2), b"\xff\xff\xff\xff\xff" + client.encode(message(3)))
    client.socket.close()
    server.poll_until(GONE)
    kinds = [row[0] for row in server.rows]
    assert kinds == [GROUP, PACKETS, GONE]
    assert column(blocks_of(server.rows[0])[1], envelope.QOS) == [1, 1]
    assert server.rows[1][2] == b"\xff\xff\xff\xff\xff"


def test_hazard_55_an_incomplete_packet_before_the_end_is_dropped(server: Server) -> None:
    client = server.client()
    client.allow("t")
    client.send(message(1), client.encode(message(2))[:-1])
    client.socket.close()
    server.poll_until(GONE)
    assert [row[0] for row in server.rows] == [GROUP, GONE]
    assert blocks_of(server.rows[0])[1].rows == 1


def test_a_publish_behind_packets_for_python_waits_for_the_next_burst(server: Server) -> None:
    """Python may end the connection when it sees them."""
    client = server.client()
    client.allow("t")
    client.send(message(1), packets.DisconnectPacket(), message(2))
    assert [row[0] for row in server.poll()] == [GROUP, PACKETS]
    assert [row[0] for row in server.poll()] == [GROUP]


def test_packets_of_a_connection_that_python_paused_wait(server: Server) -> None:
    client = server.client()
    server.native.pause(client.number)
    client.send(packets.DisconnectPacket())
    assert server.poll(0.02) == []
    server.native.resume(client.number)
    assert server.poll_until(PACKETS)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_messages_of_declared_topics_are_blocks_of_their_queues(server: Server) -> None:
    one, other = server.client(V3), server.client(V5)
    one.allow("a/b", "c")
    other.allow("d", queue=2)
    server.native.declare(other.number, b"a/b", 1, 0)
    one.send(message(1, "a/b", b"1"), message(2, "c", b"2"), message(0, "a/b", b"3", qos=0))
    other.send(message(7, "d", b"4"), message(8, "d", b"4"), message(9, "a/b", b"6"))
    blocks: dict[int, list[tuple[Any, ...]]] = {1: [], 2: []}
    connections: set[int] = set()
    while sum(map(len, blocks.values())) < 6:
        for row in server.poll():
            connections.update(array("Q", row[5]))
            for queue, block in blocks_of(row).items():
                names = (envelope.KEY, envelope.PAYLOAD, envelope.QOS, envelope.PRODUCER_NAME, envelope.PUBLISH_TIME)
                blocks[queue] += zip(*(column(block, name) for name in names), strict=True)
    assert connections == {one.number, other.number}
    assert [row for row in blocks[1] if row[0] != b"a/b" or row[1] != b"6"] == [
        (b"a/b", b"1", 1, "client", TIME_US),
        (b"c", b"2", 1, "client", TIME_US),
        (b"a/b", b"3", 0, "client", TIME_US),
    ]
    assert (b"a/b", b"6", 1, "client", TIME_US) in blocks[1]
    assert blocks[2] == [(b"d", b"4", 1, "client", TIME_US)] * 2


def test_messages_of_several_publishers_have_their_names(server: Server) -> None:
    clients = [server.client() for _ in range(3)]
    for number, client in enumerate(clients):
        server.native.allow_rows(client.number, f"client-{number}".encode(), 10)
        server.native.declare(client.number, b"t", 1, 0)
        client.send(message(1), message(2))
    names: list[str] = []
    while len(names) < 6:
        for row in server.poll():
            names += column(blocks_of(row)[1], envelope.PRODUCER_NAME)
    assert sorted(names) == [f"client-{number}" for number in range(3) for _ in range(2)]


ALIAS = Properties([(PropertyId.TOPIC_ALIAS, 1)])


@pytest.mark.parametrize(
    "packet",
    [
        message(1, "unknown"),
        message(1, qos=2),
        packets.PublishPacket("t", b"x", 1, 1, is_retained=True),
        packets.PublishPacket("t", b"x", 1, 1, properties=ALIAS),
        message(1, payload=bytes(BOUNDS["row_bytes_max"])),
    ],
    ids=["topic", "QoS 2", "retained", "properties", "size"],
)
def test_a_message_that_python_has_to_decide_about_is_no_row(server: Server, packet: packets.PublishPacket) -> None:
    client = server.client(V5)
    client.allow("t")
    client.send(packet)
    assert server.poll_until(PACKETS) == [(PACKETS, client.number, client.encode(packet))]


def test_a_message_below_the_declared_qos_is_no_row(server: Server) -> None:
    client = server.client()
    client.allow()
    server.native.declare(client.number, b"t", 1, 1)
    client.send(message(0, qos=0))
    assert [row[0] for row in server.poll()] == [PACKETS]
    client.send(message(1))
    assert [row[0] for row in server.poll()] == [GROUP]


def test_messages_of_all_topics_belong_to_the_queue_of_their_hash(server: Server) -> None:
    client = server.client()
    client.allow()
    server.native.declare_all(client.number, [5, 6, 7], 0)
    topics = [f"a/{number}" for number in range(30)]
    client.send(*[message(number + 1, topic) for number, topic in enumerate(topics)], message(99, "$a"))
    group, data = server.poll()
    blocks = {queue: column(block, envelope.KEY) for queue, block in blocks_of(group).items()}
    assert blocks == {
        5 + shard: [topic.encode() for topic in topics if crc32(topic.encode()) % 3 == shard] for shard in range(3)
    }
    assert data == (PACKETS, client.number, client.encode(message(99, "$a")))


def test_forgotten_topics_and_suspended_rows_go_to_python(server: Server) -> None:
    client = server.client()
    client.allow("t")
    server.native.forget_topics(client.number)
    client.send(message(1))
    assert [row[0] for row in server.poll()] == [PACKETS]
    client.allow("t")
    server.native.suspend_rows(client.number, True)
    client.send(message(1))
    assert [row[0] for row in server.poll()] == [PACKETS]
    server.native.suspend_rows(client.number, False)
    client.send(message(1))
    assert [row[0] for row in server.poll()] == [GROUP]


def test_beyond_the_receive_maximum_python_decides(server: Server) -> None:
    client = server.client(V5)
    client.allow("t", receive_maximum=3)
    server.native.set_held(client.number, 1)
    sent = [message(number) for number in range(1, 4)]
    client.send(*sent)
    group, beyond = server.poll()
    assert blocks_of(group)[1].rows == 2
    assert beyond == (PACKETS, client.number, client.encode(sent[2]))


def test_hazard_73_a_connection_is_not_read_beyond_the_bound_of_what_is_not_acked(server: Server) -> None:
    client = server.client()
    client.allow("t", receive_maximum=10_000)
    sent = [message(number, payload=bytes(936)) for number in range(1, 51)]
    client.send(*sent)
    batches: list[tuple[Any, ...]] = []
    while not batches or server.native.pending_of(client.number) < BOUNDS["connection_bytes_max"]:
        batches += [row for row in server.poll() if row[0] == GROUP]
    assert server.native.inspect(client.number)[3] is False
    assert server.poll(0.02) == []
    stored = 0
    while stored < 50:
        batch = batches.pop(0) if batches else next(row for row in server.poll() if row[0] == GROUP)
        stored += sum(array("I", batch[4]))
        server.native.settle(batch[1])
    assert server.native.pending_bytes() == 0
    acks = client.receive(50)
    assert [ack.packet_id for ack in acks] == list(range(1, 51))  # type: ignore[union-attr]


def test_a_large_group_is_divided(server: Server) -> None:
    other = Server(group_bytes_max=1_000, connection_bytes_max=100_000)
    client = other.client()
    client.allow("t")
    client.send(*[message(number, payload=bytes(300)) for number in range(1, 10)])
    rows = 0
    while rows < 9:
        for row in other.poll():
            assert len(row[6]) < 1_500
            rows += sum(array("I", row[4]))
    other.close()


# --- acks -------------------------------------------------------------------------------------------------------------


def test_hazard_66_acks_leave_in_the_order_of_receipt_whichever_way_a_message_went(server: Server) -> None:
    client = server.client()
    client.allow("a")
    server.native.declare(client.number, b"b", 2, 0)
    client.send(message(1, "a"), message(2, "b"))
    (group,) = server.poll_until(GROUP)
    place = server.native.expect(client.number, 3, True)
    client.send(message(4, "b"))
    later = server.poll_until(GROUP, 2)[1]
    server.native.settle(later[1])
    server.native.answer(client.number, place, client.encode(packets.PubackPacket(3)), b"")
    assert client.has_nothing()
    assert server.native.owed(client.number) == (4, 4)
    server.native.settle(group[1])
    assert client.receive(4) == [packets.PubackPacket(number) for number in (1, 2, 3, 4)]
    assert server.native.owed(client.number) == (0, 0)


def test_a_batch_is_taken_apart_and_each_message_answered(server: Server) -> None:
    client = server.client(V5)
    client.allow("a")
    server.native.declare(client.number, b"b", 2, 0)
    client.send(message(1, "a"), message(2, "b"), message(0, "a", qos=0), message(4, "a"))
    ((_, batch, *_),) = server.poll_until(GROUP)
    messages = server.native.release(batch)
    assert [(number, packet_id) for number, _, packet_id in messages] == [
        (client.number, 1), (client.number, 0), (client.number, 4), (client.number, 2)
    ]  # fmt: skip
    assert messages[1][1] is None
    assert server.native.pending_bytes() == 0
    for _, place, packet_id in messages:
        if place is not None:
            reason = 0x97 if packet_id == 2 else 0
            server.native.answer(client.number, place, client.encode(packets.PubackPacket(packet_id, reason)), b"")
    assert client.has_nothing(), "they leave together"
    server.native.flush(client.number)
    assert client.receive(3) == [packets.PubackPacket(1), packets.PubackPacket(2, 0x97), packets.PubackPacket(4)]


def test_acks_behind_a_stop_do_not_leave_and_python_hears_when_those_before_have(server: Server) -> None:
    client = server.client()
    client.allow("t")
    places = [server.native.expect(client.number, packet_id, True) for packet_id in (1, 2, 3)]
    server.native.stop_acks(client.number, places[1])
    for place, packet_id in zip(places[1:], (2, 3), strict=True):
        server.native.answer(client.number, place, client.encode(packets.PubackPacket(packet_id)), b"")
    assert server.poll(0.02) == []
    server.native.answer(client.number, places[0], client.encode(packets.PubackPacket(1)), b"")
    assert server.poll() == [(ANSWERED, client.number)]
    server.native.flush(client.number)
    assert client.receive(1) == [packets.PubackPacket(1)]
    assert client.has_nothing()
    server.native.stop_acks(client.number)
    assert server.poll() == [(ANSWERED, client.number)], "nothing was owed"


def test_settling_a_batch_of_a_connection_that_is_gone_does_nothing(server: Server) -> None:
    client = server.client()
    client.allow("t")
    client.send(message(1))
    client.socket.close()
    server.poll_until(GONE)
    assert server.native.pending_bytes() == 0
    server.native.settle(server.rows[0][1])
    assert server.native.expect(client.number, 1, True) == 0


# --- what is answered here --------------------------------------------------------------------------------------------


def test_pings_are_answered_without_python(server: Server) -> None:
    client = server.client()
    client.send(packets.PingreqPacket())
    assert server.poll() == []
    assert client.receive(1) == [packets.PingrespPacket()]


def test_hazard_73_a_client_that_pings_and_reads_nothing_is_not_read(server: Server) -> None:
    client = server.client()
    client.allow()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.socket.setblocking(False)
    descriptor = server.native.inspect(client.number)[0]
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as accepted:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    pings = client.encode(packets.PingreqPacket()) * 10_000
    deadline = time.monotonic() + 10
    while server.native.inspect(client.number)[3]:
        assert time.monotonic() < deadline
        with suppress(BlockingIOError):
            client.socket.send(pings)
        server.poll(0.0)
    _, unparsed_bytes, queued_bytes, _ = server.native.inspect(client.number)
    assert queued_bytes < 1_000_000
    assert unparsed_bytes <= 256 * 1024


def test_a_silent_connection_is_reported_and_one_that_sends_is_not(server: Server) -> None:
    silent, talking = server.client(), server.client()
    for client in (silent, talking):
        client.allow()
        server.native.set_silence_max(client.number, 0.15)
    began = time.monotonic()
    while not [row for row in server.rows if row[0] == SILENT]:
        assert time.monotonic() - began < 10
        talking.send(packets.PingreqPacket())
        server.poll(0.02)
    assert [row for row in server.rows if row[0] == SILENT] == [(SILENT, silent.number)]
    assert time.monotonic() - began >= 0.14


def test_hazard_67_the_keep_alive_of_a_connection_that_is_not_read_is_suspended(server: Server) -> None:
    client = server.client()
    client.allow()
    server.native.set_silence_max(client.number, 0.05)
    server.native.pause(client.number)
    for _ in range(5):
        server.poll(0.05)
    assert not [row for row in server.rows if row[0] == SILENT]
    server.native.resume(client.number)
    assert server.poll_until(SILENT)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_connection_closes_when_the_client_has_taken_everything(server: Server) -> None:
    client = server.client()
    server.native.send(client.number, [bytes(5_000_000)])
    server.native.close_soon(client.number)
    received = 0
    while server.native.inspect(client.number) is not None or received < 5_000_000:
        received += len(client.socket.recv(1_000_000))
        server.poll(0.0)
    assert received == 5_000_000
    assert [row[0] for row in server.rows] == [GONE]
    assert client.socket.recv(1) == b""
