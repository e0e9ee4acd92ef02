"""What Danube's clients may ask for beyond its protocol: where to start, numbers of their own, and how fast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.frontends.danube.danube_consumer import AckWindow
from icestream.frontends.danube.extensions import ProducerSequence, parse_sequence, parse_start
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.subscription_options import StartAt, SubscriptionStart
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from tests.support.danube_handlers import DanubeHandlers, DanubeRefusal, danube_handlers
from tests.support.fake_clock import clock_with_short_sleeps
from tests.support.faulty_store import FaultyStore

TOPIC = TopicName("default", "t")


@pytest_asyncio.fixture
async def table() -> AsyncIterator[DanubeHandlers]:
    async with danube_handlers() as handlers:
        yield handlers


# --- where to start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", SubscriptionStart(StartAt.EARLIEST)),
        (" latest ", SubscriptionStart(StartAt.LATEST)),
        ("offset:0", SubscriptionStart(StartAt.OFFSET, 0)),
        ("offset:12", SubscriptionStart(StartAt.OFFSET, 12)),
        ("time:1700000000123", SubscriptionStart(StartAt.TIME, 1_700_000_000_123_000)),
        ("time:2026-11-16T12:00:00.25Z", SubscriptionStart(StartAt.TIME, 1_794_830_400_250_000)),
        ("time:2026-11-16T13:00:00+01:00", SubscriptionStart(StartAt.TIME, 1_794_830_400_000_000)),
        ("time:2026-11-16T12:00:00", SubscriptionStart(StartAt.TIME, 1_794_830_400_000_000)),
    ],
)
def test_starts(text: str, start: SubscriptionStart) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text",
    ["", "first", "offset", "offset:", "offset:x", "offset:-1", "offset:99999999999999999", "time:", "time:soon",
     "earliest:1", "latest:2", "offset:٣", "time:2026-13-01"],
)  # fmt: skip
def test_invalid_start_positions_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        parse_start(text)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", b"0"),
        ("offset:2", b"2"),
        ("time:0", b"0"),
        ("time:4000000000000", b"new"),
        ("latest", b"new"),
        ("", b"new"),
    ],
)
async def test_a_new_subscription_starts_at_the_requested_position(
    table: DanubeHandlers, start: str, first: bytes
) -> None:
    mine = await table.producer()
    for number in range(4):
        await table.send(mine, b"%d" % number)
    stream = table.receive(await table.subscribe(start=start)).stream
    await table.send(mine, b"new")
    assert (await stream.until(1))[0].payload == first


@pytest.mark.asyncio
async def test_an_invalid_start_position_creates_no_subscription(table: DanubeHandlers) -> None:
    await table.producer()
    with pytest.raises(DanubeRefusal, match="INVALID_ARGUMENT"):
        await table.subscribe(start="yesterday")
    assert not table.broker.topics.get(TOPIC).subscriptions


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_sequences() -> None:
    assert parse_sequence("1700000000:12") == ProducerSequence("1700000000", 12)
    assert parse_sequence("worker-1/ä:0") == ProducerSequence("worker-1/ä", 0)


@pytest.mark.parametrize(
    "text", ["", "5", ":5", "a:", "a:-1", "a:01", "a:b:1", "a b:1", "a:1x", f"a:{2**63}", f"{'i' * 65}:1", "a:٣"]
)
def test_invalid_sequences_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        parse_sequence(text)


def numbered(incarnation: str, number: int) -> dict[str, str]:
    return {"x-icestream-sequence": f"{incarnation}:{number}"}


@pytest.mark.asyncio
async def test_hazard_07_a_retry_with_its_number_is_stored_once(table: DanubeHandlers) -> None:
    mine = await table.producer()
    stream = table.receive(await table.subscribe()).stream
    for number in (1, 2, 2, 1, 3, 3):
        await table.send(mine, b"%d" % number, attributes=numbered("a", number))
    await stream.until(3)
    assert stream.payloads == [b"1", b"2", b"3"]
    assert stream.messages[0].msg_id.producer_id == mine


@pytest.mark.asyncio
async def test_hazard_07_a_new_incarnation_counts_from_the_start_and_the_old_one_is_fenced(
    table: DanubeHandlers,
) -> None:
    mine = await table.producer()
    for incarnation in ("a", "b"):
        for number in (1, 2):
            await table.send(mine, attributes=numbered(incarnation, number))
    assert table.broker.topics.get(TOPIC).published_messages == 4
    with pytest.raises(DanubeRefusal, match="FAILED_PRECONDITION"):
        await table.send(mine, attributes=numbered("a", 3))


@pytest.mark.asyncio
async def test_a_number_gap_is_refused_and_nothing_is_stored(table: DanubeHandlers) -> None:
    mine = await table.producer()
    await table.send(mine, attributes=numbered("a", 1))
    with pytest.raises(DanubeRefusal, match="FAILED_PRECONDITION"):
        await table.send(mine, attributes=numbered("a", 3))
    await table.send(mine, attributes=numbered("a", 2))
    assert table.broker.topics.get(TOPIC).published_messages == 2


@pytest.mark.asyncio
async def test_a_number_without_an_incarnation_is_refused(table: DanubeHandlers) -> None:
    mine = await table.producer()
    with pytest.raises(DanubeRefusal, match="INVALID_ARGUMENT"):
        await table.send(mine, attributes={"x-icestream-sequence": "5"})


@pytest.mark.asyncio
async def test_producers_with_and_without_numbers_may_share_a_name(table: DanubeHandlers) -> None:
    mine = await table.producer()
    await table.send(mine, attributes=numbered("a", 1))
    await table.send(mine)
    await table.send(mine, attributes=numbered("a", 2))
    assert table.broker.topics.get(TOPIC).published_messages == 3


@pytest.mark.asyncio
async def test_an_incarnation_is_fenced_after_a_restart_too() -> None:
    store = FaultyStore(survives_close=True)
    async with danube_handlers(store) as table:
        mine = await table.producer()
        await table.send(mine, attributes=numbered("a", 1))
        await table.send(mine, attributes=numbered("b", 1))
    async with danube_handlers(store) as table:
        with pytest.raises(DanubeRefusal, match="FAILED_PRECONDITION"):
            await table.send(mine, attributes=numbered("a", 2))
        await table.send(mine, attributes=numbered("b", 2))


# --- how fast ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_publish_rate_delays_answers_and_then_refuses() -> None:
    clock = clock_with_short_sleeps()
    async with danube_handlers(clock=clock) as table:
        mine = await table.producer()
        await table.broker.set_topic_policies(TOPIC, PolicyValues(max_publish_rate=10))
        clock.sleeps.clear()
        calls = [asyncio.ensure_future(table.send(mine)) for _ in range(20)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert max(clock.sleeps) > 0.1, "no answer was delayed"
        assert {outcome.status for outcome in outcomes if isinstance(outcome, DanubeRefusal)} == {"UNAVAILABLE"}
        assert table.broker.topics.get(TOPIC).published_messages == sum(outcome == 7 for outcome in outcomes) > 1


# --- the window -------------------------------------------------------------------------------------------------------


def test_the_window_is_the_number_of_acks_in_two_seconds() -> None:
    window = AckWindow(0)
    assert window.size == limits.DANUBE_WINDOW_MIN
    assert not window.acked(50, 50)
    assert window.acked(50, 100)
    assert window.size == 2000
    assert window.acked(1, 10_100)
    assert window.size == limits.DANUBE_WINDOW_MIN
    window.acked(10**9, 10_300)
    assert window.size == limits.DANUBE_WINDOW_MAX


@pytest.mark.asyncio
async def test_a_long_lived_numbered_producer_keeps_its_names() -> None:
    """Without renewal its names would expire after a week, and its sequence numbers with them."""
    async with danube_handlers() as table:
        mine = await table.producer()
        await table.send(mine, attributes=numbered("a", 1))
        keys = [f"/danube/producers/{mine}", f"/danube/incarnations/{mine}", "/producers/default/t/danube/p"]
        before = [await table.broker.store.get(key) for key in keys]
        ids = table.service.producers._ids
        for key in list(ids._written_ms):
            ids._written_ms[key] -= limits.NAME_RENEWAL_MS
        assert await table.is_known(pb.HealthCheckRequest.Producer, mine)
        after = [await table.broker.store.get(key) for key in keys]
        for old, new in zip(before, after, strict=True):
            assert old is not None
            assert new is not None
            assert new.mod_revision > old.mod_revision
