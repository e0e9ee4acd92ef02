"""Topics of several nodes: each serves its own, says where the others are, and touches nothing of theirs."""

from __future__ import annotations

import pytest

import icestream
from icestream import errors
from icestream.broker import records
from icestream.broker.records import Policies
from icestream.cluster.members import node_key
from icestream.frontends.danube.calls import Call
from icestream.frontends.danube.service import DanubeOptions, DanubeService
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.lake.problems import of_error
from icestream.model.subscription import FailurePolicy, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.protocol import document
from icestream.runtime.clock import SystemClock
from tests.support.broker_machine import KeptStore
from tests.support.two_nodes import FIRST, SECOND, broker_of, two_nodes
from tests.support.until import until

pytestmark = pytest.mark.asyncio

ORDERS, BILLS = TopicName("default", "orders"), TopicName("default", "bills")


async def test_a_node_serves_the_topics_that_it_made_and_sends_others_to_theirs() -> None:
    async with two_nodes() as nodes:
        await nodes.first.create_topic(ORDERS)
        with pytest.raises(errors.TopicElsewhere, match="served by node node-a") as refused:
            await nodes.second.open_producer(ORDERS, "p")
        assert refused.value.details["native"] == nodes.addresses[0]
        with pytest.raises(errors.TopicElsewhere):
            await nodes.second.create_topic(ORDERS)
        with pytest.raises(errors.TopicElsewhere):
            await nodes.second.delete_topic(ORDERS)
        with pytest.raises(errors.UnknownTopic):
            nodes.second.topics.get(BILLS)
        assert [len(nodes.first.topics), len(nodes.second.topics)] == [1, 0]


async def test_what_a_node_finds_at_its_start_is_its_own_or_of_nobody() -> None:
    """A record of before there were owners is the founder's, who writes that down."""
    store = KeptStore(SystemClock())
    async with two_nodes(store) as nodes:
        await nodes.second.create_topic(BILLS)
        old = records.TopicRecord(7, 1, records.Dispatch.RELIABLE, 0, "whatever")
        await store.put(records.topic_key(ORDERS), records.encode(old))
    second, first = broker_of(store, SECOND), broker_of(store, FIRST)
    await second.start()
    assert [topic.name for topic in second.topics] == [BILLS]
    await first.start()
    assert [topic.name for topic in first.topics] == [ORDERS]
    entry = await store.get(records.topic_key(ORDERS))
    assert entry is not None
    assert records.decode(records.TopicRecord, "", entry.value).owner == f"{FIRST:016x}"
    for broker in (first, second):
        await broker.shutdown()


async def test_a_node_that_took_the_name_of_another_does_not_take_its_topics() -> None:
    """It has other messages in its log, or none: what it would publish had offsets that somebody has seen."""
    async with two_nodes() as nodes:
        await nodes.second.create_topic(BILLS)
        await nodes.store.delete(node_key(SECOND))
        replaced = broker_of(nodes.store, 0xC)
        await replaced.start()
        with pytest.raises(errors.TopicElsewhere, match="not in the cluster any more") as refused:
            replaced.topics.get(BILLS)
        assert refused.value.details == {}
        await replaced.shutdown()


async def test_only_the_node_of_a_topic_finishes_its_deletion_and_the_name_waits_for_that() -> None:
    async with two_nodes() as nodes:
        deleted = records.DeletedTopic(9, "default", "bills", 1, owner=f"{SECOND:016x}")
        await nodes.store.put(records.deleted_topic_key(9), records.encode(deleted))
        with pytest.raises(errors.NotReady, match="still being deleted"):
            await nodes.first.create_topic(BILLS)
        again = broker_of(nodes.store, FIRST)
        await again.start()
        assert await nodes.store.get(records.deleted_topic_key(9)) is not None
        owner = broker_of(nodes.store, SECOND)
        await owner.start()
        assert await nodes.store.get(records.deleted_topic_key(9)) is None
        await nodes.first.create_topic(BILLS)
        for broker in (again, owner):
            await broker.shutdown()


