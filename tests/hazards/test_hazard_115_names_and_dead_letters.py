"""Hazard 115: names belong to their first principal, and dead letters go where the one who set them may produce."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import errors
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.records import SubscriptionRecord
from icestream.broker.stall import StallKind
from icestream.client.client import connect
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.security.principal import CallerIdentity, local_user
from tests.support.recording_consumer import RecordingConsumer
from tests.support.secured_access import SecuredAccess
from tests.support.secured_broker import SecuredBroker, secured_broker
from tests.support.until import until

pytestmark = pytest.mark.asyncio
ORDERS, LETTERS = TopicName("shop", "orders"), TopicName("shop", "letters")
DEAD = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/shop/letters", max_redelivery_count=1)
SHARED = SubscriptionType.SHARED
RULES = {
    "alice": ["produce,consume on /shop/orders", "produce,create on /shop/letters"],
    "bob": ["produce,consume on /shop/orders"],
    "operator": ["produce,consume,alter on /shop/orders"],
    "reader": ["read on /shop/orders"],
}


@pytest_asyncio.fixture
async def served() -> AsyncIterator[SecuredBroker]:
    async with secured_broker(SecuredAccess(RULES)) as served:
        await served.broker.create_namespace("shop")
        await served.broker.create_topic(ORDERS)
        yield served


def of(served: SecuredBroker, name: str) -> GuardedBroker:
    return served.door.guard(served.access.new_session(CallerIdentity(local_user(name)), "", "test"))


def record(served: SecuredBroker, subscription: str = "s") -> SubscriptionRecord:
    return served.broker.subscription(ORDERS, subscription).record


async def subscribe(client: GuardedBroker, failure: FailurePolicy | None = None, consumer: str = "c") -> None:
    await client.subscribe(ORDERS, "s", SHARED, consumer, RecordingConsumer(), failure=failure)


async def test_hazard_115_another_principal_does_not_fence_a_producer(served: SecuredBroker) -> None:
    first = await of(served, "alice").open_producer(ORDERS, "p")
    with pytest.raises(errors.PermissionDenied, match="bob may not alter on topic:/shop/orders"):
        await of(served, "bob").open_producer(ORDERS, "p")
    assert first.closed is None
    assert (await of(served, "alice").open_producer(ORDERS, "p")).epoch == 2
    await of(served, "operator").open_producer(ORDERS, "p")  # may alter the topic; the name stays alice's
    with pytest.raises(errors.PermissionDenied):
        await of(served, "bob").open_producer(ORDERS, "p")
    await of(served, "alice").open_producer(ORDERS, "p")


async def test_hazard_115_another_principal_does_not_join_a_subscription(served: SecuredBroker) -> None:
    await subscribe(of(served, "alice"))
    with pytest.raises(errors.PermissionDenied, match="bob may not alter on subscription:/shop/orders/s"):
        await subscribe(of(served, "bob"))
    assert list(served.broker.subscription(ORDERS, "s").consumers) == ["c"]
    await subscribe(of(served, "operator"), consumer="d")
    assert record(served).principal == "user:local:alice"


async def test_hazard_115_an_unowned_subscription_belongs_to_its_first_consumer(served: SecuredBroker) -> None:
    await of(served, "operator").create_subscription(ORDERS, "s", SHARED)
    assert record(served).principal == ""
    await subscribe(of(served, "bob"))
    assert record(served).principal == "user:local:bob"
    with pytest.raises(errors.PermissionDenied):
        await subscribe(of(served, "alice"))


async def test_hazard_115_names_from_before_security_belong_to_their_next_user(served: SecuredBroker) -> None:
    await served.broker.open_producer(ORDERS, "p")
    await of(served, "bob").open_producer(ORDERS, "p")
    with pytest.raises(errors.PermissionDenied):
        await of(served, "alice").open_producer(ORDERS, "p")


async def test_hazard_115_a_forbidden_dead_letter_topic_is_refused(served: SecuredBroker) -> None:
    with pytest.raises(errors.PermissionDenied, match="bob may not produce on topic:/shop/letters"):
        await subscribe(of(served, "bob"), DEAD)
    assert "s" not in served.broker.topic(ORDERS).subscriptions
    system = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/system/audit", max_redelivery_count=1)
    with pytest.raises(errors.PermissionDenied):
        await subscribe(of(served, "alice"), system)


async def fail_once(served: SecuredBroker, count: int) -> None:
    """Alice subscribes with a dead-letter topic, and nacks this many messages."""
    async with (
        connect(served.address, token="token-of-alice") as alice,
        alice.producer("/shop/orders", create=False) as producer,
        alice.subscribe(
            "/shop/orders",
            "s",
            failure={
                "poison": "dead-letter",
                "dead_letter_topic": "/shop/letters",
                "max_redelivery_count": 0,
                "base_delay_ms": 0,
                "max_delay_ms": 1,  # letters that could not be written are tried again after this, or a second
            },
        ) as messages,
    ):
        for number in range(count):
            await producer.send(b"%d" % number)
            (await anext(messages)).nack()
        await messages.flush()


async def test_hazard_115_dead_letters_wait_when_their_owner_lost_the_right(served: SecuredBroker) -> None:
    access = served.access
    assert isinstance(access, SecuredAccess)
    await fail_once(served, 1)
    await until(lambda: served.broker.find_topic(LETTERS) is not None)
    (delivery,) = served.broker.subscription(ORDERS, "s").deliveries
    await until(lambda: delivery.dispatcher.acked.position == 1)
    await access.change({**RULES, "alice": ["produce,consume on /shop/orders"]})
    await fail_once(served, 1)
    await until(lambda: delivery.stalls)
    (stall,) = delivery.stalls
    assert stall.kind is StallKind.FORBIDDEN
    assert "dead letters are not written to /shop/letters" in stall.reason
    assert delivery.dispatcher.acked.position == 1
    await access.change(RULES)
    await until(lambda: delivery.dispatcher.acked.position == 2)


async def test_hazard_115_letters_are_covered_by_the_rules_of_their_topic(served: SecuredBroker) -> None:
    await fail_once(served, 1)
    await until(lambda: served.broker.find_topic(LETTERS) is not None)
    assert served.broker.topic(LETTERS).record.dead_letters_of == "/shop/orders"
    reader = of(served, "reader")
    assert reader.topic(LETTERS).name == LETTERS
    await reader.subscribe(LETTERS, "s", SHARED, "c", RecordingConsumer())
    with pytest.raises(errors.PermissionDenied):
        await reader.open_producer(LETTERS, "p")
    await served.broker.create_topic(TopicName("shop", "other"))
    with pytest.raises(errors.PermissionDenied):
        reader.topic(TopicName("shop", "other"))
