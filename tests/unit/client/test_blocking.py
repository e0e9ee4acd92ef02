"""The client without an event loop: the same promises, from any thread."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import icestream
from icestream import errors
from icestream.client.address import parse_address
from icestream.client.batch import MessageId
from icestream.testing import TestBroker

TOPIC = "/default/orders"
WAIT_SECONDS = 20.0


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with icestream.testing.broker() as running:
        yield running


@pytest.fixture
def client(broker: TestBroker) -> Iterator[icestream.BlockingClient]:
    with icestream.connect_sync(broker.address) as connected:
        yield connected


def test_messages_are_sent_and_received(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s", type="exclusive") as messages:
        assert producer.send(b"0", key="k", headers={"a": "b"}) == MessageId(TOPIC, 0, 0)
        assert [message_id.offset for message_id in producer.send_all([b"%d" % number for number in range(1, 600)])][
            -1
        ] == 599
        received = []
        for message in messages:
            received.append(int(message.payload))
            message.ack()
            if len(received) == 599:
                break
        assert received == list(range(599))
        last = messages.receive(timeout=10)
        assert last is not None
        messages.ack_through(last)
        messages.flush()
        assert messages.receive(timeout=0.01) is None
    with client.subscribe(TOPIC, "s", type="exclusive") as messages:
        assert messages.receive(timeout=0.01) is None, "everything was acked"


def test_nack_and_seek_redeliver_messages(client: icestream.BlockingClient) -> None:
    policy = {"base_delay_ms": 0, "max_delay_ms": 0}
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s", failure=policy) as messages:
        producer.send_all([b"a", b"b", b"c"])
        first = next(messages)
        first.nack()
        assert sorted(next(messages).payload for _ in range(3)) == [b"a", b"b", b"c"]
        messages.seek(1)
        assert [next(messages).payload for _ in range(2)] == [b"b", b"c"]


def test_batches_are_delivered_as_arrow(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        producer.send_all([b"%d" % number for number in range(50)])
        count = 0
        for batch in messages.batches():
            count += len(batch)
            batch.ack()
            if count == 50:
                break
        messages.flush()
    assert count == 50


def test_topics_are_created_shown_and_deleted(client: icestream.BlockingClient) -> None:
    assert client.create_topic(TOPIC, shards=3).shards == 3
    with pytest.raises(errors.AlreadyExists):
        client.create_topic(TOPIC)
    assert client.list_topics() == [TOPIC]
    with client.subscribe(TOPIC, "s"):
        assert client.describe_topic(TOPIC).subscriptions == ["s"]
    client.delete_subscription(TOPIC, "s")
    assert client.change_topic_policies(TOPIC, max_producers=2) == client.topic_policies(TOPIC)
    assert client.topic_policies(TOPIC).effective["max_producers"] == 2
    client.delete_topic(TOPIC)
    assert client.list_topics() == []


def test_many_threads_share_one_producer(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer:
        offsets: list[int] = []

        def work() -> None:
            offsets.extend(producer.send(b"x").offset for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(160))


def test_the_first_error_of_many_is_raised(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer:
        with pytest.raises(errors.InvalidInput, match="bytes"):
            producer.send_all(["text"])  # type: ignore[list-item]  # what it refuses
        assert producer.send(b"good").offset == 0


def test_a_closed_client_raises_and_leaves_no_thread(broker: TestBroker) -> None:
    before = threading.active_count()
    with icestream.connect_sync(broker.address) as client:
        producer = client.producer(TOPIC)
        messages = client.subscribe(TOPIC, "s")
        producer.send(b"x")
        message = next(messages)
    for use in (lambda: producer.send(b"y"), messages.receive, message.ack, client.list_topics):
        with pytest.raises(errors.ClientClosed):
            use()
    assert threading.active_count() == before


def test_without_a_broker_connect_fails_and_leaves_no_thread() -> None:
    with icestream.testing.broker() as broker:
        address = broker.address
    before = threading.active_count()
    with pytest.raises(errors.ConnectionLost, match="icestream serve"):
        icestream.connect_sync(address).open()
    assert threading.active_count() == before


def test_it_survives_a_broker_that_starts_again() -> None:
    with (
        icestream.testing.broker("disk") as broker,
        icestream.connect_sync(broker.address) as client,
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s", dedup=True) as messages,
    ):
        producer.send_all([b"%d" % number for number in range(20)])
        received = [int(next(messages).payload) for _ in range(5)]
        broker.restart_sync()
        producer.send_all([b"%d" % number for number in range(20, 40)])
        while len(received) < 40:
            message = messages.receive(timeout=20)
            assert message is not None
            received.append(int(message.payload))
    assert received == list(range(40))


# --- many threads -----------------------------------------------------------------------------------------------------


def run_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def test_threads_share_a_subscription_and_each_message_goes_to_one(
    client: icestream.BlockingClient,
) -> None:
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        received: list[int] = []

        def work() -> None:
            while (message := messages.receive(timeout=0.5)) is not None:
                received.append(int(message.payload))
                message.ack()

        sending = threading.Thread(target=lambda: [producer.send(b"%d" % number) for number in range(1000)])
        sending.start()
        run_threads(6, work)
        sending.join()
        messages.flush()
        assert messages.receive(timeout=0.01) is None
    assert sorted(received) == list(range(1000))


def test_a_slow_thread_does_not_keep_fetched_messages_from_others(
    client: icestream.BlockingClient,
) -> None:
    """One thread takes over many messages at once; while it works on the first the others get the rest."""
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        barrier = threading.Barrier(4)
        received: list[int] = []

        def work() -> None:
            message = messages.receive(timeout=WAIT_SECONDS)
            assert message is not None
            received.append(int(message.payload))
            barrier.wait(WAIT_SECONDS)

        waiting = threading.Thread(target=run_threads, args=(4, work))
        waiting.start()
        producer.send_all([b"%d" % number for number in range(4)])
        waiting.join()
    assert sorted(received) == [0, 1, 2, 3]


def test_waiting_threads_are_woken_when_the_client_is_closed(broker: TestBroker) -> None:
    """In whatever they wait: for a message, for an answer, for a connection."""
    client = icestream.connect_sync(broker.address, call_timeout=WAIT_SECONDS).open()
    messages = client.subscribe(client.create_topic(TOPIC).topic, "s")
    broker.stop_sync()
    outcomes: list[object] = []

    def work(use: Callable[[], object]) -> None:
        try:
            outcomes.append(use())
        except errors.IcestreamError as error:
            outcomes.append(type(error))

    uses = [messages.receive, client.list_topics, lambda: messages.seek("latest")]
    threads = [threading.Thread(target=work, args=(use,)) for use in uses]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert sorted(map(str, outcomes)) == sorted(map(str, [None, errors.ClientClosed, errors.ClientClosed]))


def test_calls_during_a_close_by_another_thread_never_hang(broker: TestBroker) -> None:
    for _ in range(20):
        client = icestream.connect_sync(broker.address).open()
        begun = threading.Barrier(4)

        def work(client: icestream.BlockingClient = client, begun: threading.Barrier = begun) -> None:
            begun.wait(WAIT_SECONDS)
            with contextlib.suppress(errors.ClientClosed):
                while True:
                    client.list_topics()

        closing = threading.Thread(target=lambda client=client, begun=begun: (begun.wait(WAIT_SECONDS), client.close()))
        closing.start()
        run_threads(3, work)
        closing.join()
        assert not client.is_connected


# --- what users do wrong ----------------------------------------------------------------------------------------------


def test_invalid_acks_and_nacks_raise(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        producer.send_all([b"a", b"b"])
        message, other = next(messages), next(messages)
        with pytest.raises(errors.InvalidInput, match="a week"):
            message.nack(delay=-1)
        with pytest.raises(errors.InvalidInput, match="a week"):
            message.nack(delay=float("nan"))
    with pytest.raises(errors.ClientClosed, match="is closed"):
        other.ack()
    with pytest.raises(errors.ClientClosed, match="is closed"):
        other.nack()


def test_closing_twice_is_harmless_and_final(broker: TestBroker) -> None:
    client = icestream.connect_sync(broker.address)
    assert client.list_topics() == []
    with client:
        producer = client.producer(TOPIC)
        producer.close()
        producer.close()
        messages = client.subscribe(TOPIC, "s")
        messages.close()
        messages.close()
        assert messages.receive() is None
    client.close()
    with pytest.raises(errors.ClientClosed, match="closed"):
        client.open()


def test_a_client_that_could_not_connect_can_try_again() -> None:
    broker = icestream.testing.broker()
    with broker:
        address = broker.address
    client = icestream.connect_sync(address)
    with pytest.raises(errors.ConnectionLost):
        client.open()
    again = icestream.testing.broker(settings={"ports": {"native": parse_address(address).port}})
    with again, client:
        assert client.list_topics() == []


def test_a_payload_that_is_not_bytes_sends_no_message_of_the_call(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer:
        with pytest.raises(errors.InvalidInput, match="bytes"):
            producer.send_all([b"good", "text"])  # type: ignore[list-item]  # what it refuses
        assert producer.send(b"first").offset == 0
        with pytest.raises(errors.MessageTooLarge):
            producer.send_all([b"good", bytes(70_000_000), b"never sent"])
        assert producer.send(b"third").offset == 2


def test_after_a_fork_the_client_raises_with_a_hint(broker: TestBroker) -> None:
    with icestream.connect_sync(broker.address) as client:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.list_topics()
            except BaseException as error:  # noqa: BLE001  # whatever it is, the parent looks at it
                os.write(write, str(error).encode())
            os._exit(0)
        os.close(write)
        output = os.read(read, 1000).decode()
        os.close(read)
        os.waitpid(child, 0)
        assert "connect after the fork" in output
        assert client.list_topics() == []


def test_copies_that_another_thread_would_get_are_dropped_when_the_message_is_acked(
    client: icestream.BlockingClient,
) -> None:
    policy = {"base_delay_ms": 0, "max_delay_ms": 0, "ack_timeout_ms": 40, "max_redelivery_count": 1000}
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s", failure=policy) as messages:
        producer.send_all([b"%d" % number for number in range(5)])
        first = [next(messages) for _ in range(5)]
        again = next(messages)  # the ack time-out is over
        assert again.redelivery_count == 1
        for message in first:
            message.ack()
        producer.send(b"5")
        assert next(messages).payload == b"5"


def test_a_message_that_blocks_the_subscription_is_an_error(client: icestream.BlockingClient) -> None:
    failure = {"max_redelivery_count": 0, "poison": "block", "base_delay_ms": 0}
    with (
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s", type="exclusive", failure=failure) as messages,
    ):
        producer.send_all([b"0", b"1"])
        message = next(messages)
        message.nack()
        assert next(messages).payload == b"1"
        with pytest.raises(errors.SubscriptionStalled, match="poison=block"):
            messages.receive(timeout=WAIT_SECONDS)
        assert [(stall.kind, stall.offset) for stall in messages.stalls] == [("blocked", 0)]
        messages.seek(1)
        assert next(messages).payload == b"1"


# --- without `with` ---------------------------------------------------------------------------------------------------


def test_it_connects_with_its_first_call_and_is_closed_by_hand(broker: TestBroker) -> None:
    before = threading.active_count()
    client = icestream.connect_sync(broker.address)
    assert not client.is_connected
    producer = client.producer(TOPIC)
    assert client.is_connected
    assert producer.send(b"one").offset == 0
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(errors.ClientClosed, match=r"connect_sync\(\) makes another"):
        client.list_topics()


def test_threads_that_connect_concurrently_share_one_connection(broker: TestBroker) -> None:
    client = icestream.connect_sync(broker.address)
    threads = [threading.Thread(target=client.list_topics) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(broker.node.native._connections) == 1
    client.close()


LEFT_OPEN = """
import sys, icestream
client = icestream.connect_sync(sys.argv[1])
messages = client.subscribe("/default/orders", "s", start="earliest")
producer = client.producer("/default/orders")
del client
for _ in range(3):
    messages.receive(timeout=20).ack()
print(producer.send(b"last").offset)
"""


def test_a_program_that_closes_nothing_exits_promptly_and_its_acks_count(broker: TestBroker) -> None:
    with icestream.connect_sync(broker.address) as client, client.producer(TOPIC) as producer:
        producer.send_all([b"0", b"1", b"2"])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", LEFT_OPEN, broker.address],
            capture_output=True, text=True, timeout=WAIT_SECONDS, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
        with client.subscribe(TOPIC, "s") as messages:
            message = messages.receive(timeout=WAIT_SECONDS)
            assert message is not None
            assert message.offset == 3
