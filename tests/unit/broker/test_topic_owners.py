"""Topics of several nodes: each serves its own, says where the others are, and touches nothing of theirs."""

from __future__ import annotations

import pytest

import icestream
from icestream import errors, limits
from icestream.broker import records
from icestream.cluster.members import encode_removed, node_key, removed_key
from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService
from icestream.frontends.danube.handlers import Call
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.lake.problems import error_problem
from icestream.model.subscription_options import FailurePolicy, SubscriptionType
from icestream.model.topic_deletion_policy import DeletedRestPolicy
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.rpc import document
from icestream.runtime.clock import SystemClock
from tests.support.faulty_store import FaultyStore
from tests.support.secured_access import open_door
from tests.support.two_nodes import FIRST, SECOND, TwoNodes, broker_of, two_nodes
from tests.support.until import until

pytestmark = pytest.mark.asyncio

ORDERS, BILLS = TopicName("default", "orders"), TopicName("default", "bills")


async def test_a_node_serves_its_own_topics_and_redirects_others() -> None:
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


async def test_topics_without_an_owner_belong_to_the_founder() -> None:
    """A topic record without an owner belongs to the founding node, which writes its id into the record."""
    store = FaultyStore(SystemClock(), survives_close=True)
    async with two_nodes(store) as nodes:
        await nodes.second.create_topic(BILLS)
        old = records.TopicRecord(7, 1, records.DispatchMode.RELIABLE, 0, "whatever")
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


async def test_a_node_with_the_name_of_another_does_not_take_its_topics() -> None:
    """Another node's log has other messages, or none: it would assign offsets that readers have already seen."""
    async with two_nodes() as nodes:
        await nodes.second.create_topic(BILLS)
        await nodes.store.delete(node_key(SECOND))
        replaced = broker_of(nodes.store, 0xC)
        await replaced.start()
        with pytest.raises(errors.TopicElsewhere, match="no longer in the cluster") as refused:
            replaced.topics.get(BILLS)
        assert refused.value.details == {}
        await replaced.shutdown()


async def test_only_the_node_of_a_topic_finishes_its_deletion_and_the_name_waits_for_that() -> None:
    async with two_nodes() as nodes:
        deleted = records.DeletedTopicRecord(9, "default", "bills", 1, owner=f"{SECOND:016x}")
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


async def test_namespaces_are_shared_by_all_nodes() -> None:
    async with two_nodes() as nodes:
        await nodes.first.create_namespace("eu", PolicyValues(max_producers=1))
        await until(lambda: "eu" in nodes.second.topics.namespaces)
        topic = await nodes.second.create_topic(TopicName("eu", "t"))
        assert topic.policies.max_producers == 1
        await nodes.first.set_namespace_policies("eu", PolicyValues(max_producers=2))
        await until(lambda: topic.policies.max_producers == 2)
        with pytest.raises(errors.NotEmpty, match="/eu/t"):
            await nodes.first.delete_namespace("eu")
        await nodes.second.delete_topic(TopicName("eu", "t"))
        await nodes.first.delete_namespace("eu")
        await until(lambda: "eu" not in nodes.second.topics.namespaces)


async def test_dead_letters_are_stored_on_the_node_of_their_topic() -> None:
    async with two_nodes() as nodes:
        await nodes.second.create_topic(BILLS)
        await nodes.first.create_topic(ORDERS)
        policy = FailurePolicy(dead_letter_topic=str(BILLS))
        with pytest.raises(errors.InvalidInput, match="another node"):
            await nodes.first.create_subscription(ORDERS, "s", SubscriptionType.SHARED, failure=policy)


# --- how clients get there --------------------------------------------------------------------------------------------


async def test_the_client_follows_redirects_to_the_node_of_a_topic() -> None:
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


async def test_a_redirect_without_an_address_is_reported_with_the_reason() -> None:
    async with two_nodes() as nodes, icestream.connect(nodes.addresses[0]) as client:
        await nodes.second.create_topic(BILLS)
        await nodes.store.delete(node_key(SECOND))
        with pytest.raises(errors.TopicElsewhere, match="no longer in the cluster"):
            await client.describe_topic(str(BILLS))


async def test_a_client_gets_the_name_of_a_node_that_is_down() -> None:
    async with two_nodes() as nodes, icestream.connect(nodes.addresses[0], call_timeout=0.1) as client:
        await nodes.second.create_topic(BILLS)
        name = nodes.second.options.node
        await nodes.listeners[1].close()
        says = f"topic {BILLS} is served by node {name}, and {name} is down"
        with pytest.raises(errors.ConnectionLost, match=says) as raised:
            await client.describe_topic(str(BILLS))
        assert raised.value.hint.startswith(f"start {name} again")
        with pytest.raises(errors.ConnectionLost, match=says):
            await client.producer(str(BILLS))
        with pytest.raises(errors.ConnectionLost, match=says):
            await client.subscribe(str(BILLS), "s")
        assert await client.list_topics() == [str(BILLS)], "the node that it is connected to answers"


async def test_a_client_whose_second_node_stops_gets_its_name() -> None:
    async with (
        two_nodes() as nodes,
        icestream.connect(nodes.addresses[0], call_timeout=0.3, send_timeout=0.3) as client,
    ):
        await nodes.second.create_topic(BILLS)
        name = nodes.second.options.node
        producer = await client.producer(str(BILLS))
        await producer.send(b"one")
        await nodes.listeners[1].close()
        await until(lambda: not producer._session.is_connected)
        with pytest.raises(errors.ConnectionLost, match=rf"not sent within 0\.3 s: {name} is down"):
            await producer.send(b"two")
        with pytest.raises(errors.ConnectionLost, match=f"{name} is down"):
            await client.describe_topic(str(BILLS))


