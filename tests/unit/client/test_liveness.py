"""A connection that is silent: a client that was cut off without a word is back soon after the repair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icestream
from icestream import errors, limits
from icestream.client.liveness import liveness
from icestream.rpc.backoff import RetryBackoff
from icestream.runtime.randomness import SeededRandomness, SystemRandomness
from icestream.testing import TestBroker
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.fake_clock import clock_with_short_sleeps
from tests.support.until import until

TOPIC = "/default/orders"
WAIT_SECONDS = 30.0
RECOVERY_SECONDS = 3.0


# --- the bounds -------------------------------------------------------------------------------------------------------


def test_a_client_with_its_defaults_is_back_within_three_seconds_of_the_repair() -> None:
    bounds = liveness(limits.CLIENT_HEARTBEAT_SECONDS_DEFAULT)
    assert bounds.recovery_seconds < RECOVERY_SECONDS
    assert bounds.ping_seconds + bounds.doubt_seconds <= RECOVERY_SECONDS, (
        "TCP repairs shorter outages by itself in that time"
    )
    assert bounds.timeout_seconds == 30


def test_tries_to_connect_follow_each_other_within_a_second() -> None:
    backoff = RetryBackoff(SystemRandomness(), last_seconds=limits.CLIENT_RECONNECT_SECONDS_MAX)
    assert all(0 < backoff.next_seconds() <= 1.0 for _ in range(100))


@given(st.floats(0.001, 1e6), st.integers(0, 1000))
def test_the_timeout_grows_to_its_bound_in_order(heartbeat: float, replacements: int) -> None:
    bounds, more = liveness(heartbeat, replacements), liveness(heartbeat, replacements + 1)
    assert heartbeat <= bounds.ping_seconds <= more.ping_seconds <= heartbeat * limits.CLIENT_PATIENCE_MAX
    assert 0 < bounds.grace_seconds < bounds.doubt_seconds < bounds.ping_seconds
    assert bounds.ping_seconds + bounds.doubt_seconds < bounds.timeout_seconds <= more.timeout_seconds
    assert more.timeout_seconds <= 2 * limits.CLIENT_PATIENCE_MAX * heartbeat


# --- a real broker behind a proxy ------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(
    heartbeat: float = 2.0,
) -> AsyncIterator[tuple[TestBroker, CuttingProxy, icestream.Client]]:
    """Through the proxy, with a clock on which every wait takes a hundredth."""
    async with (
        icestream.testing.broker() as broker,
        cutting_proxy(broker.address) as proxy,
        icestream.connect(
            proxy.address, heartbeat=heartbeat, clock=clock_with_short_sleeps(), randomness=SeededRandomness(1)
        ) as client,
    ):
        yield broker, proxy, client


@pytest.mark.asyncio
async def test_a_client_behind_a_black_hole_reconnects_when_new_connections_work() -> None:
    async with (
        connected(heartbeat=20.0) as (_, proxy, client),
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s", type="exclusive") as messages,
    ):
        await producer.send(b"0")
        (await anext(messages)).ack()
        proxy.blackhole()
        before = proxy.connections
        sent = [producer.send(b"%d" % number) for number in range(1, 10)]
        await until(lambda: proxy.connections > before + limits.CLIENT_CONNECTS_MAX)
        assert client.is_connected, "it looks for another connection before it gives this one up"
        proxy.heal()
        async with asyncio.timeout(WAIT_SECONDS):
            assert [message_id.offset for message_id in await asyncio.gather(*sent)] == list(range(1, 10))
            assert [int((await anext(messages)).payload) for _ in range(9)] == list(range(1, 10))
        assert client.connections == 2


@pytest.mark.asyncio
async def test_an_idle_consumer_behind_a_black_hole_gets_later_messages_after_the_repair() -> None:
    async with (
        connected() as (broker, proxy, client),
        icestream.connect(broker.address) as other,
        other.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s") as messages,
    ):
        proxy.blackhole()
        before = proxy.connections
        await producer.send(b"unheard")
        await until(lambda: proxy.connections > before)
        proxy.heal()
        assert (await asyncio.wait_for(anext(messages), WAIT_SECONDS)).payload == b"unheard"


@pytest.mark.asyncio
async def test_hanging_connection_attempts_do_not_delay_the_next() -> None:
    """The connection is known to be lost, and every try to open another one hangs: none holds up the next."""
    async with connected() as (_, proxy, client):
        proxy.blackhole()
        before = proxy.connections
        proxy.cut()
        await until(lambda: not client.is_connected)
        await until(lambda: proxy.connections > before + 2 * limits.CLIENT_CONNECTS_MAX)
        assert not client.is_connected
        proxy.heal()
        await until(lambda: client.is_connected)
        assert await client.list_topics() == []


@pytest.mark.asyncio
async def test_a_slow_broker_keeps_its_connections() -> None:
    async with connected(heartbeat=20.0) as (broker, proxy, client):
        answers = proxy.hold_answers()
        listing = asyncio.create_task(client.list_topics())
        before = proxy.connections
        await until(lambda: proxy.connections > before)  # it tries beside the old one, which is not answered either
        answers.set()
        assert await asyncio.wait_for(listing, WAIT_SECONDS) == []
        await until(lambda: len(broker.node.native._connections) == 1)
        assert client.connections == 1


@pytest.mark.asyncio
async def test_a_silent_connection_is_closed() -> None:
    async with connected() as (_, proxy, client):
        proxy.blackhole()
        await until(lambda: not client.is_connected)
        assert isinstance(client._session._last_error, errors.ConnectionLost)
        proxy.heal()
        await until(lambda: client.is_connected)
        assert await client.list_topics() == []


@pytest.mark.asyncio
async def test_a_client_closed_while_reconnecting_leaves_no_connection() -> None:
    async with connected() as (broker, proxy, client):
        proxy.blackhole()
        before = proxy.connections
        await until(lambda: proxy.connections > before)
        await client.close()
        proxy.cut()
        await until(lambda: not broker.node.native._connections)
        assert not client.is_connected
