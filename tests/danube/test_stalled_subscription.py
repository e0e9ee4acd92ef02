"""A stalled subscription ends the streams of its consumers with the reason; the clients come again by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.frontends.danube.stall_watch import StallWatch
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, RedeliveryBackoff
from icestream.model.topic_name import TopicName
from tests.support.danube_broker import DanubeBroker, danube_broker
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = TopicName("default", "t")
BLOCK = FailurePolicy(0, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.BLOCK)
DROP = FailurePolicy(0, 30_000, 0, 0, RedeliveryBackoff.FIXED, PoisonPolicy.DROP)


@pytest_asyncio.fixture
async def danube(tmp_path: Path, wire: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DanubeBroker]:
    monkeypatch.setattr(limits, "DANUBE_BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr(limits, "CLIENT_STALL_SECONDS", 0.05)
    async with danube_broker(tmp_path) as broker:
        yield broker


async def test_a_blocked_subscription_ends_the_stream_with_reason_and_hint(
    danube: DanubeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    await danube.broker.set_failure_policy(TOPIC, "s", BLOCK)
    await producer.send(b"poison")
    await received.consumer.nack(await received.next(ack=False), delay_ms=0, reason="it is poison")
    await producer.send(b"behind it")
    await until(lambda: caplog.text.count("is stalled at offset 0") >= 2)
    assert "UNAVAILABLE" in caplog.text
    assert "(it is poison), and the failure policy of subscription s is poison=block" in caplog.text
    assert "icestream sub policy /default/t s poison=dead-letter" in caplog.text
    assert received.queue.empty()
    await danube.broker.set_failure_policy(TOPIC, "s", DROP)
    assert await received.payloads(1) == [b"behind it"], "the client came again by itself"


async def test_unreadable_messages_end_the_stream_with_the_reason(
    danube: DanubeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    delivery = danube.broker.subscription(TOPIC, "s").deliveries[0]
    delivery.report_unreadable(0, errors.LakeAway("the lake process is away", hint="start it again"))
    await until(lambda: "is stalled at offset 0: the lake process is away (start it again)" in caplog.text)
    await producer.send(b"m")
    assert await received.payloads(1) == [b"m"], "the client came again by itself"


async def test_a_client_with_unacked_messages_keeps_its_stream(
    danube: DanubeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Ending the stream would deliver the unacked messages a second time."""
    producer = await danube.producer("/default/t")
    received = await danube.consumer("/default/t")
    await danube.broker.set_failure_policy(TOPIC, "s", BLOCK)
    await producer.send(b"poison")
    poison = await received.next(ack=False)
    await producer.send(b"held")
    unacked = await received.next(ack=False)
    await received.consumer.nack(poison, delay_ms=0)
    (delivery,) = danube.broker.subscription(TOPIC, "s").deliveries
    await until(lambda: bool(delivery.stalls))
    (consumer,) = danube.broker.subscription(TOPIC, "s").consumers.values()
    assert delivery.has_unacked(consumer)
    await received.consumer.ack(unacked)
    await until(lambda: "is stalled at offset 0" in caplog.text)
    assert received.queue.empty()


async def test_the_stall_watch_waits_for_unacked_messages_and_idle_streams() -> None:
    holding = [True, False]
    ended: list[errors.IcestreamError] = []
    watch = StallWatch("subscription s of /default/t", lambda: holding.pop(0), ended.append)
    watch.stalled({"kind": "blocked", "offset": 7, "reason": "poison", "hint": ""})
    assert watch._timer is None, "there is no stream yet"
    watch.begin()
    watch.delivered()
    watch._on_timeout()
    assert (len(holding), ended) == (2, []), "a message of another key came"
    watch._on_timeout()
    assert (len(holding), ended) == (1, []), "the client has work to do"
    watch._on_timeout()
    assert [error.message for error in ended] == ["subscription s of /default/t is stalled at offset 7: poison"]
    watch.close()


async def test_the_stall_watch_is_silent_when_the_stall_ends() -> None:
    watch = StallWatch("subscription s of /default/t", lambda: False, lambda error: pytest.fail(str(error)))
    watch.begin()
    watch.stalled({"kind": "blocked", "offset": 7, "reason": "poison", "hint": ""})
    watch.resumed({"kind": "blocked"})
    assert not watch.is_stalled
    assert watch._timer is None
