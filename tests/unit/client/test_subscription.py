"""A subscription against a real broker in this process: messages, acks, seeks, and what ends it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

import icestream
from icestream import errors
from icestream.model.shard import DeclaredGap, GapState
from icestream.model.topic_name import TopicName
from icestream.rpc import frame
from icestream.testing import TestBroker
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
WAIT_SECONDS = 20.0
FAST = {"base_delay_ms": 0, "max_delay_ms": 10_000, "ack_timeout_ms": 60_000}


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[TestBroker]:
    async with icestream.testing.broker() as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: TestBroker) -> AsyncIterator[icestream.Client]:
    async with icestream.connect(broker.address) as connected:
        yield connected


async def publish(client: icestream.Client, count: int, shards: int = 1, first: int = 0) -> None:
    async with client.producer(TOPIC, shards=shards) as producer:
        for number in range(first, first + count):
            producer.send(b"%d" % number, key=b"%d" % number if shards > 1 else None)


async def take(messages: icestream.Subscription, count: int) -> list[icestream.Message]:
    async with asyncio.timeout(WAIT_SECONDS):
        return [await anext(messages) for _ in range(count)]


def numbers(messages: list[icestream.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


def lag(broker: TestBroker, subscription: str = "s") -> int:
    return broker.node.broker.subscription(TopicName.parse(TOPIC), subscription).lag


async def test_messages_arrive_in_order_and_acks_are_counted(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 500)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        received = await take(messages, 500)
        assert numbers(received) == list(range(500))
        assert messages.is_active
        for message in received[:400]:
            message.ack()
        await messages.flush()
        assert lag(broker) == 100
        for message in received[400:]:
            await message.ack()
        await messages.flush()
        assert lag(broker) == 0


async def test_messages_of_many_keys_arrive_complete_in_few_frames(
    client: icestream.Client, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    picks: list[int] = []
    decode = frame.decode_pick
    monkeypatch.setattr(frame, "decode_pick", lambda body: picks.append(1) or decode(body))
    async with client.producer(TOPIC) as producer:
        for number in range(1_000):
            headers = {"number": str(number)} if number % 3 == 0 else None
            producer.send(b"%d" % number, key=b"%d" % (number // 2 % 100), headers=headers)
    seen: list[int] = []
    failed: set[int] = set()
    async with client.subscribe(TOPIC, "s", type="key-shared", start="earliest", failure=FAST) as messages:
        while len(seen) < 1_000:
            (message,) = await take(messages, 1)
            number = int(message.payload)
            assert (message.offset, message.key) == (number, b"%d" % (number // 2 % 100))
            assert message.headers == ({"number": str(number)} if number % 3 == 0 else {})
            assert message.redelivery_count == (number in failed)
            if number % 50 == 7 and number not in failed:
                failed.add(number)
                message.nack()
                continue
            message.ack()
            seen.append(number)
        await messages.flush()
    assert sorted(seen) == list(range(1_000))
    assert lag(broker) == 0
    for key in range(100):
        of_key = [number for number in seen if number // 2 % 100 == key]
        assert of_key == sorted(of_key), "the order of a key"
    assert picks
    assert len(picks) < 500


async def test_batches_have_the_offsets_of_messages_that_do_not_follow_one_another(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(100):
            producer.send(b"%d" % number, key=b"%d" % (number // 2))
    rows_read: list[tuple[int, int]] = []
    async with client.subscribe(TOPIC, "s", type="key-shared", start="earliest") as messages, asyncio.timeout(20):
        async for batch in messages.batches():
            rows = batch.data
            rows_read += zip(rows["offset"].to_pylist(), map(int, rows["payload"].to_pylist()), strict=True)
            batch.ack()
            if len(rows_read) >= 100:
                break
    assert sorted(rows_read) == [(number, number) for number in range(100)]


async def test_unacked_messages_go_to_the_next_consumer(client: icestream.Client) -> None:
    await publish(client, 10)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        for message in await take(messages, 10):
            if message.offset % 2:
                message.ack()
    async with client.subscribe(TOPIC, "s") as messages:
        assert numbers(await take(messages, 5)) == [0, 2, 4, 6, 8]


async def test_acks_of_a_tick_are_sent_before_the_subscription_closes(
    client: icestream.Client, broker: TestBroker
) -> None:
    await publish(client, 3)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        for message in await take(messages, 3):
            message.ack()
    assert lag(broker) == 0


async def test_the_application_gets_more_than_the_prefetch_and_never_buffers_more(client: icestream.Client) -> None:
    await publish(client, 3000)
    async with client.subscribe(TOPIC, "s", start="earliest", prefetch=20) as messages:
        for number in range(3000):
            message = (await take(messages, 1))[0]
            assert int(message.payload) == number
            assert messages.waiting_messages <= 20
            message.ack()


async def test_several_tasks_share_one_subscription(client: icestream.Client) -> None:
    await publish(client, 300)
    payload_numbers: list[int] = []
    async with client.subscribe(TOPIC, "s", start="earliest", prefetch=8) as messages:

        async def work() -> None:
            async for message in messages:
                await asyncio.sleep(0)
                payload_numbers.append(int(message.payload))
                message.ack()
                if len(payload_numbers) == 300:
                    await messages.close()

        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*(work() for _ in range(5)))
    assert sorted(payload_numbers) == list(range(300))


async def test_all_shards_are_delivered_each_in_order(client: icestream.Client) -> None:
    await publish(client, 200, shards=4)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        received = await take(messages, 200)
    assert sorted(numbers(received)) == list(range(200))
    for shard in range(4):
        offsets = [message.offset for message in received if message.shard == shard]
        assert offsets == list(range(len(offsets)))


# --- failures and redelivery ------------------------------------------------------------------------------------------


async def test_a_nacked_message_is_redelivered_with_its_failure_count(client: icestream.Client) -> None:
    await publish(client, 3)
    async with client.subscribe(TOPIC, "s", start="earliest", failure=FAST) as messages:
        first = await take(messages, 3)
        await first[1].nack()
        (again,) = await take(messages, 1)
    assert (again.offset, again.redelivery_count) == (1, 1)


async def test_a_nack_delays_redelivery_as_requested(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 2)
    async with client.subscribe(TOPIC, "s", start="earliest", failure=FAST) as messages:
        late, soon = await take(messages, 2)
        late.nack(delay=0.2)
        soon.nack()
        assert numbers(await take(messages, 2)) == [1, 0]
        with pytest.raises(errors.InvalidInput, match="a week"):
            late.nack(delay=1e9)


async def test_deduplication_hands_a_message_out_again_only_after_a_nack(client: icestream.Client) -> None:
    await publish(client, 3)
    policy = {**FAST, "ack_timeout_ms": 50, "max_redelivery_count": 100}
    async with client.subscribe(TOPIC, "s", start="earliest", failure=policy, dedup=True) as messages:
        first = await take(messages, 3)
        first[0].nack()
        (again,) = await take(messages, 1)
        assert again.offset == 0
        with pytest.raises(TimeoutError):  # offsets 1 and 2 time out at the broker and come again meanwhile
            await asyncio.wait_for(anext(messages), 0.4)
        assert messages.waiting_messages == 0


async def test_without_deduplication_unacked_messages_are_redelivered_after_the_timeout(
    client: icestream.Client,
) -> None:
    await publish(client, 1)
    policy = {**FAST, "ack_timeout_ms": 50, "max_redelivery_count": 100}
    async with client.subscribe(TOPIC, "s", start="earliest", failure=policy) as messages:
        (first,) = await take(messages, 1)
        (again,) = await take(messages, 1)
        assert (first.redelivery_count, again.redelivery_count) == (0, 1)


HURRIED = {**FAST, "ack_timeout_ms": 40, "max_redelivery_count": 1000}


@pytest.mark.parametrize("how", ["ack", "ack_through", "batch"])
async def test_an_acked_message_is_not_delivered_again_although_a_copy_is_buffered(
    client: icestream.Client, how: str
) -> None:
    """The ack time-out is over, a copy of each message waits: an ack drops it before the next one is handed out."""
    await publish(client, 6)
    kind: Any = "exclusive" if how == "ack_through" else "shared"
    async with client.subscribe(TOPIC, "s", type=kind, start="earliest", failure=HURRIED) as messages:
        if how == "batch":
            (batch,) = [await anext(messages.batches())]
            await until(lambda: messages.waiting_messages == 6)
            batch.ack()
        else:
            first = await take(messages, 6)
            await until(lambda: messages.waiting_messages == 6)
            again = await take(messages, 1)  # of the copies: the others are still being handed out
            assert numbers(again) == [0]
            if how == "ack":
                for message in first:
                    message.ack()
            else:
                messages.ack_through(first[-1])
        assert messages.waiting_messages == 0
        await publish(client, 1, first=6)
        assert numbers(await take(messages, 1)) == [6]


async def test_only_copies_of_acked_messages_are_dropped(client: icestream.Client) -> None:
    await publish(client, 5)
    async with client.subscribe(TOPIC, "s", start="earliest", failure=HURRIED) as messages:
        first = await take(messages, 5)
        await until(lambda: messages.waiting_messages == 5)
        first[1].ack()
        first[3].ack()
        assert numbers(await take(messages, 3)) == [0, 2, 4]


async def test_a_cumulative_ack_covers_earlier_messages(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 10)
    async with client.subscribe(TOPIC, "s", type="exclusive", start="earliest") as messages:
        received = await take(messages, 10)
        await messages.ack_through(received[6])
        await messages.flush()
        assert lag(broker) == 3


async def test_shared_subscriptions_have_no_cumulative_ack(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 1)
    async with client.subscribe(TOPIC, "s", type="shared", start="earliest") as messages:
        (message,) = await take(messages, 1)
        with pytest.raises(errors.InvalidInput, match="no cumulative ack"):
            messages.ack_through(message)
        message.ack()
        await messages.flush()
    assert lag(broker) == 0


async def test_a_message_of_another_subscription_is_not_acked_by_mistake(client: icestream.Client) -> None:
    await publish(client, 3)
    async with (
        client.subscribe(TOPIC, "s", type="exclusive", start="earliest") as messages,
        client.subscribe(TOPIC, "other", type="exclusive", start="earliest") as others,
    ):
        foreign = await anext(others)
        with pytest.raises(errors.InvalidInput, match=r"a message of subscription other.*that delivered it"):
            messages.ack_through(foreign)


# --- where it stands --------------------------------------------------------------------------------------------------


async def test_a_subscription_starts_at_the_requested_position(client: icestream.Client) -> None:
    await publish(client, 5)
    await asyncio.sleep(0.01)
    middle = datetime.now(UTC)
    await asyncio.sleep(0.01)
    await publish(client, 5, first=5)
    starts: list[tuple[Any, int]] = [("earliest", 0), (3, 3), (middle, 5)]
    for number, (start, expected) in enumerate(starts):
        async with client.subscribe(TOPIC, f"s{number}", start=start) as messages:
            assert numbers(await take(messages, 1)) == [expected]
    async with client.subscribe(TOPIC, "latest") as messages:
        await publish(client, 1, first=10)
        assert numbers(await take(messages, 1)) == [10]


@pytest.mark.parametrize("start", ["soon", True, -1, 1.5, datetime(2026, 1, 1)])
async def test_an_invalid_start_position_is_refused(client: icestream.Client, start: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        client.subscribe(TOPIC, "s", start=start)


@pytest.mark.parametrize("dedup", [False, True])
async def test_hazard_48_a_seek_delivers_again_and_older_acks_do_not_count(
    client: icestream.Client, broker: TestBroker, dedup: bool
) -> None:
    await publish(client, 200)
    async with client.subscribe(TOPIC, "s", start="earliest", prefetch=50, dedup=dedup) as messages:
        before = await take(messages, 100)
        await messages.seek(10)
        for message in before:
            message.ack()
        await messages.flush()
        assert lag(broker) == 190
        assert numbers(await take(messages, 190)) == list(range(10, 200))
        await messages.seek("latest")
        assert lag(broker) == 0


async def test_a_seek_by_another_client_is_followed(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 100)
    async with (
        icestream.connect(broker.address) as other,
        client.subscribe(TOPIC, "s", start="earliest", prefetch=30) as messages,
        other.subscribe(TOPIC, "s", prefetch=1) as theirs,
    ):
        await take(messages, 20)
        await theirs.close()
        await theirs.seek(0)
        seen: list[int] = []
        while not seen or seen[-1] != 99:
            seen += numbers(await take(messages, 1))
        assert seen[seen.index(0) :] == list(range(100))


async def test_a_seek_invalidates_messages_being_delivered(client: icestream.Client, broker: TestBroker) -> None:
    await client.create_topic(TOPIC)
    async with icestream.connect(broker.address) as other, client.subscribe(TOPIC, "s") as messages:
        theirs = await other.subscribe(TOPIC, "s")
        await theirs.close()
        await publish(client, 40)
        await take(messages, 10)
        await theirs.seek(3)
        await messages.flush()  # what the seek brought is here
        assert numbers(await take(messages, 37)) == list(range(3, 40))


async def test_gaps_are_reported(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 5)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        await take(messages, 2)
        delivery = broker.node.broker.subscription(TopicName.parse(TOPIC), "s").deliveries[0]
        delivery.skip_gap(DeclaredGap(delivery.stream.key, 3, 5, 0, "a test", GapState.UNUSED))
        await messages.flush()
        assert list(messages.gaps) == [icestream.Gap(0, 3, 5, GapState.UNUSED, "a test")]


# --- kinds and ends ---------------------------------------------------------------------------------------------------


async def test_an_exclusive_subscription_has_one_consumer(client: icestream.Client) -> None:
    await publish(client, 1)
    async with client.subscribe(TOPIC, "s", type="exclusive"):
        with pytest.raises(errors.SubscriptionTaken):
            await client.subscribe(TOPIC, "s", type="exclusive")


async def test_a_failover_consumer_is_notified_of_its_takeover(client: icestream.Client) -> None:
    await publish(client, 4)
    first = await client.subscribe(TOPIC, "s", type="failover", start="earliest")
    async with client.subscribe(TOPIC, "s", type="failover") as second:
        for message in await take(first, 2):
            message.ack()
        assert (first.is_active, second.is_active) == (True, False)
        await first.close()
        assert numbers(await take(second, 2)) == [2, 3]
        assert second.is_active


async def test_keys_stay_with_one_consumer(client: icestream.Client) -> None:
    async with (
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s", type="key-shared", key_patterns=["a*"]) as first,
        client.subscribe(TOPIC, "s", type="key-shared", key_patterns=["b*"]) as other,
    ):
        for key in ("a1", "b1", "a2", "b2"):
            producer.send(key.encode(), key=key)
        assert [message.payload for message in await take(first, 2)] == [b"a1", b"a2"]
        assert [message.payload for message in await take(other, 2)] == [b"b1", b"b2"]


async def test_a_consumer_of_the_same_name_replaces_the_old_one(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 2)
    async with (
        icestream.connect(broker.address) as other,
        client.subscribe(TOPIC, "s", consumer="c", start="earliest") as old,
        other.subscribe(TOPIC, "s", consumer="c") as new,
    ):
        assert numbers(await take(new, 2)) == [0, 1]
        with pytest.raises(errors.ConsumerClosed, match="connected again"):
            await take(old, 3)
    async with client.subscribe(TOPIC, "s") as messages:  # the connection went on
        assert numbers(await take(messages, 2)) == [0, 1]


async def test_a_deleted_subscription_ends_its_consumers(client: icestream.Client) -> None:
    await publish(client, 1)
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        (message,) = await take(messages, 1)
        await client.delete_subscription(TOPIC, "s")
        with pytest.raises(errors.ConsumerClosed, match="deleted"):
            await take(messages, 1)
        with pytest.raises(errors.ConsumerClosed):
            message.ack()


async def test_an_unopened_subscription_raises(client: icestream.Client) -> None:
    messages = client.subscribe(TOPIC, "s")
    with pytest.raises(errors.ClientClosed, match="not open yet"):
        await anext(messages)
    with pytest.raises(errors.ClientClosed, match="not open yet"):
        await messages.seek("latest")


async def test_close_ends_the_iteration_of_all_waiting_tasks(client: icestream.Client) -> None:
    await publish(client, 1)
    messages = await client.subscribe(TOPIC, "s")

    async def count() -> int:
        return len([message async for message in messages])

    waiting = asyncio.create_task(count())
    await asyncio.sleep(0)
    await messages.close()
    assert await asyncio.wait_for(waiting, WAIT_SECONDS) == 0


async def test_an_idle_consumer_buffers_at_most_its_prefetch(client: icestream.Client) -> None:
    async with client.subscribe(await topic(client), "s", prefetch=100) as messages, client.producer(TOPIC) as producer:
        for _ in range(50):
            await asyncio.gather(*(producer.send(bytes(1000)) for _ in range(100)))
        await messages.flush()
        assert 0 < messages.waiting_messages <= 100


async def topic(client: icestream.Client) -> str:
    await client.create_topic(TOPIC)
    return TOPIC


async def test_messages_not_taken_in_time_report_a_slow_consumer(client: icestream.Client) -> None:
    await publish(client, 3)
    async with client.subscribe(TOPIC, "s", start="earliest", take_timeout=0.05) as messages:
        await take(messages, 1)
        await until(lambda: messages.error is not None)
        with pytest.raises(errors.SlowConsumer, match="2 messages were not taken"):
            await take(messages, 1)
    async with client.subscribe(TOPIC, "s") as messages:  # nothing is lost, and the connection went on
        assert numbers(await take(messages, 3)) == [0, 1, 2]


async def test_a_buffer_that_overflows_is_a_slow_consumer(client: icestream.Client) -> None:
    async with (
        client.subscribe(await topic(client), "s", buffer_bytes=100_000) as messages,
        client.producer(TOPIC) as producer,
    ):
        for _ in range(20):
            await producer.send(bytes(50_000))
        await until(lambda: messages.error is not None)
        with pytest.raises(errors.SlowConsumer, match="100000 bytes"):
            await take(messages, 1)


async def test_batches_are_arrow_and_are_acked_as_a_whole(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 1000)
    seen: list[bytes] = []
    async with client.subscribe(TOPIC, "s", start="earliest") as messages:
        async with asyncio.timeout(WAIT_SECONDS):
            async for batch in messages.batches(max_messages=300):
                assert 0 < len(batch) <= 300
                seen += batch.data.column("payload").to_pylist()
                batch.ack()
                if len(seen) == 1000:
                    break
        await messages.flush()
    assert seen == [b"%d" % number for number in range(1000)]
    assert lag(broker) == 0


async def test_a_consumer_of_keys_may_have_several_messages_of_one_at_a_time(client: icestream.Client) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(20):
            producer.send(b"%d" % number, key=b"same")
    strict = client.subscribe(TOPIC, "strict", type="key-shared", start="earliest")
    several = client.subscribe(TOPIC, "several", type="key-shared", start="earliest", messages_per_key=8)
    async with strict as one_by_one, several as messages:
        assert numbers(await take(messages, 8)) == list(range(8)), "without an ack"
        (first,) = await take(one_by_one, 1)
        assert one_by_one.waiting_messages == 0, "one at a time, unless it asks for more"
        first.ack()
        assert numbers(await take(one_by_one, 1)) == [1]


@pytest.mark.parametrize("wrong", [{"messages_per_key": 0}, {"messages_per_key": True}, {"messages_per_key": 10**6}])
async def test_an_invalid_key_window_is_refused(client: icestream.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput, match="messages_per_key"):
        client.subscribe(TOPIC, "s", type="key-shared", **wrong)
    with pytest.raises(errors.InvalidInput, match="does not apply"):
        client.subscribe(TOPIC, "s", type="shared", messages_per_key=2)


# --- stalls -----------------------------------------------------------------------------------------------------------


def unreadable(broker: TestBroker, offset: int, reason: str = "the bucket does not answer") -> None:
    delivery = broker.node.broker.subscription(TopicName.parse(TOPIC), "s").delivery(0)
    delivery.report_unreadable(offset, errors.StorageUnavailable(reason, hint="look at it"))


async def test_unreadable_messages_raise_and_the_subscription_continues(
    client: icestream.Client, broker: TestBroker
) -> None:
    await publish(client, 3)
    async with client.subscribe(TOPIC, "s", start="earliest", stall_timeout=0.05) as messages:
        assert numbers(await take(messages, 3)) == [0, 1, 2]
        unreadable(broker, 3)
        for _ in range(2):  # as long as it lasts
            with pytest.raises(errors.SubscriptionStalled, match="shard 0 from offset 3 on: the bucket") as stalled:
                await take(messages, 1)
        assert stalled.value.hint == "look at it"
        assert [(stall.kind, stall.shard, stall.offset) for stall in messages.stalls] == [("unreadable", 0, 3)]
        await publish(client, 1, first=3)
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    assert (await anext(messages)).payload == b"3"
                    break
                except errors.SubscriptionStalled:
                    continue
        broker.node.broker.subscription(TopicName.parse(TOPIC), "s").delivery(0).report_readable(3, 4)
        await until(lambda: not messages.stalls)
        await publish(client, 1, first=4)
        assert numbers(await take(messages, 1)) == [4]


async def test_a_stall_is_shown_and_not_raised_without_a_timeout(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 1)
    async with client.subscribe(TOPIC, "s", start="latest", stall_timeout=None) as messages:
        unreadable(broker, 1)
        await until(lambda: len(messages.stalls) == 1)
        assert messages.stalls[0].reason == "the bucket does not answer"
        await publish(client, 1, first=1)
        assert numbers(await take(messages, 1)) == [1]


async def test_a_blocking_message_raises_immediately(client: icestream.Client, broker: TestBroker) -> None:
    await publish(client, 2)
    policy = {**FAST, "max_redelivery_count": 0, "poison": "block"}
    async with client.subscribe(TOPIC, "s", type="exclusive", start="earliest", failure=policy) as messages:
        first, _ = await take(messages, 2)
        await first.nack()
        with pytest.raises(errors.SubscriptionStalled, match="poison=block"):
            await take(messages, 1)
        first.ack()
        await until(lambda: not messages.stalls)
        await publish(client, 1, first=2)
        assert numbers(await take(messages, 1)) == [2]


BLOCK = {**FAST, "max_redelivery_count": 0, "poison": "block"}


async def test_a_blocking_message_is_named_and_a_seek_after_it_resumes(client: icestream.Client) -> None:
    await publish(client, 3)
    async with client.subscribe(TOPIC, "s", type="exclusive", start="earliest", failure=BLOCK) as messages:
        (await take(messages, 3))[1].nack()
        with pytest.raises(errors.SubscriptionStalled) as stalled:
            await take(messages, 1)
        details = stalled.value.details
        assert (details["kind"], details["shard"], details["offset"]) == ("blocked", 0, 1)
        assert stalled.value.hint
        await messages.seek(details["offset"] + 1, shard=details["shard"])
        assert numbers(await take(messages, 1)) == [2]
        await until(lambda: not messages.stalls)


async def test_a_blocked_shard_raises_while_other_shards_continue(client: icestream.Client) -> None:
    async with client.producer(TOPIC, shards=2) as producer:
        keys = {zlib.crc32(b"%d" % number) % 2: b"%d" % number for number in range(20)}
        for key in keys.values():
            await producer.send(b"first", key=key)
        async with client.subscribe(TOPIC, "s", type="exclusive", start="earliest", failure=BLOCK) as messages:
            first = [message for _ in range(2) for message in await take(messages, 1)]
            first[0].nack()
            await until(lambda: messages.stalls)
            await producer.send(b"more", key=keys[first[1].shard])
            await until(lambda: messages.waiting_messages)
            with pytest.raises(errors.SubscriptionStalled, match=f"shard {first[0].shard} "):
                await take(messages, 1)
            assert [message.payload for message in await take(messages, 1)] == [b"more"]


async def test_batches_and_a_consumer_that_joins_later_hear_of_a_blocked_message(client: icestream.Client) -> None:
    await publish(client, 1)
    async with client.subscribe(TOPIC, "s", start="earliest", failure=BLOCK) as messages:
        (await anext(messages.batches())).nack()
        with pytest.raises(errors.SubscriptionStalled, match="poison=block"):
            await asyncio.wait_for(anext(messages.batches()), WAIT_SECONDS)
        async with client.subscribe(TOPIC, "s") as later:
            with pytest.raises(errors.SubscriptionStalled, match="poison=block"):
                await asyncio.wait_for(anext(later), WAIT_SECONDS)


@pytest.mark.parametrize("seconds", [0, -1, "2"])
async def test_a_stall_timeout_is_a_number_of_seconds(client: icestream.Client, seconds: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="stall_timeout"):
        client.subscribe(TOPIC, "s", stall_timeout=seconds)
