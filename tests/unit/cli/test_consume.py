"""`icestream consume` against a broker: where it starts and ends, what it writes, and what stays behind."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from icestream import connect, connect_sync, errors, testing
from icestream.cli.consume import ConsumeOptions, ConsumeProgress, _conclude
from icestream.cli.message_format import parse_format
from icestream.cli.positions import parse_position, time_text
from icestream.client.message import Gap
from icestream.model.shard import GapState
from icestream.model.topic_name import TopicName
from tests.support.command_line import CommandResult, icestream, icestream_process
from tests.support.serve_process import WAIT_SECONDS


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker() as test_broker:
        yield test_broker


@pytest.fixture
def topic(broker: testing.TestBroker) -> str:
    """A new topic for every test, with the payloads 0 to 9."""
    name = f"/default/{uuid.uuid4().hex}"
    publish(broker, name, *(b"%d" % number for number in range(10)))
    return name


def publish(
    broker: testing.TestBroker, topic: str, *payloads: bytes, key: bytes | None = None, shards: int = 1
) -> None:
    with connect_sync(broker.address) as client, client.producer(topic, shards=shards) as producer:
        producer.send_all(payloads, key=key)


def consume(broker: testing.TestBroker, topic: str, *options: str) -> CommandResult:
    return icestream("consume", topic, "--broker", broker.address, *options)


def subscriptions(broker: testing.TestBroker, topic: str) -> list[str]:
    with connect_sync(broker.address) as client:
        return client.describe_topic(topic).subscriptions


def test_consume_writes_every_message_and_stops_at_the_end(broker: testing.TestBroker, topic: str) -> None:
    ran = consume(broker, topic)
    assert (ran.code, ran.err) == (0, "10 messages\n")
    assert ran.out == "".join(f"0:{number}\t\t{number}\n" for number in range(10))
    assert subscriptions(broker, topic) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "latest"), ""),
        (("--from", "7"), "789"),
        (("--from", "99"), ""),
        (("--from", "-1h"), "0123456789"),
        (("--from", "2100-01-01"), ""),
        (("--from", "2001-01-01T00:00+02:00", "--count", "2"), "01"),
        (("--count", "3"), "012"),
        (("--type", "shared", "-n", "99"), "0123456789"),
        (("--no-ack",), "0123456789"),
    ],
)
def test_where_it_starts_and_ends(
    broker: testing.TestBroker, topic: str, options: tuple[str, ...], expected: str
) -> None:
    ran = consume(broker, topic, "--format", "payload", *options)
    assert (ran.code, ran.out.replace("\n", "")) == (0, expected)
    assert subscriptions(broker, topic) == []


def test_an_empty_topic_ends_immediately(broker: testing.TestBroker) -> None:
    with connect_sync(broker.address) as client:
        client.create_topic("/default/empty")
    assert consume(broker, "/default/empty", "--timeout", "1000") == (0, "", "0 messages\n")


def test_every_shard_is_read_to_its_end(broker: testing.TestBroker) -> None:
    for number in range(20):
        publish(broker, "/default/sharded", b"%d" % number, key=b"key-%d" % number, shards=3)
    ran = consume(broker, "/default/sharded", "--format", "%s %o", "--timeout", "1000")
    assert ran.code == 0
    places = [tuple(map(int, line.split())) for line in ran.out.splitlines()]
    assert len(set(places)) == 20
    assert {shard for shard, _ in places} == {0, 1, 2}


def test_json_can_be_produced_again(broker: testing.TestBroker, topic: str) -> None:
    publish(broker, topic, b"\xff\x00", key=b"k")
    ran = consume(broker, topic, "--from", "9", "--output", "json")
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["topic"], first["shard"], first["offset"], first["payload"], first["key"]) == (topic, 0, 9, "9", None)
    assert (second["payload_base64"], second["key"], second["redelivery_count"]) == ("/wA=", "k", 0)
    assert datetime.now(UTC) - datetime.fromisoformat(second["append_time"]) < timedelta(minutes=5)
    copied = icestream("produce", f"{topic}-copy", "--json", "--broker", broker.address, given=ran.out.encode())
    assert copied.out == "2 messages stored at offsets 0..1\n"
    assert consume(broker, f"{topic}-copy", "--format", "%k %p", "-n", "1").out == " 9\n"


def test_a_format_pattern_selects_the_output(broker: testing.TestBroker, topic: str) -> None:
    ran = consume(broker, topic, "--format", r"%t\t%s %o %k %p %h %r 100%%\\", "--from", "9")
    assert ran.out == f"{topic}\t0 9  9 {{}} 0 100%\\\n"


def test_a_named_subscription_resumes_and_is_kept(broker: testing.TestBroker, topic: str) -> None:
    named = ("--subscription", "billing", "--format", "payload")
    assert consume(broker, topic, *named, "--count", "4").out.split() == ["0", "1", "2", "3"]
    assert consume(broker, topic, *named, "--no-ack").out.split() == ["4", "5", "6", "7", "8", "9"]
    assert consume(broker, topic, *named).out.split() == ["4", "5", "6", "7", "8", "9"]
    assert consume(broker, topic, *named, "--timeout", "0.2").out == ""
    assert subscriptions(broker, topic) == ["billing"]


def test_a_finished_named_subscription_ends_immediately_for_every_type(broker: testing.TestBroker, topic: str) -> None:
    assert consume(broker, topic, "--subscription", "s", "--type", "key-shared").out.count("\n") == 10
    assert consume(broker, topic, "--subscription", "s", "--timeout", "1000") == (0, "", "0 messages\n")
    ran = consume(broker, topic, "--subscription", "s", "--type", "shared")
    assert (ran.code, ran.out) == (4, "")
    assert "is key-shared, not shared" in ran.err


def test_messages_held_by_another_consumer_are_reported_as_missing(broker: testing.TestBroker, topic: str) -> None:
    with connect_sync(broker.address) as client, client.subscribe(topic, "s", start="earliest") as other:
        next(iter(other))
        ran = consume(broker, topic, "--subscription", "s", "--timeout", "0.4")
    assert ran.code == 0
    assert (
        "no message received for 0.4 s, but the end is not reached in shard 0 (delivered to another consumer" in ran.err
    )


def test_from_does_not_move_a_subscription_that_exists(broker: testing.TestBroker, topic: str) -> None:
    assert consume(broker, topic, "--subscription", "s", "--from", "5").out.count("\n") == 5
    ran = consume(broker, topic, "--subscription", "s", "--from", "earliest")
    assert (ran.code, ran.out) == (4, "")
    assert "icestream sub seek" in ran.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--from", "yesterday"), 4),
        (("--from", "-5x"), 4),
        (("--type", "queue"), 4),
        (("--format", "nonsense"), 4),
        (("--format", "%z"), 4),
        (("--format", "100%"), 4),
        (("--count", "0"), 2),
        (("--bogus",), 2),
    ],
)
def test_wrong_usage(broker: testing.TestBroker, topic: str, options: tuple[str, ...], code: int) -> None:
    ran = consume(broker, topic, *options)
    assert (ran.code, ran.out) == (code, "")
    assert "Traceback" not in ran.err


def test_an_unknown_topic_is_not_created(broker: testing.TestBroker) -> None:
    ran = consume(broker, "/default/nothing-here")
    assert (ran.code, ran.out) == (4, "")
    assert "there is no topic /default/nothing-here" in ran.err
    assert "hint: create it, or publish to it once; `icestream topic list` lists all topics" in ran.err
    with connect_sync(broker.address) as client:
        assert "/default/nothing-here" not in client.list_topics()


def test_a_misspelt_topic_is_suggested(broker: testing.TestBroker, topic: str) -> None:
    ran = consume(broker, topic[:-1] + "x")
    assert ran.code == 4
    assert f"hint: did you mean {topic}? `icestream topic list` lists all topics" in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_in_order(broker: testing.TestBroker, topic: str, number: signal.Signals) -> None:
    options = ("--broker", broker.address, "--follow", "--format", "payload")
    with icestream_process("consume", topic, *options) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)] == [f"{count}\n" for count in range(10)]
        publish(broker, topic, b"later")
        assert process.stdout.readline() == "later\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, out, err) == (0, "", "11 messages\n")
    assert subscriptions(broker, topic) == []


def test_a_closed_output_pipe_ends_consume(broker: testing.TestBroker, topic: str) -> None:
    publish(broker, topic, *(b"x" * 1000 for _ in range(1000)))
    with icestream_process("consume", topic, "--broker", broker.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(WAIT_SECONDS) == 1
    assert subscriptions(broker, topic) == []


def test_a_stopped_broker_is_an_error() -> None:
    name = TopicName("default", "t")
    with testing.broker() as own:
        publish(own, str(name), b"0")
        broker = own.node.broker

        def with_credit() -> int:
            # A client grants credit after it has read the reply to `subscribe`: from then on a lost connection is
            # found by the running command. Before, the command would report that it cannot connect.
            return sum(consumer.credit_messages > 0 for consumer in broker.subscription(name, "s").consumers.values())

        async def stop_when_two_consume() -> None:
            while with_credit() < 2:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.01)
            await own.stop()

        with connect_sync(own.address) as client, client.subscribe(str(name), "s", start="earliest") as other:
            next(iter(other))  # it has the message: the command waits for it
            assert own._thread is not None
            stopping = threading.Thread(target=own._thread.run, args=[stop_when_two_consume()])
            stopping.start()
            ran = consume(own, str(name), "--subscription", "s", "--type", "shared", "--timeout", "1")
            stopping.join()
    assert (ran.code, ran.out) == (11, "")
    assert "connection to the broker lost after 0 messages" in ran.err


def test_a_shard_is_done_at_the_end_that_it_had() -> None:
    progress = ConsumeProgress()
    progress.begin({0: 3, 1: 5}, {0: 5, 1: 5, 2: 2})
    assert progress.behind == {0, 2}
    progress.record(0, 3)
    progress.record(2, 1)
    assert (progress.behind, progress.written) == ({0}, 2)
    assert [progress.is_before_end(0, 4), progress.is_before_end(0, 5), progress.is_before_end(1, 5)] == [
        True, False, False,
    ]  # fmt: skip
    progress.record(0, 4)
    assert progress.behind == set()


def test_a_gap_up_to_the_end_is_the_end() -> None:
    progress = ConsumeProgress()
    progress.begin({0: 0}, {0: 100})
    gap = Gap(0, 5, 100, GapState.UNUSED, "unclean stop")
    progress.skip([gap])
    assert progress.behind == {0}, "what is before it has not come yet"
    for offset in range(5):
        progress.record(0, offset)
    progress.skip([gap])
    assert (progress.behind, progress.written, progress.reached) == (set(), 5, {0: 100})


NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("-90s", datetime(2026, 7, 1, 11, 58, 30, tzinfo=UTC)),
        ("-1.5h", datetime(2026, 7, 1, 10, 30, tzinfo=UTC)),
        ("-7d", datetime(2026, 6, 24, 12, tzinfo=UTC)),
        ("2026-07-01T12:00+02:00", datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("2026-07-01T12:00Z", NOW),
        ("2026-07-01T12:00", datetime(2026, 7, 1, 12).astimezone()),
    ],
)
def test_positions_are_parsed(text: str, expected: object) -> None:
    assert parse_position(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "Earliest", "1e3", "-1", "-m", "-999999999d", "now", "12:00", "²"])
def test_invalid_positions_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        parse_position(text, NOW)


def test_times_are_written_in_utc() -> None:
    assert time_text(1_751_371_200_000_001) == "2025-07-01T12:00:00.000001Z"
    assert (time_text(None), time_text(2**62), time_text(-1)) == (None, None, "1969-12-31T23:59:59.999999Z")


@pytest.mark.parametrize("options", [(), ("--timeout", "0.5")])
def test_a_stalled_subscription_is_an_error_with_the_reason(
    broker: testing.TestBroker, topic: str, options: tuple[str, ...]
) -> None:
    policy = {"max_redelivery_count": 0, "base_delay_ms": 0, "poison": "block"}
    with connect_sync(broker.address) as client:
        with client.subscribe(topic, "s", type="exclusive", start="earliest", failure=policy) as messages:
            next(iter(messages)).nack()
            messages.flush()
        ran = consume(broker, topic, "--subscription", "s", "--type", "exclusive", *options)
    assert ran.code == 1
    assert "message 0 in shard 0" in ran.err
    assert "poison=block" in ran.err
    assert "poison=dead-letter dead_letter_topic=" in ran.err.split("hint: ")[1]


@pytest.mark.asyncio
async def test_a_run_of_its_own_that_does_not_reach_the_end_is_an_error(broker: testing.TestBroker, topic: str) -> None:
    progress = ConsumeProgress()
    progress.begin({0: 0}, {0: 10})
    request = ConsumeOptions(
        topic, None, None, None, parse_format("text"), None, follow=False, acks=True, idle_seconds=30.0
    )
    async with connect(broker.address) as client, client.subscribe(topic, "s", start="earliest") as messages:
        with pytest.raises(
            errors.SubscriptionStalled, match=r"no message received for 30 s, but .* in shard 0; stopped"
        ):
            _conclude(request, progress, messages, asyncio.Event(), is_lost=False)
        progress.record(0, 9)
        _conclude(request, progress, messages, asyncio.Event(), is_lost=False)
