"""Hazards 115 and 118: an MQTT session belongs to its principal, and what it is owed is decided again when it is sent:
backlogs, messages in flight, wills, also after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.broker.service import Broker
from icestream.mqtt import packets
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.broker_machine import quiet
from tests.support.mqtt_world import MqttMachine, WorldClient, connected
from tests.support.secured_access import SecuredAccess

pytestmark = pytest.mark.asyncio
ALICE, BOB = ["read,write on mqtt:a/#"], ["read,write on mqtt:b/#"]
BOTH = {"alice": ALICE, "bob": BOB, "root": ["admin on cluster"]}


@pytest.fixture
def machine() -> MqttMachine:
    return MqttMachine()


@pytest.fixture
def access() -> SecuredAccess:
    return SecuredAccess(BOTH)


@pytest_asyncio.fixture
async def broker(machine: MqttMachine) -> AsyncIterator[Broker]:
    broker = await machine.open_broker()
    yield broker
    await broker.shutdown()


async def durable(broker: Broker, access: SecuredAccess, user: str, client_id: str = "s", **more: Any) -> WorldClient:
    options = {"clean": False, "expiry_s": 3600, **more}
    return await connected(broker, client_id, access=access, user=user, **options)


async def refusal(client: WorldClient) -> errors.IcestreamError:
    """The error with which the broker refuses the CONNECT."""
    client.send(client.connect_packet)
    assert client._worker is not None
    with pytest.raises(errors.IcestreamError) as refused:
        await client._worker
    return refused.value


async def payloads(client: WorldClient) -> list[bytes]:
    for _ in range(20):
        await quiet()
    return [packet.payload for packet in client.deliveries()]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
async def test_hazard_115_a_session_is_not_taken_over_by_another_principal(
    broker: Broker, access: SecuredAccess, is_clean: bool, is_away: bool
) -> None:
    alice = await durable(broker, access, "alice")
    await alice.subscribe("a/#")
    if is_away:
        alice.lose()
    for user in ("bob", ""):
        stranger = WorldClient(broker, "s", access=access, user=user, clean=is_clean, expiry_s=60)
        assert isinstance(await refusal(stranger), (errors.PermissionDenied, errors.Unauthenticated))
    if not is_away:
        assert alice.ended is None, "its connection goes on"
    again = await durable(broker, access, "alice")
    publisher = await connected(broker, "p", access=access, user="alice")
    await publisher.publish("a/1", b"hers")
    assert (await again.message()).payload == b"hers"
    root = await durable(broker, access, "root", "s")  # who may disconnect clients may take their place
    assert again.ended is not None
    root.lose()


@pytest.mark.parametrize("user", ["", "nobody"])
async def test_hazard_120_a_principal_without_any_right_gets_no_session(
    broker: Broker, access: SecuredAccess, user: str
) -> None:
    """Else it could use up the bound of all sessions."""
    stranger = WorldClient(broker, "x", access=access, user=user, clean=False, expiry_s=60)
    error = await refusal(stranger)
    assert isinstance(error, errors.PermissionDenied if user else errors.Unauthenticated)
    assert not broker.mqtt.sessions
    await access.change({**BOTH, "anonymous": ["consume on mqtt:public/#"]})  # which everyone has
    assert (await connected(broker, "x", access=access, user=user)).session is not None


async def test_hazard_115_a_session_has_its_owner_after_a_restart(machine: MqttMachine, access: SecuredAccess) -> None:
    broker = await machine.open_broker()
    alice = await durable(broker, access, "alice")
    await alice.subscribe("a/#")
    await broker.shutdown()
    broker = await machine.open_broker()
    stranger = WorldClient(broker, "s", access=access, user="bob", clean=False, expiry_s=60)
    assert isinstance(await refusal(stranger), errors.PermissionDenied)
    assert (await durable(broker, access, "alice")).session is not None
    await broker.shutdown()


async def test_a_session_from_before_there_were_accounts_is_its_first_principals(
    broker: Broker, access: SecuredAccess
) -> None:
    before = await connected(broker, "s", clean=False, expiry_s=60)
    before.lose()
    await durable(broker, access, "alice")
    stranger = WorldClient(broker, "s", access=access, user="bob", clean=False, expiry_s=60)
    assert isinstance(await refusal(stranger), errors.PermissionDenied)


async def test_hazard_113_a_backlog_is_not_sent_after_its_right_has_ended(
    broker: Broker, access: SecuredAccess
) -> None:
    alice = await durable(broker, access, "alice")
    await alice.subscribe("a/#")
    alice.lose()
    publisher = await connected(broker, "p", access=access, user="alice")
    for number in range(5):
        await publisher.publish("a/1", b"%d" % number)
    await access.change({**BOTH, "alice": ["read on mqtt:b/#"]})
    again = await durable(broker, access, "alice")
    assert await payloads(again) == []
    # Nor when the right comes back: the subscription has ended.
    await access.change(BOTH)
    again.lose()
    third = await durable(broker, access, "alice")
    assert await payloads(third) == []
    assert (await third.subscribe("a/#")).reason_codes == (1,)


async def test_hazard_113_a_connected_client_gets_nothing_of_a_filter_that_it_lost(
    broker: Broker, access: SecuredAccess
) -> None:
    alice = await durable(broker, access, "alice", receive_maximum=1)
    await alice.subscribe("a/#")
    publisher = await connected(broker, "p", access=access, user="root")
    for number in range(5):  # one is in flight, the others wait for its ack
        await publisher.publish("a/1", b"%d" % number)
    await alice.message(ack=False)
    await access.change({**BOTH, "alice": ["read on mqtt:b/#"]})
    assert alice.ended is not None
    again = await durable(broker, access, "alice")
    assert await payloads(again) == [], "not even the message that was in flight"


async def test_a_backlog_behind_an_unsubscribe_ends_with_its_right_too(broker: Broker, access: SecuredAccess) -> None:
    alice = await durable(broker, access, "alice", receive_maximum=1)
    await alice.subscribe("a/#")
    publisher = await connected(broker, "p", access=access, user="root")
    for number in range(5):
        await publisher.publish("a/1", b"%d" % number)
    first = await alice.message(ack=False)
    await alice.unsubscribe("a/#")
    await access.change({**BOTH, "alice": ["read on mqtt:b/#"]})
    if alice.ended is None:
        alice.send(packets.PubackPacket(first.packet_id))
    assert await payloads(alice) == []


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_hazard_118_a_will_is_decided_again_when_it_is_published(
    machine: MqttMachine, access: SecuredAccess, is_restarted: bool, is_allowed: bool
) -> None:
    broker = await machine.open_broker()
    delay = Properties([(PropertyId.WILL_DELAY_INTERVAL, 5)])
    will = packets.Will("a/last", b"gone", 1, False, delay)
    alice = await durable(broker, access, "alice", will=will)
    alice.lose()
    if not is_allowed:
        await access.change({**BOTH, "alice": BOB})
    if is_restarted:
        await broker.shutdown()
        broker = await machine.open_broker()
    watcher = await connected(broker, "w", access=access, user="root")
    await watcher.subscribe("#")
    await machine.pass_time(30)
    received = await payloads(watcher)
    assert received == ([b"gone"] if is_allowed else [])
    await broker.shutdown()
