"""Hazard 121: an audit that floods, loops, stops or lies. The real broker and its log, on a simulated disk."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from icestream import errors, limits
from icestream.admin_api.erasure_api import NewErasure
from icestream.broker.audit_log import AUDIT_TOPIC, AuditLog
from icestream.broker.erasure_service import ErasureService
from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.service import Broker
from icestream.frontends.native.public_calls import Caller
from icestream.internal_api.erasure_calls import ErasureCalls
from icestream.model import SyncMode, envelope
from icestream.model.block import iter_blocks
from icestream.model.subscription_options import SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import AccessPolicy, AccessRule, Grant
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.audit_event import AuditEvent
from icestream.security.authenticator import FailedLogin
from icestream.security.principal import CallerIdentity, local_user
from icestream.security.resource import CLUSTER, Pattern, Resource, topic_resource
from tests.support.broker_machine import TOPIC, BrokerMachine, publish, quiet
from tests.support.held_sink import HeldSink

pytestmark = pytest.mark.asyncio
ALICE, ADMIN = local_user("alice"), local_user("root")
ORDERS = topic_resource(TopicName("shop", "orders"))
AUDIT = topic_resource(AUDIT_TOPIC)


class Audited:
    """A broker with its audit and access control."""

    def __init__(self, machine: BrokerMachine, broker: Broker, *, records_access: bool = False) -> None:
        self.machine = machine
        self.broker = broker
        self.audit = AuditLog(broker, broker.storage, machine.clock, "node-1", records_access=records_access)
        self.control = AccessControl(machine.clock, on_denied=self.audit.denied, on_allowed=self.audit.accessed)

    async def secure(self) -> None:
        rule = AccessRule(frozenset({Action.ADMIN}), Pattern.parse("cluster"))
        await self.control.apply(AccessPolicy(True, 1, {}, {ADMIN: (Grant("1", ADMIN, rule=rule),)}))

    def session(self, principal: object = ALICE) -> AccessSession:
        return self.control.new_session(CallerIdentity(principal), "10.0.0.1:5555", "native")  # type: ignore[arg-type]

    async def events(self) -> list[AuditEvent]:
        if self.broker.find_topic(AUDIT_TOPIC) is None:
            return []
        (stream,) = self.broker.shard_streams(self.broker.topic(AUDIT_TOPIC))
        blocks, offset = [], 0
        while offset < stream.visible:
            read = await stream.read(offset, 2**20)
            blocks += [block for section in read.sections for block in iter_blocks(section.body)]
            offset = read.next_offset
        payloads = [payload for block in blocks for payload in block.values(envelope.PAYLOAD)]
        return [msgspec.json.decode(payload, type=AuditEvent) for payload in payloads]  # type: ignore[arg-type]

    async def pass_second(self) -> None:
        await quiet()
        await self.machine.pass_time(1)


async def audited(*, records_access: bool = False, **options: int) -> Audited:
    machine = BrokerMachine(**options)
    world = Audited(machine, await machine.open_broker(), records_access=records_access)
    await world.secure()
    return world


def deny(session: AccessSession, action: Action = Action.CONSUME, resource: Resource = ORDERS) -> None:
    with pytest.raises(errors.PermissionDenied):
        session.require(action, resource)


async def test_denials_and_failed_logins_are_merged_in_a_second() -> None:
    world = await audited()
    assert await world.events() == []
    session = world.session()
    before = metrics.DENIALS.values.get("consume", 0)
    for _ in range(5):
        deny(session)
    deny(session, Action.PRODUCE)
    world.audit.login_failed(FailedLogin("bob\x00", "10.0.0.2:1", "danube", "password"))
    assert await world.events() == []
    await world.pass_second()
    first, second, third = await world.events()
    assert (first.event, first.principal, first.address, first.listener) == (
        "denied", "user:local:alice", "10.0.0.1", "native",
    )  # fmt: skip
    assert (first.action, first.resource, first.decision, first.count) == ("consume", "topic:/shop/orders", "denied", 5)
    assert "no rule of user:local:alice allows consume" in first.rule
    assert (second.action, second.count) == ("produce", 1)
    assert (third.event, third.principal, third.address, third.rule) == (
        "login-failed", "bob\ufffd", "10.0.0.2", "password",
    )  # fmt: skip
    assert metrics.DENIALS.values["consume"] == before + 5
    deny(session)
    await world.audit.close()
    assert len(await world.events()) == 4


async def test_changes_are_audited_and_other_accesses_by_setting() -> None:
    for records_access in (False, True):
        world = await audited(records_access=records_access)
        session = world.session(ADMIN)
        broker = BrokerDoor(world.broker, world.control).guard(session)
        name = TopicName("default", "orders")
        producer = await broker.open_producer(name, "p", create=True)  # creates its topic
        broker.close_producer(producer)
        again = await broker.open_producer(name, "p", create=True)
        broker.close_producer(again)
        await broker.create_subscription(name, "s", SubscriptionType.SHARED)
        await broker.seek(name, "s", SubscriptionStart())
        broker.topic(name)
        await broker.delete_topic(name)
        await world.pass_second()
        events = [(event.action, event.resource) for event in await world.events() if event.event == "access"]
        changes = [
            ("create", "topic:/default/orders"),
            ("alter", "subscription:/default/orders/s"),
            ("delete", "topic:/default/orders"),
        ]
        assert [event for event in events if event in changes] == changes
        others = {("produce", "topic:/default/orders"), ("describe", "topic:/default/orders")}
        assert set(events) - set(changes) == (others if records_access else set())


async def test_an_erasure_is_audited_without_its_predicate(tmp_path: Path) -> None:
    """A dry run and a check change nothing, and are no events. A refused one is an event: it was asked for."""
    world = await audited()
    session = world.session(ADMIN)
    broker = BrokerDoor(world.broker, world.control).guard(session)
    name = TopicName("default", "orders")
    broker.close_producer(await broker.open_producer(name, "p", create=True))
    log = world.machine.log
    assert log is not None
    service = ErasureService(log, world.machine.store, world.machine.clock, tmp_path / "erasure.key", "node-1")
    caller = Caller(None, broker)  # type: ignore[arg-type]
    calls = ErasureCalls(service, world.audit)
    for mode in ("dry-run", "check", "erase"):
        await calls.begin_erasure(caller, NewErasure(topic=str(name), where="key = 'alice'", mode=mode))
        service._progress = None
        service._request = None
    await world.pass_second()
    events = [event for event in await world.events() if "erased" in msgspec.json.encode(event).decode()]
    (event,) = events
    assert (event.event, event.action, event.resource, event.principal) == (
        "change",
        "delete",
        "topic:/default/orders",
        str(ADMIN),
    )
    assert all("alice" not in msgspec.json.encode(event).decode() for event in await world.events())
    await world.audit.close()


async def test_hazard_121_a_change_is_durable_before_it_is_made() -> None:
    """Killed inside of the change: its event is there, in every mode."""
    for mode in SyncMode:
        machine = BrokerMachine(mode=mode)
        world = Audited(machine, await machine.open_broker())
        # The first record of a shard is synced in every mode; the second is not, unless the audit asks for it.
        async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, "create user alice"):
            pass
        async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, "create user bob"):
            await machine.power_loss()
        after = Audited(machine, await machine.open_broker())
        events = await after.events()
        assert [event.detail for event in events] == ["create user alice", "create user bob"]
        assert {(event.event, event.principal, event.decision) for event in events} == {
            ("change", "user:local:root", "allowed")
        }


async def test_a_change_that_fails_is_recorded_as_such() -> None:
    world = await audited()
    with pytest.raises(errors.AlreadyExists):
        async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, "create user alice"):
            raise errors.AlreadyExists("there is a user alice")
    await world.pass_second()
    assert [(event.event, event.decision, event.rule) for event in await world.events()] == [
        ("change", "allowed", ""),
        ("change-failed", "denied", "already_exists"),
    ]


async def test_hazard_121_a_full_quota_refuses_changes_and_lets_data_and_decisions_pass() -> None:
    """The topic of the audit has used up its quota; others have not."""
    world = await audited(topic_quota_bytes=64 * 1024)
    producer = await world.broker.open_producer(TOPIC, "p")
    made: list[str] = []

    async def make_changes() -> None:
        while True:
            detail = f"{len(made)} {'x' * 900}"
            async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, detail):
                made.append(detail)

    with pytest.raises(errors.Refused, match="could not be recorded in /system/audit") as caught:
        await make_changes()
    assert isinstance(caught.value.__cause__, errors.TopicQuotaReached)
    assert [event.detail for event in await world.events()] == made != []
    dropped = metrics.AUDIT_DROPPED.values.get("topic_quota", 0)
    for _ in range(3):
        deny(world.session())
    await world.pass_second()
    assert metrics.AUDIT_DROPPED.values["topic_quota"] == dropped + 3
    assert await publish(world.broker, producer, b"m") == 0
    assert world.machine.log is not None
    world.machine.log.change_options(replace(world.machine.options, topic_quota_bytes=2**30))
    deny(world.session())
    await world.pass_second()
    async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, "create user alice"):
        pass
    assert [event.event for event in (await world.events())[-2:]] == ["denied", "change"]


async def test_hazard_121_a_full_disk_refuses_changes() -> None:
    """Whichever write fails: a change is made and recorded, or neither, and the next one is made."""
    made: list[str] = []

    async def change(world: Audited, detail: str) -> None:
        async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, detail):
            made.append(detail)

    refusals: list[str] = []
    for after in range(4):
        world = await audited()
        made.clear()
        await change(world, "create user alice")
        world.machine.disk.fail("write", errno.ENOSPC, after)
        for number in range(3):
            try:
                await change(world, f"create user {number}")
            except errors.Refused as error:
                refusals.append(error.message)
            deny(world.session())  # decided, whether or not it can be recorded
        world.machine.disk.heal()
        await change(world, "create user bob")
        recorded = [event.detail for event in await world.events() if event.event == "change"]
        assert recorded == made
    assert len(refusals) >= 2
    assert all("could not be recorded in /system/audit" in message for message in refusals)


async def test_hazard_121_a_disk_that_does_not_answer_refuses_changes_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_SECONDS_MAX", 0.05)
    machine, sink = BrokerMachine(), HeldSink()
    world = Audited(machine, await machine.open_broker(sink))
    with pytest.raises(errors.Refused, match="took longer than"):
        async with world.audit.change(world.session(ADMIN), Action.ADMIN, CLUSTER, "create user alice"):
            pytest.fail("the change was made without its event")


async def test_a_broker_without_accounts_records_nothing_and_has_no_such_topic() -> None:
    machine = BrokerMachine()
    world = Audited(machine, await machine.open_broker(), records_access=True)
    world.session().require(Action.CONSUME, ORDERS)
    await world.pass_second()
    await world.audit.close()
    assert world.broker.find_topic(AUDIT_TOPIC) is None


async def test_hazard_121_the_audit_audits_no_audit() -> None:
    world = await audited(records_access=True)
    admin = world.session(ADMIN)
    admin.require(Action.CONSUME, AUDIT)
    admin.require(Action.CONSUME, ORDERS)
    await world.pass_second()
    assert [(event.event, event.resource, event.decision) for event in await world.events()] == [
        ("access", "topic:/shop/orders", "allowed")
    ]
    assert "grant 1" in (await world.events())[0].rule
    for _ in range(3):  # nothing follows from what was recorded
        await world.pass_second()
    assert len(await world.events()) == 1


@pytest.mark.parametrize("action", [Action.PRODUCE, Action.DELETE, Action.ALTER, Action.TABLE_WRITE, Action.CREATE])
async def test_hazard_121_no_client_writes_or_deletes_it(action: Action) -> None:
    world = await audited()
    deny(world.session(ADMIN), action, AUDIT)
    await world.audit.close()
    assert [(event.principal, event.resource) for event in await world.events()] == [(str(ADMIN), str(AUDIT))]


async def test_a_topic_that_was_deleted_while_security_was_off_is_created_again() -> None:
    world = await audited()
    deny(world.session())
    await world.pass_second()
    await world.broker.delete_topic(AUDIT_TOPIC)
    deny(world.session())
    await world.pass_second()
    assert [event.count for event in await world.events()] == [1]
