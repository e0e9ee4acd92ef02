"""The client without an event loop: the same promises, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import icestream
from icestream import errors
from icestream.client.batch import MessageId
from icestream.testing import TestBroker

TOPIC = "/default/orders"


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with icestream.testing.broker() as running:
        yield running


@pytest.fixture
def client(broker: TestBroker) -> Iterator[icestream.BlockingClient]:
    with icestream.connect_sync(broker.address) as connected:
        yield connected


def test_messages_go_through_it(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s", type="exclusive") as messages:
        assert producer.send(b"0", key="k", headers={"a": "b"}) == MessageId(TOPIC, 0, 0)
        assert [one.offset for one in producer.send_all([b"%d" % number for number in range(1, 600)])][-1] == 599
        found = []
        for message in messages:
            found.append(int(message.payload))
            message.ack()
            if len(found) == 599:
                break
        assert found == list(range(599))
        last = messages.receive(timeout=10)
        assert last is not None
        messages.ack_through(last)
        messages.flush()
        assert messages.receive(timeout=0.01) is None
    with client.subscribe(TOPIC, "s", type="exclusive") as messages:
        assert messages.receive(timeout=0.01) is None, "everything was acked"


def test_nack_and_seek_bring_messages_again(client: icestream.BlockingClient) -> None:
    policy = {"base_delay_ms": 0, "max_delay_ms": 0}
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s", failure=policy) as messages:
        producer.send_all([b"a", b"b", b"c"])
        first = next(messages)
        first.nack()
        assert sorted(next(messages).payload for _ in range(3)) == [b"a", b"b", b"c"]
        messages.seek(1)
        assert [next(messages).payload for _ in range(2)] == [b"b", b"c"]


def test_batches_come_as_arrow(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer, client.subscribe(TOPIC, "s") as messages:
        producer.send_all([b"%d" % number for number in range(50)])
        count = 0
        for batch in messages.batches():
            count += len(batch)
            messages.ack(batch)
            if count == 50:
                break
        messages.flush()
    assert count == 50


def test_topics_are_made_shown_and_deleted(client: icestream.BlockingClient) -> None:
    assert client.create_topic(TOPIC, shards=3).shards == 3
    with pytest.raises(errors.AlreadyExists):
        client.create_topic(TOPIC)
    assert client.list_topics() == [TOPIC]
    with client.subscribe(TOPIC, "s"):
        assert client.describe_topic(TOPIC).subscriptions == ["s"]
    client.delete_subscription(TOPIC, "s")
    client.delete_topic(TOPIC)
    assert client.list_topics() == []


def test_many_threads_share_one_producer(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer:
        found: list[int] = []

        def work() -> None:
            found.extend(producer.send(b"x").offset for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(160))


def test_the_first_error_of_many_is_raised(client: icestream.BlockingClient) -> None:
    with client.producer(TOPIC) as producer:
        with pytest.raises(errors.InvalidInput, match="bytes"):
            producer.send_all(["text"])  # type: ignore[list-item]  # what it refuses
        assert producer.send(b"good").offset == 0


def test_a_closed_client_says_so_and_leaves_no_thread_behind(broker: TestBroker) -> None:
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


def test_without_a_broker_it_says_so_and_leaves_no_thread_behind() -> None:
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
        found = [int(next(messages).payload) for _ in range(5)]
        broker.restart_sync()
        producer.send_all([b"%d" % number for number in range(20, 40)])
        while len(found) < 40:
            message = messages.receive(timeout=20)
            assert message is not None
            found.append(int(message.payload))
    assert found == list(range(40))