async def test_clients_of_danube_are_redirected() -> None:
    async with two_nodes() as nodes:
        await nodes.second.create_partitioned_topic(BILLS, 2)
        service = DanubeService(
            open_door(nodes.first), nodes.first.store, SystemClock(), DanubeOptions("http://127.0.0.1:1")
        )
        table, request = service.table().unary, pb.TopicLookupRequest(request_id=3, topic="/default/bills-part-1")
        raw = await table["/danube.Discovery/TopicLookup"](request.SerializeToString(), Call("test"))
        lookup = pb.TopicLookupResponse.FromString(raw)
        assert lookup.response_type == pb.TopicLookupResponse.Redirect
        assert lookup.connect_url == lookup.broker_url == f"http://127.0.0.1:{SECOND}"
        names = pb.TopicLookupRequest(request_id=3, topic="/default/bills").SerializeToString()
        answer = await table["/danube.Discovery/TopicPartitions"](names, Call("test"))
        assert list(pb.TopicPartitionsResponse.FromString(answer).partitions) == [f"{BILLS}-part-0", f"{BILLS}-part-1"]
        await service.close()


async def test_http_redirects_to_the_node_of_a_topic_if_known() -> None:
    error = errors.TopicElsewhere("elsewhere", details={"http": "http://10.0.0.2:8181"})
    response = error_problem(error, "/api/v1/namespaces/a b/topics/t", "limit=5")
    assert response.status_code == 307
    assert response.headers["Location"] == "http://10.0.0.2:8181/api/v1/namespaces/a%20b/topics/t?limit=5"
    assert error_problem(errors.TopicElsewhere("elsewhere"), "/x").status_code == 421


async def test_node_addresses_survive_the_wire_and_invalid_ones_are_refused() -> None:
    error = errors.TopicElsewhere("elsewhere", hint="there", details={"native": "h:1", "http": "http://h:2"})
    back = document.decode_error(document.encode_error(error))
    assert isinstance(back, errors.TopicElsewhere)
    assert back.details == error.details
    for places in (7, ["h:1"], {"native": 7}, {"native": "x" * 1000}):
        raw = document.encode({"code": "topic_elsewhere", "places": places})
        with pytest.raises(errors.DecodeError):
            document.decode_error(raw)


async def remove(nodes: TwoNodes, node: int) -> None:
    """Removes a node as `icestream cluster remove` does."""
    await nodes.store.put(removed_key(node), b"")
    await nodes.store.delete(node_key(node))


async def test_a_topic_of_a_removed_node_is_deleted_by_any_other() -> None:
    """Item 21: it said to start the removed node, or to delete the topic."""
    async with two_nodes() as nodes:
        await nodes.second.create_topic(BILLS)
        with pytest.raises(errors.TopicElsewhere):
            await nodes.first.delete_topic(BILLS)
        await remove(nodes, SECOND)
        decided = await nodes.first.delete_topic(BILLS)
        assert (decided.lost_with, decided.rest) == ("node-b", DeletedRestPolicy.DISCARD)
        assert await nodes.store.get(records.topic_key(BILLS)) is None
        assert await nodes.store.list_all(records.DELETED_TOPICS) == []
        assert (await nodes.first.create_topic(BILLS)).record.owner == f"{FIRST:016x}"


async def test_a_topic_of_a_removed_node_is_taken_over_after_every_visible_offset() -> None:
    async with two_nodes() as nodes:
        record = (await nodes.second.create_topic(BILLS, shards=2)).record
        await nodes.second.create_subscription(BILLS, "s", SubscriptionType.SHARED)
        seen = records.CursorRecord(0, 70, record.id, 0, acked=[5, 2])
        await nodes.store.put(records.cursor_key(BILLS, "s", 1, 2), records.encode(seen))
        with pytest.raises(errors.TopicElsewhere):
            await nodes.first.take_over_topic(BILLS)
        await remove(nodes, SECOND)
        takeover = await nodes.first.take_over_topic(BILLS)
        assert takeover.former_node == "node-b"
        assert [gap.start for gap in takeover.gaps] == [0, 0]
        assert seen.end == 77
        assert [gap.end for gap in takeover.gaps] == [limits.TAKEOVER_OFFSETS, 77 + limits.TAKEOVER_OFFSETS]
        topic = nodes.first.topics.get(BILLS)
        assert (topic.record.id, topic.record.owner) == (record.id, f"{FIRST:016x}")
        assert list(topic.subscriptions) == ["s"]
        with pytest.raises(errors.InvalidInput, match="already"):
            await nodes.first.take_over_topic(BILLS)
        # the new owner gives offsets away, commits nothing, and is lost too
        await remove(nodes, FIRST)
        third = broker_of(nodes.store, 0xC)
        await third.start()
        again = await third.take_over_topic(BILLS)
        assert [gap.start for gap in again.gaps] == [0, 0]
        assert min(gap.end for gap in again.gaps) >= max(gap.end for gap in takeover.gaps) + limits.TAKEOVER_OFFSETS
        await third.shutdown()


async def test_topics_of_a_rejoined_node_belong_to_its_successor() -> None:
    async with two_nodes() as nodes:
        await nodes.second.create_topic(BILLS)
        await remove(nodes, SECOND)
        await nodes.store.put(removed_key(SECOND), encode_removed(f"{0xC:016x}"))
        with pytest.raises(errors.TopicElsewhere):
            await nodes.first.delete_topic(BILLS)
        successor = broker_of(nodes.store, 0xC)
        await successor.start()
        assert [topic.name for topic in successor.topics] == [BILLS]
        await successor.shutdown()