async def test_namespaces_are_everybodys() -> None:
    async with two_nodes() as nodes:
        await nodes.first.create_namespace("eu", Policies(max_producers=1))
        await until(lambda: "eu" in nodes.second.topics.namespaces)
        topic = await nodes.second.create_topic(TopicName("eu", "t"))
        assert topic.policies.max_producers == 1
        await nodes.first.set_namespace_policies("eu", Policies(max_producers=2))
        await until(lambda: topic.policies.max_producers == 2)
        with pytest.raises(errors.NotEmpty, match="/eu/t"):
            await nodes.first.delete_namespace("eu")
        await nodes.second.delete_topic(TopicName("eu", "t"))
        await nodes.first.delete_namespace("eu")
        await until(lambda: "eu" not in nodes.second.topics.namespaces)


async def test_dead_letters_stay_on_the_node_of_their_topic() -> None:
    async with two_nodes() as nodes:
        await nodes.second.create_topic(BILLS)
        await nodes.first.create_topic(ORDERS)
        policy = FailurePolicy(dead_letter_topic=str(BILLS))
        with pytest.raises(errors.InvalidInput, match="another node"):
            await nodes.first.create_subscription(ORDERS, "s", SubscriptionType.SHARED, failure=policy)


# --- how clients get there --------------------------------------------------------------------------------------------


async def test_the_client_goes_to_the_node_of_a_topic_by_itself() -> None:
    async with two_nodes() as nodes, icestream.connect(nodes.addresses[0]) as client:
        await nodes.second.create_topic(BILLS)
        async with client.subscribe(str(BILLS), "s") as messages, client.producer(str(BILLS)) as producer:
            assert (await producer.send(b"one")).offset == 0
            assert (await anext(messages)).payload == b"one"
        assert (await client.describe_topic(str(BILLS))).subscriptions == ["s"]
        assert await client.list_topics() == [str(BILLS)]
        async with client.producer(str(ORDERS)) as producer:  # made where the client is
            await producer.send(b"two")
        assert nodes.first.topics.find(ORDERS) is not None
        await client.delete_topic(str(BILLS))
        assert nodes.second.topics.find(BILLS) is None


async def test_a_client_that_is_told_no_address_hears_why() -> None:
    async with two_nodes() as nodes, icestream.connect(nodes.addresses[0]) as client:
        await nodes.second.create_topic(BILLS)
        await nodes.store.delete(node_key(SECOND))
        with pytest.raises(errors.TopicElsewhere, match="not in the cluster"):
            await client.describe_topic(str(BILLS))


async def test_clients_of_danube_are_redirected() -> None:
    async with two_nodes() as nodes:
        await nodes.second.create_partitioned_topic(BILLS, 2)
        service = DanubeService(nodes.first, SystemClock(), DanubeOptions("http://127.0.0.1:1"))
        table, asked = service.table().unary, pb.TopicLookupRequest(request_id=3, topic="/default/bills-part-1")
        raw = await table["/danube.Discovery/TopicLookup"](asked.SerializeToString(), Call("test"))
        found = pb.TopicLookupResponse.FromString(raw)
        assert found.response_type == pb.TopicLookupResponse.Redirect
        assert found.connect_url == found.broker_url == f"http://127.0.0.1:{SECOND}"
        names = pb.TopicLookupRequest(request_id=3, topic="/default/bills").SerializeToString()
        answer = await table["/danube.Discovery/TopicPartitions"](names, Call("test"))
        assert list(pb.TopicPartitionsResponse.FromString(answer).partitions) == [f"{BILLS}-part-0", f"{BILLS}-part-1"]
        await service.close()


async def test_http_redirects_to_the_node_of_a_topic_where_it_is_known() -> None:
    error = errors.TopicElsewhere("elsewhere", details={"http": "http://10.0.0.2:8181"})
    found = of_error(error, "/api/v1/namespaces/a b/topics/t", "limit=5")
    assert found.status_code == 307
    assert found.headers["Location"] == "http://10.0.0.2:8181/api/v1/namespaces/a%20b/topics/t?limit=5"
    assert of_error(errors.TopicElsewhere("elsewhere"), "/x").status_code == 421


async def test_the_places_of_a_node_survive_the_wire_and_hostile_ones_do_not() -> None:
    error = errors.TopicElsewhere("elsewhere", hint="there", details={"native": "h:1", "http": "http://h:2"})
    back = document.decode_error(document.encode_error(error))
    assert isinstance(back, errors.TopicElsewhere)
    assert back.details == error.details
    for places in (7, ["h:1"], {"native": 7}, {"native": "x" * 1000}):
        raw = document.encode({"code": "topic_elsewhere", "places": places})
        with pytest.raises(errors.DecodeError):
            document.decode_error(raw)
