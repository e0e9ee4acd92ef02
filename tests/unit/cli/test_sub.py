"""`icestream sub` against a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from icestream import connect_sync, testing
from tests.support.command_line import CommandResult, icestream


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as test_broker:
        yield test_broker


@pytest.fixture
def local(broker: testing.TestBroker) -> tuple[str, str]:
    return "--broker", str(broker.node.settings.local_socket)


@pytest.fixture
def topic(broker: testing.TestBroker) -> str:
    """A new topic for every test, with the offsets 0 to 9."""
    name = f"/default/{uuid.uuid4().hex}"
    with connect_sync(broker.address) as client, client.producer(name) as producer:
        producer.send_all([b"%d" % number for number in range(10)])
    return name


def position(topic: str, local: tuple[str, str]) -> int:
    description = icestream("sub", "describe", topic, "s", *local, "--output", "json").document
    return int(description["shard_positions"][0]["position"])


def test_a_subscription_is_created_shown_and_deleted(
    broker: testing.TestBroker, topic: str, local: tuple[str, str]
) -> None:
    created = icestream("sub", "create", topic, "s", "--type", "shared", "--from", "4", *local, "--output", "json")
    assert (created.code, created.document["type"], created.document["lag"]) == (0, "shared", 6)
    listed = icestream("sub", "list", topic, *local, "--output", "json").document
    assert listed == [{"subscription": "s", "type": "shared", "consumers": 0, "state": "ok", "lag": 6}]
    outline = icestream("sub", "list", topic, "--broker", broker.address, "--output", "json").document
    assert outline == [{"subscription": "s"}]
    assert icestream("sub", "delete", topic, "s", *local).code == 4
    assert icestream("sub", "delete", topic, "s", "--yes", "--broker", broker.address).code == 0
    assert icestream("sub", "list", topic, *local, "--output", "json").document == []
    assert icestream("sub", "describe", topic, "s", *local).code == 4


@pytest.mark.parametrize(
    ("place", "expected"), [("earliest", 0), ("latest", 10), ("3", 3), ("99", 10), ("-1h", 0), ("2100-01-01", 10)]
)
def test_seek_moves_it(
    broker: testing.TestBroker, topic: str, local: tuple[str, str], place: str, expected: int
) -> None:
    icestream("sub", "create", topic, "s", "--from", "5", *local)
    for way in (local, ("--broker", broker.address)):
        ran = icestream("sub", "seek", topic, "s", "--to", place, *way, "--output", "json")
        assert (ran.code, ran.document) == (0, [{"shard": 0, "position": expected}])
        assert position(topic, local) == expected


def test_describe_shows_the_consumers(broker: testing.TestBroker, topic: str, local: tuple[str, str]) -> None:
    with connect_sync(broker.address) as client, client.subscribe(topic, "s", consumer="till-1", start="earliest"):
        lines = [line.split() for line in icestream("sub", "describe", topic, "s", *local).out.splitlines()]
    assert ["type", "shared"] in lines
    assert ["max_dispatch_rate", "-"] in lines
    assert ["consumer", "peer", "is_active", "credit", "delivered_messages"] in lines
    assert "till-1" in [line[0] for line in lines if line]


def test_a_blocked_subscription_is_a_state_with_its_offset_and_reason(
    broker: testing.TestBroker, topic: str, local: tuple[str, str]
) -> None:
    failure = {"max_redelivery_count": 0, "base_delay_ms": 0, "max_delay_ms": 0}
    with (
        connect_sync(broker.address) as client,
        client.subscribe(topic, "s", start="earliest", failure=failure, consumer="till-1") as messages,
    ):
        message = messages.receive(timeout=30)
        assert message is not None
        message.nack()
        messages.flush()
        (line,) = icestream("sub", "list", topic, *local, "--output", "json").document
        shown = icestream("sub", "describe", topic, "s", *local)
        description = icestream("sub", "describe", topic, "s", *local, "--output", "json").document
    assert line["state"] == description["state"] == "blocked"
    (stall,) = description["shard_positions"][0]["stalls"]
    assert (stall["kind"], stall["offset"]) == ("blocked", 0)
    text = " ".join(shown.out.split())
    assert "state blocked" in text
    assert f"message 0 in shard 0 of {topic} failed 1 time (nack), and the failure policy of subscription s" in text
    assert "poison=dead-letter dead_letter_topic=" in text


def test_only_named_policy_fields_change(topic: str, local: tuple[str, str]) -> None:
    icestream("sub", "create", topic, "s", "--policy", "poison=drop", "--policy", "max_redelivery_count=2", *local)
    changes = ("base_delay_ms=7", "max_dispatch_rate=50", "max_redelivery_count=none")
    description = icestream("sub", "policy", topic, "s", *changes, *local, "--output", "json").document
    assert (description["poison"], description["base_delay_ms"], description["max_dispatch_rate"]) == ("drop", 7, 50)
    assert description["max_redelivery_count"] == 5
    shown = icestream("sub", "policy", topic, "s", "max_dispatch_rate=none", *local)
    assert ["max_dispatch_rate", "-"] in [line.split() for line in shown.out.splitlines()]
    assert ["poison", "drop"] in [line.split() for line in shown.out.splitlines()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "{topic}", "s", "--type", "queue"),
        ("create", "{topic}", "s", "--from", "soon"),
        ("create", "{topic}", "a/b"),
        ("create", "/default/nowhere", "s"),
        ("seek", "{topic}", "nobody", "--to", "latest"),
        ("policy", "{topic}", "nobody"),
        ("policy", "{topic}", "nobody", "poison=eat"),
        ("policy", "{topic}", "s", "max_producers=1"),
        ("list", "/default/nowhere"),
    ],
)
def test_wrong_usage(topic: str, local: tuple[str, str], arguments: tuple[str, ...]) -> None:
    ran = icestream("sub", *(argument.format(topic=topic) for argument in arguments), *local)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("icestream: ")
    assert icestream("sub", "list", topic, *local, "--output", "json") == CommandResult(0, "[]\n", "")
