"""The admin calls over the local socket of a real node: every method, and what it must not do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.admin_api.all_calls import LOCAL_CALLS
from icestream.internal_api.backup_calls import BACKUP_METHODS
from icestream.internal_api.fence_calls import FENCE_METHODS
from icestream.internal_api.metadata_calls import METADATA_METHODS
from icestream.internal_api.pipeline_calls import PIPELINE_METHODS
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.rpc import handshake
from icestream.rpc.document import Document
from icestream.rpc.link import Link, open_link
from tests.support.node_settings import node_settings
from tests.support.recording_consumer import RecordingConsumer

pytestmark = pytest.mark.asyncio
ORDERS = TopicName("default", "orders")
TOPIC = {"topic": "/default/orders"}
SUB = {**TOPIC, "subscription": "s"}


class AdminClient:
    """A node, and a client of its local socket."""

    def __init__(self, node: BrokerNode, link: Link) -> None:
        self.node = node
        self.link = link

    async def __call__(self, method: str, /, **arguments: Any) -> Document:
        return await self.link.call(method, arguments)

    async def refused(self, kind: type[errors.IcestreamError], method: str, /, **arguments: Any) -> str:
        with pytest.raises(kind) as caught:
            await self(method, **arguments)
        return str(caught.value)

    async def publish(self, count: int, shard: int = 0) -> None:
        producer = await self.node.broker.open_producer(ORDERS, "p")
        for number in range(count):
            numbering = Numbering(producer.id, producer.epoch, number)
            stored = self.node.broker.publish(producer, shard, encode_block(1, {envelope.PAYLOAD: [b"x"]}, numbering))
            await stored


@contextlib.asynccontextmanager
async def operated(data_dir: Path, storage: str = "iceberg", **sections: Any) -> AsyncIterator[AdminClient]:
    node = await BrokerNode.start(node_settings(data_dir, storage, **sections))
    try:
        link = await open_link(node.settings.local_socket, "test")
        yield AdminClient(node, link)
        link.close()
    finally:
        await node.stop()


@pytest_asyncio.fixture
async def ask(tmp_path: Path) -> AsyncIterator[AdminClient]:
    async with operated(tmp_path / "data") as operator:
        yield operator


# --- namespaces and topics --------------------------------------------------------------------------------------------


async def test_namespaces_are_created_and_deleted(ask: AdminClient) -> None:
    created = await ask("create_namespace", namespace="shop", policies={"max_producers": 2})
    assert (created["namespace"], created["policies"]["max_producers"]) == ("shop", 2)
    assert [item["namespace"] for item in (await ask("list_namespaces"))["items"]] == ["default", "shop", "system"]
    await ask.refused(errors.AlreadyExists, "create_namespace", namespace="shop")
    await ask.refused(errors.InvalidInput, "create_namespace", namespace="a/b")
    await ask("create_topic", topic="/shop/a")
    await ask.refused(errors.NotEmpty, "delete_namespace", namespace="shop")
    await ask("delete_topic", topic="/shop/a")
    await ask("delete_namespace", namespace="shop")
    await ask.refused(errors.UnknownNamespace, "describe_namespace", namespace="shop")
    await ask.refused(errors.UnknownNamespace, "set_namespace_policies", namespace="shop")


async def test_namespace_policies_apply_immediately_to_topics_without_their_own(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    await ask("create_topic", topic="/default/own", policies={"max_producers": 5})
    await ask("set_namespace_policies", namespace="default", policies={"max_producers": 1, "max_message_bytes": 10})
    orders = await ask("inspect_topic", **TOPIC)
    own = await ask("inspect_topic", topic="/default/own")
    assert (orders["policies"]["max_producers"], orders["effective_policies"]["max_producers"]) == (None, 1)
    assert (own["effective_policies"]["max_producers"], own["effective_policies"]["max_message_bytes"]) == (5, 10)
    await ask.publish(0)
    with pytest.raises(errors.PolicyReached):
        await ask.node.broker.open_producer(ORDERS, "second")


async def test_policies_survive_a_restart(tmp_path: Path) -> None:
    async with operated(tmp_path / "data") as ask:
        await ask("create_topic", **TOPIC)
        await ask("set_namespace_policies", namespace="default", policies={"max_producers": 1})
        await ask("set_topic_policies", **TOPIC, policies={"max_subscriptions": 7})
    async with operated(tmp_path / "data") as ask:
        policies = (await ask("inspect_topic", **TOPIC))["effective_policies"]
        assert (policies["max_producers"], policies["max_subscriptions"]) == (1, 7)


async def test_topics_are_listed_in_pages(ask: AdminClient) -> None:
    names = [f"/default/t{number:02d}" for number in range(7)]
    for name in names:
        await ask("create_topic", topic=name)
    await ask("create_namespace", namespace="other")
    await ask("create_topic", topic="/other/x")
    seen: list[str] = []
    after = ""
    while True:
        page = await ask("page_topics", after=after, limit=3)
        seen += [item["topic"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [*names, "/other/x"]
    assert [item["topic"] for item in (await ask("page_topics", namespace="other"))["items"]] == ["/other/x"]
    await ask.refused(errors.UnknownNamespace, "page_topics", namespace="none")
    await ask.refused(errors.InvalidInput, "page_topics", limit=limits.API_PAGE_MAX + 1)
    await ask.refused(errors.InvalidInput, "page_topics", limit=0)


async def test_a_topic_shows_its_offsets_and_counters(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC, shards=2)
    await ask.publish(3, shard=1)
    topic = await ask("inspect_topic", **TOPIC)
    first, second = topic["shard_offsets"]
    assert (first["next"], second["earliest"], second["next"], second["synced"]) == (0, 0, 3, 3)
    assert await ask("topic_history", **TOPIC) == {"starts": [0, 0]}
    assert (topic["published_messages"], topic["producers"], topic["incarnation"]) == (3, 1, 1)
    assert topic["held_bytes"] > 0
    await ask.refused(errors.UnknownTopic, "inspect_topic", topic="/default/none")


async def test_a_topic_of_the_most_shards_can_still_be_shown(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC, shards=limits.SHARDS_PER_TOPIC_MAX)
    await ask("create_subscription", **SUB)
    assert len((await ask("inspect_topic", **TOPIC))["shard_offsets"]) == limits.SHARDS_PER_TOPIC_MAX
    assert len((await ask("inspect_subscription", **SUB))["shard_positions"]) == limits.SHARDS_PER_TOPIC_MAX


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def test_a_subscription_without_consumers_keeps_its_position(tmp_path: Path) -> None:
    async with operated(tmp_path / "data") as ask:
        await ask("create_topic", **TOPIC)
        await ask.publish(2)
        created = await ask("create_subscription", **SUB, type="shared")
        assert (created["type"], created["lag"], created["consumers"]) == ("shared", 0, 0)
        await ask.refused(errors.AlreadyExists, "create_subscription", **SUB)
        await ask.publish(3)
    async with operated(tmp_path / "data") as ask:
        description = await ask("inspect_subscription", **SUB)
        (place,) = description["shard_positions"]
        assert (description["lag"], place["position"], place["next"]) == (3, 2, 5)
        assert place["oldest_unacked_age_ms"] >= 0
        (line,) = (await ask("page_subscriptions", **TOPIC))["items"]
        assert (line["subscription"], line["lag"]) == ("s", 3)


async def test_a_subscription_shows_messages_in_flight_acked_and_missing(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    subscription, consumer = await ask.node.broker.subscribe(
        ORDERS, "s", SubscriptionType.SHARED, "c", RecordingConsumer()
    )
    subscription.give_credit(consumer, 6)
    await ask.publish(8)
    await asyncio.sleep(0)
    subscription.delivery(0).ack([(2, 4)], 0)
    subscription.delivery(0).nack([(0, 1)], 0, 60_000)
    (place,) = (await ask("inspect_subscription", **SUB))["shard_positions"]
    assert (place["position"], place["hole"], place["acked_ranges"]) == (0, [0, 2], [[2, 4]])
    assert (place["in_flight"], place["waiting_for_redelivery"], place["pause"]) == (3, 1, None)
    (line,) = (await ask("page_consumers", **SUB))["items"]
    assert (line["consumer"], line["credit"], line["delivered_messages"], line["peer"]) == ("c", 0, 6, "test")


async def test_a_blocked_subscription_is_reported(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    failure = {"max_redelivery_count": 0, "poison": "block"}
    await ask("create_subscription", **SUB, failure=failure)
    subscription, consumer = await ask.node.broker.subscribe(
        ORDERS, "s", SubscriptionType.EXCLUSIVE, "c", RecordingConsumer()
    )
    subscription.give_credit(consumer, 5)
    await ask.publish(3)
    await asyncio.sleep(0)
    subscription.delivery(0).nack([(0, 1)], 0, 0)
    shown = await ask("inspect_subscription", **SUB)
    (place,) = shown["shard_positions"]
    assert (place["blocked"], place["pause"]) == (1, "a message failed too often and its policy is block")
    await ask("change_subscription", **SUB, failure={**failure, "poison": "drop"})
    (place,) = (await ask("inspect_subscription", **SUB))["shard_positions"]
    assert (place["blocked"], place["position"], place["pause"]) == (0, 1, None)


async def test_only_named_policies_change(tmp_path: Path) -> None:
    async with operated(tmp_path / "data") as ask:
        await ask("create_topic", **TOPIC)
        await ask("create_subscription", **SUB, failure={"ack_timeout_ms": 5000})
        changed = await ask("change_subscription", **SUB, max_dispatch_rate=10)
        assert (changed["failure"]["ack_timeout_ms"], changed["max_dispatch_rate"]) == (5000, 10)
        changed = await ask("change_subscription", **SUB, failure={"ack_timeout_ms": 7000})
        assert (changed["failure"]["ack_timeout_ms"], changed["max_dispatch_rate"]) == (7000, 10)
        await ask.refused(errors.InvalidInput, "change_subscription", **SUB, failure={"poison": "dead-letter"})
        await ask.refused(errors.InvalidInput, "change_subscription", **SUB, max_dispatch_rate=-1)
        await ask.refused(errors.UnknownSubscription, "change_subscription", **TOPIC, subscription="none")
    async with operated(tmp_path / "data") as ask:
        description = await ask("inspect_subscription", **SUB)
        assert (description["failure"]["ack_timeout_ms"], description["max_dispatch_rate"]) == (7000, 10)


async def test_an_unset_rate_falls_back_to_the_topic(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC, policies={"max_dispatch_rate": 100})
    await ask("create_subscription", **SUB)
    bucket = ask.node.broker.subscription(ORDERS, "s").delivery(0).dispatcher.throttle.bucket
    await ask("change_subscription", **SUB, max_dispatch_rate=5)
    assert bucket.per_second == 5
    await ask("change_subscription", **SUB, max_dispatch_rate=None)
    assert bucket.per_second == 100


async def test_a_seek_moves_it_and_delete_ends_it(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    await ask("create_subscription", **SUB)
    await ask.publish(4)
    assert (await ask("seek", **SUB, start="latest"))["positions"] == [4]
    assert (await ask("seek", **SUB, start="offset", start_value=1))["positions"] == [1]
    await ask("delete_subscription", **SUB)
    await ask.refused(errors.UnknownSubscription, "inspect_subscription", **SUB)


# --- connected clients ------------------------------------------------------------------------------------------------


async def test_a_consumer_can_be_disconnected(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    sink = RecordingConsumer()
    await ask.node.broker.subscribe(ORDERS, "s", SubscriptionType.EXCLUSIVE, "c", sink)
    await ask("disconnect_consumer", **SUB, consumer="c")
    assert sink.events == ["closed"]
    assert (await ask("page_consumers", **SUB))["items"] == []
    await ask.refused(errors.NotConnected, "disconnect_consumer", **SUB, consumer="c")
    await ask.node.broker.subscribe(ORDERS, "s", SubscriptionType.EXCLUSIVE, "c", sink)


async def test_a_disconnected_producer_must_open_again(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    broker = ask.node.broker
    producer = await broker.open_producer(ORDERS, "p")
    block = encode_block(1, {envelope.PAYLOAD: [b"x"]}, Numbering(producer.id, producer.epoch, 0))
    await broker.publish(producer, 0, block)
    (line,) = (await ask("page_producers", **TOPIC))["items"]
    assert (line["producer"], line["epoch"]) == ("p", 1)
    await ask("disconnect_producer", **TOPIC, producer="p")
    for _ in range(2):
        with pytest.raises(errors.ProducerFenced):
            broker.publish(producer, 0, block)
        with pytest.raises(errors.ProducerFenced):
            broker.reset_producer(producer, 0)
    assert (await ask("page_producers", **TOPIC))["items"] == []
    await ask.refused(errors.NotConnected, "disconnect_producer", **TOPIC, producer="p")
    again = await broker.open_producer(ORDERS, "p")
    renewed = encode_block(1, {envelope.PAYLOAD: [b"x"]}, Numbering(again.id, again.epoch, 1))
    await broker.publish(again, 0, renewed)


async def test_a_producer_of_a_deleted_topic_stores_nothing(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    producer = await ask.node.broker.open_producer(ORDERS, "p")
    await ask("delete_topic", **TOPIC)
    with pytest.raises(errors.UnknownTopic):
        ask.node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [b"x"]}))


# --- the log and health -----------------------------------------------------------------------------------------------


async def test_the_log_shows_its_files_and_numbers(ask: AdminClient) -> None:
    await ask("create_topic", **TOPIC)
    producer = await ask.node.broker.open_producer(ORDERS, "p")
    for number in range(20):
        numbering = Numbering(producer.id, producer.epoch, number)
        block = encode_block(1, {envelope.PAYLOAD: [bytes(7000)]}, numbering)
        await ask.node.broker.publish(producer, 0, block)
    log = await ask("inspect_wal")
    assert (log["sync_mode"], log["synced_lsn"], log["last_lsn"]) == ("always", 20, 20)
    assert 0 < log["used_bytes"] <= log["quota_bytes"]
    files = await ask("page_wal_files", limit=1)
    assert log["sealed_files"] >= 2
    assert (files["items"][0]["file"], files["items"][0]["first_lsn"]) == ("log-0000000000000001.wal", 1)
    assert files["next"] == "log-0000000000000001.wal"


async def test_a_memory_broker_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(errors.ConnectionLost):
        async with operated(tmp_path / "data", "memory"):
            pass
    assert not (tmp_path / "data").exists()


async def test_health_has_every_part(ask: AdminClient) -> None:
    health = await ask("health")
    assert health["ready"] is True
    assert [check["name"] for check in health["checks"]] == ["metadata", "log", "disk", "broker"]


async def test_internal_calls_are_not_offered_to_the_network(ask: AdminClient) -> None:
    link = Link(handshake.Hello(client="test"))
    await asyncio.get_running_loop().create_connection(lambda: link, "127.0.0.1", ask.node.native.port)
    await link.opened
    assert await link.call("list_topics", {}) == {"topics": [], "next": None}
    for method in (*LOCAL_CALLS, *METADATA_METHODS, *PIPELINE_METHODS, *BACKUP_METHODS, *FENCE_METHODS):
        with pytest.raises(errors.InvalidInput, match="unknown method"):
            await link.call(method, {})
    large = {"padding": bytes(limits.CALL_BYTES_MAX)}
    assert await ask("list_topics", **large) == {"topics": [], "next": None}
    with pytest.raises(errors.ConnectionLost):
        await link.call("list_topics", large)
    link.close()


async def test_every_method_answers_invalid_arguments(ask: AdminClient) -> None:
    """Wrong arguments are refused; none ends the connection, and none is forgotten."""
    nonsense: list[dict[str, Any]] = [{}, {"topic": 1}, {"topic": "/default/none", "subscription": [], "key": None}]
    for method in sorted(LOCAL_CALLS):
        for arguments in nonsense:
            with contextlib.suppress(errors.InvalidInput, errors.ConfigurationError):
                await asyncio.wait_for(ask(method, **arguments), 5)
    assert (await ask("health"))["ready"] is True
