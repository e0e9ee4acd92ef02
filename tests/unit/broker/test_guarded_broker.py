"""Each use case with its exact right, without any, and with that of a neighbour; listings; holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.broker.guarded_broker import ASKS_NOTHING, GuardedBroker
from icestream.broker.guarded_schemas import GuardedSchemas
from icestream.broker.topic_restore import BackedUpTopic
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionStart, SubscriptionType
from icestream.model.topic_deletion_policy import DeletedTablePolicy
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.schema.kinds import Compatibility, SchemaType, ValidationPolicy
from icestream.security.action import Action
from icestream.security.principal import CallerIdentity, local_user
from tests.support.recording_consumer import RecordingConsumer
from tests.support.secured_access import SecuredAccess
from tests.support.secured_broker import SecuredBroker, secured_broker

pytestmark = pytest.mark.asyncio
ORDERS, NEW = TopicName("shop", "orders"), TopicName("shop", "new")
LETTERS = TopicName("shop", "letters")
DEAD = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/shop/letters", max_redelivery_count=1)
PURGE = DeletedTablePolicy.PURGE
SHARED, START = SubscriptionType.SHARED, SubscriptionStart()
TEXT = SchemaType.STRING

UseCase = Callable[[GuardedBroker, Any], Any]
# Use case -> the rights that it needs, and a call of it. `topic` is the topic /shop/orders.
USE_CASES: dict[str, tuple[list[str], UseCase]] = {
    "namespace": (["describe on namespace:/shop"], lambda g, topic: g.namespace("shop")),
    "create_namespace": (["create on namespace:/new"], lambda g, topic: g.create_namespace("new")),
    "delete_namespace": (["delete on namespace:/shop"], lambda g, topic: g.delete_namespace("shop")),
    "set_namespace_policies": (
        ["alter on namespace:/shop"],
        lambda g, topic: g.set_namespace_policies("shop", PolicyValues()),
    ),
    "topic": (["describe on /shop/orders"], lambda g, topic: g.topic(ORDERS)),
    "locate_topic": (["describe on /shop/orders"], lambda g, topic: g.locate_topic(ORDERS)),
    "shard_streams": (["describe on /shop/orders"], lambda g, topic: g.shard_streams(topic)),
    "stalled_readers_of": (["describe on /shop/orders"], lambda g, topic: g.stalled_readers_of(topic)),
    "history_starts": (["describe on /shop/orders"], lambda g, topic: g.history_starts(topic)),
    "gaps": (["describe on /shop/orders"], lambda g, topic: g.gaps(topic, 0)),
    "create_topic": (["create on /shop/new"], lambda g, topic: g.create_topic(NEW)),
    "create_partitioned_topic": (["create on /shop/new"], lambda g, topic: g.create_partitioned_topic(NEW, 2)),
    "delete_topic": (["delete on /shop/orders"], lambda g, topic: g.delete_topic(ORDERS)),
    "delete_topic, purge": (
        ["delete on /shop/orders", "table-write on /shop/orders"],
        lambda g, topic: g.delete_topic(ORDERS, PURGE),
    ),
    "take_over_topic": (["admin on cluster"], lambda g, topic: g.take_over_topic(ORDERS)),
    "deleted_topics": (["admin on cluster"], lambda g, topic: g.deleted_topics()),
    "undelete_topic": (["admin on cluster"], lambda g, topic: g.undelete_topic(NEW)),
    "live_topic": (["admin on cluster"], lambda g, topic: g.live_topic(NEW)),
    "allocate_restore": (["admin on cluster"], lambda g, topic: g.allocate_restore("b", NEW, PolicyValues())),
    "erased_topics": (["admin on cluster"], lambda g, topic: g.erased_topics("log", 1)),
    "restore_topic": (
        ["admin on cluster"],
        lambda g, topic: g.restore_topic(BackedUpTopic("b", NEW, topic.record, [], [], None)),
    ),
    "end_restore": (["admin on cluster"], lambda g, topic: g.end_restore("b", NEW)),
    "cluster_restore": (["admin on cluster"], lambda g, topic: g.cluster_restore()),
    "page_restores": (["restore on cluster"], lambda g, topic: g.page_restores("", 10)),
    "set_topic_policies": (
        ["alter on /shop/orders"],
        lambda g, topic: g.set_topic_policies(ORDERS, PolicyValues()),
    ),
    "change_topic_policies": (["alter on /shop/orders"], lambda g, topic: g.change_topic_policies(ORDERS, {})),
    "erasable_topic": (
        ["delete on /shop/orders", "maintain on /shop/orders"],
        lambda g, topic: g.erasable_topic(ORDERS),
    ),
    "open_producer": (["produce on /shop/orders"], lambda g, topic: g.open_producer(ORDERS, "p")),
    "open_producer, create": (
        ["produce on /shop/new", "create on /shop/new"],
        lambda g, topic: g.open_producer(NEW, "p", create=True),
    ),
    "open_internal_producer": (
        ["produce on /shop/orders"],
        lambda g, topic: g.open_internal_producer(ORDERS, "p/1", "i"),
    ),
    "check_produce": (["produce on /shop/orders"], lambda g, topic: g.check_produce(ORDERS)),
    "disconnect_producer": (["alter on /shop/orders"], lambda g, topic: g.disconnect_producer(ORDERS, "p")),
    "subscribe": (
        ["consume on subscription:/shop/orders/s"],
        lambda g, topic: g.subscribe(ORDERS, "s", SHARED, "c", RecordingConsumer()),
    ),
    "subscribe, dead letters": (
        ["consume on subscription:/shop/orders/s", "produce on /shop/letters", "create on /shop/letters"],
        lambda g, topic: g.subscribe(ORDERS, "s", SHARED, "c", RecordingConsumer(), failure=DEAD),
    ),
    "create_subscription": (
        ["alter on subscription:/shop/orders/s"],
        lambda g, topic: g.create_subscription(ORDERS, "s", SHARED),
    ),
    "create_subscription, dead letters": (
        ["alter on subscription:/shop/orders/s", "produce on /shop/letters", "create on /shop/letters"],
        lambda g, topic: g.create_subscription(ORDERS, "s", SHARED, failure=DEAD),
    ),
    "delete_subscription": (
        ["alter on subscription:/shop/orders/old"],
        lambda g, topic: g.delete_subscription(ORDERS, "old"),
    ),
    "set_failure_policy": (
        ["alter on subscription:/shop/orders/old"],
        lambda g, topic: g.set_failure_policy(ORDERS, "old", FailurePolicy()),
    ),
    "set_failure_policy, dead letters": (
        ["alter on subscription:/shop/orders/old", "produce on /shop/letters", "create on /shop/letters"],
        lambda g, topic: g.set_failure_policy(ORDERS, "old", DEAD),
    ),
    "set_dispatch_rate": (
        ["alter on subscription:/shop/orders/old"],
        lambda g, topic: g.set_dispatch_rate(ORDERS, "old", 5),
    ),
    "set_unacked_max": (
        ["alter on subscription:/shop/orders/old"],
        lambda g, topic: g.set_unacked_max(ORDERS, "old", 5),
    ),
    "pending_subscription": (
        ["describe on subscription:/shop/orders/old"],
        lambda g, topic: g.pending_subscription(ORDERS, "old"),
    ),
    "disconnect_consumer": (
        ["alter on subscription:/shop/orders/old"],
        lambda g, topic: g.disconnect_consumer(ORDERS, "old", "c"),
    ),
    "seek": (["alter on subscription:/shop/orders/old"], lambda g, topic: g.seek(ORDERS, "old", START)),
    "topic_of_subscription": (
        ["alter on subscription:/shop/orders/old"],
        lambda g, topic: g.topic_of_subscription(Action.ALTER, ORDERS, "old"),
    ),
    "subscription": (
        ["describe on subscription:/shop/orders/old"],
        lambda g, topic: g.subscription(ORDERS, "old"),
    ),
    "consumed_subscription": (
        ["consume on subscription:/shop/orders/old"],
        lambda g, topic: g.consumed_subscription(ORDERS, "old"),
    ),
}
SCHEMA_USE_CASES: dict[str, tuple[list[str], UseCase]] = {
    "register": (["alter on schema:/s"], lambda g, topic: g.schemas.register("s", TEXT, b"")),
    "check_compatibility": (
        ["describe on schema:/s"],
        lambda g, topic: g.schemas.check_compatibility("s", TEXT, b"", None),
    ),
    "subject": (["describe on schema:/s"], lambda g, topic: g.schemas.subject("s")),
    "latest": (["describe on schema:/s"], lambda g, topic: g.schemas.latest("s")),
    "delete_version": (["alter on schema:/s"], lambda g, topic: g.schemas.delete_version("s", 1)),
    "set_compatibility": (
        ["alter on schema:/s"],
        lambda g, topic: g.schemas.set_compatibility("s", Compatibility.NONE),
    ),
    "configure": (
        ["alter on /shop/orders", "describe on schema:/s"],
        lambda g, topic: g.schemas.configure(ORDERS, "s", ValidationPolicy.NONE, checks_payload=False),
    ),
    "set_policy": (
        ["alter on /shop/orders"],
        lambda g, topic: g.schemas.set_policy(ORDERS, ValidationPolicy.NONE, checks_payload=False),
    ),
    "bind": (["alter on /shop/orders", "describe on schema:/s"], lambda g, topic: g.schemas.bind(ORDERS, "s")),
}
EVERY = {**USE_CASES, **SCHEMA_USE_CASES}
# Listings and look-ups, which deny nothing and show less: tested below.
FILTERED = {"namespaces", "list_topics", "find_topic", "find_topic_record", "page_topics", "decide"}
FILTERED_SCHEMAS = {"subjects", "by_id", "of_topic", "definition"}


@pytest_asyncio.fixture
async def served() -> AsyncIterator[SecuredBroker]:
    async with secured_broker(SecuredAccess({})) as served:
        await served.broker.create_namespace("shop")
        await served.broker.create_topic(ORDERS)
        await served.broker.create_subscription(ORDERS, "old", SHARED)
        await served.broker.schemas.register("s", TEXT, b"")
        yield served


async def guarded(served: SecuredBroker, *rules: str) -> GuardedBroker:
    access = served.access
    assert isinstance(access, SecuredAccess)
    await access.change({"alice": rules})
    return served.door.guard(access.new_session(CallerIdentity(local_user("alice")), "", "test"))


async def outcome(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


async def test_every_use_case_has_a_row() -> None:
    named = {name.split(",")[0] for name in USE_CASES}
    methods = {name for name in vars(GuardedBroker) if not name.startswith("_")}
    assert methods - named - FILTERED == set(ASKS_NOTHING) & methods
    schema_methods = {name for name in vars(GuardedSchemas) if not name.startswith("_")}
    assert schema_methods == SCHEMA_USE_CASES.keys() | FILTERED_SCHEMAS


@pytest.mark.parametrize("name", EVERY)
async def test_a_use_case_needs_exactly_its_rights(served: SecuredBroker, name: str) -> None:
    rights, use_case = EVERY[name]
    topic = served.broker.topic(ORDERS)
    neighbours = ["all on /shop/order", "all on /shop/orders2", "all on subscription:/shop/orders/other"]
    others = [*neighbours, "all on namespace:/other", "all on schema:/s2", "all on table:/shop/orders"]
    if name == "namespace":  # who sees something in it sees the namespace
        others = ["all on namespace:/other", "all on /other/*"]
    for missing in rights:
        rest = [right for right in rights if right != missing]
        broker = await guarded(served, *rest, *others)
        with pytest.raises(errors.PermissionDenied):
            await outcome(use_case(broker, topic))
    broker = await guarded(served, *rights)
    try:
        await outcome(use_case(broker, topic))
    except errors.PermissionDenied:
        raise
    except errors.IcestreamError:
        pass  # refused for another reason, which only one who may do it learns


@pytest.mark.parametrize("name", EVERY)
async def test_hazard_123_a_denial_does_not_tell_whether_the_resource_exists(served: SecuredBroker, name: str) -> None:
    _, use_case = EVERY[name]
    topic = served.broker.topic(ORDERS)
    broker = await guarded(served)
    texts = []
    for _ in range(2):
        with pytest.raises(errors.PermissionDenied) as denied:
            await outcome(use_case(broker, topic))
        texts.append(str(denied.value))
        await served.broker.delete_topic(ORDERS) if len(texts) == 1 else None
    assert texts[0] == texts[1]


async def test_hazard_123_listings_have_what_may_be_described(served: SecuredBroker) -> None:
    for number in range(5):
        await served.broker.create_topic(TopicName("shop", f"hidden-{number}"))
        await served.broker.create_topic(TopicName("shop", f"seen-{number}"))
    await served.broker.schemas.register("hidden", TEXT, b"x")
    rules = [f"describe on /shop/seen-{number}" for number in range(5)]
    broker = await guarded(served, *rules, "describe on schema:/s")
    seen = [TopicName("shop", f"seen-{number}") for number in range(5)]
    assert broker.namespaces().keys() == {"shop"}
    assert (await guarded(served, "all on /other/*")).namespaces() == {}
    broker = await guarded(served, *rules, "describe on schema:/s")
    assert [topic.name for topic in broker.list_topics()] == seen
    assert broker.find_topic(ORDERS) is None
    assert broker.find_topic_record(ORDERS) is None
    assert broker.schemas.of_topic(ORDERS) is None
    assert [name for name, _ in await broker.schemas.subjects()] == ["s"]
    page = await broker.page_topics("shop", "", 2)
    assert (page.names, page.next_after) == (seen[:2], "/shop/seen-1")
    page = await broker.page_topics("", "/shop/seen-1", 3)
    assert (page.names, page.next_after) == (seen[2:], None)


async def test_hazard_123_a_hidden_namespace_answers_as_an_absent_one(served: SecuredBroker) -> None:
    broker = await guarded(served, "describe on /other/*")
    texts = []
    for namespace in ("shop", "absent"):
        with pytest.raises(errors.UnknownNamespace) as unknown:
            await broker.page_topics(namespace, "", 10)
        texts.append(str(unknown.value).replace(namespace, "NAME"))
    assert texts[0] == texts[1]
    visible = await guarded(served, "describe on namespace:/shop")
    assert (await visible.page_topics("shop", "", 10)).names == []


async def test_hazard_123_a_hidden_schema_answers_as_an_absent_one(served: SecuredBroker) -> None:
    hidden = (await served.broker.schemas.subject("s")).id
    broker = await guarded(served)
    texts = []
    for schema_id, version in ((hidden, None), (hidden, 7), (999, None)):
        with pytest.raises(errors.UnknownSchema) as unknown:
            await broker.schemas.by_id(schema_id, version)
        texts.append(str(unknown.value).replace(str(schema_id), "ID"))
    assert texts[0] == texts[1] == texts[2]
    seen = await guarded(served, "describe on schema:/s")
    assert await seen.schemas.definition(await seen.schemas.by_id(hidden, None)) == b""


async def test_the_work_of_a_listing_is_bounded(served: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LISTING_SCAN_MAX", 2)
    monkeypatch.setattr(limits, "TOPICS_PAGE_MAX", 1)
    for number in range(5):
        await served.broker.create_topic(TopicName("shop", f"hidden-{number}"))
    broker = await guarded(served, "describe on /other/*")
    with pytest.raises(errors.Refused):
        await broker.page_topics("", "", 10)


async def test_a_producer_without_create_does_not_create(served: SecuredBroker) -> None:
    broker = await guarded(served, "produce on /shop/*")
    with pytest.raises(errors.UnknownTopic):
        await broker.open_producer(NEW, "p")
    with pytest.raises(errors.PermissionDenied, match="create"):
        await broker.open_producer(NEW, "p", create=True)
    assert (await broker.open_producer(ORDERS, "p", create=True)).topic.name == ORDERS


async def test_a_table_that_policies_purge_needs_table_write(served: SecuredBroker) -> None:
    await served.broker.set_topic_policies(ORDERS, PolicyValues(deleted_table="purge"))
    broker = await guarded(served, "delete on /shop/orders")
    with pytest.raises(errors.PermissionDenied, match="table-write"):
        await broker.delete_topic(ORDERS)


@pytest.mark.parametrize("subscription", ["a/b", "", "../orders2/s"])
async def test_hazard_117_a_name_with_a_slash_is_no_resource(served: SecuredBroker, subscription: str) -> None:
    broker = await guarded(served, "all on subscription:/shop/orders/**")
    with pytest.raises(errors.InvalidInput):
        await broker.delete_subscription(ORDERS, subscription)


async def test_a_right_that_ends_while_a_producer_opens_closes_it(served: SecuredBroker) -> None:
    broker = await guarded(served, "produce on /shop/orders")
    open_producer = served.broker.open_producer

    async def open_and_revoke(*arguments: Any, **options: Any) -> Any:
        producer = await open_producer(*arguments, **options)
        await guarded(served)
        return producer

    served.broker.open_producer = open_and_revoke  # type: ignore[method-assign]
    with pytest.raises(errors.PermissionDenied):
        await broker.open_producer(ORDERS, "p")
    assert not served.broker.topic(ORDERS).producers
    assert broker.session.holds == 0
