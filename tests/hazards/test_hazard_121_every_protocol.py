"""Hazard 121: no client writes, changes or deletes the audit, on any protocol, an administrator neither. Calls and
methods are those of the matrix, with the audit in place of their topic: a new one is tried too. Commits to its table:
unit/lake/test_api_rights.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from icestream.broker.audit_log import AUDIT_TOPIC
from icestream.frontends.danube.method_rights import METHOD_RIGHTS
from icestream.mqtt import packets
from icestream.mqtt.reason_codes import ReasonCode
from icestream.security.resource import ResourceKind
from tests.matrix import test_grpc_methods as grpc_matrix
from tests.matrix import test_local_calls as call_matrix
from tests.support.access_world import ALLOWED, DENIED, AccessWorld, access_world
from tests.support.mqtt_client import open_client
from tests.support.until import WAIT_SECONDS

pytestmark = pytest.mark.asyncio
ADMIN: Final = ("admin on cluster",)
AUDIT: Final = str(AUDIT_TOPIC)
# Reading it, and having a subscription on it, is as on every topic.
OF_READERS: Final = {"describe", "consume", "backup"}
OF_SUBSCRIPTION: Final = "subscription:"
# Calls of the cluster whose argument may be the audit: the topic itself is not changed.
OF_CLUSTER: Final = {"takeover_topic", "undelete_topic", "restore_producers", "metadata_get"}


def on_audit(value: Any) -> Any:
    """The arguments of a call with the names of the audit."""
    if isinstance(value, dict):
        return {name: on_audit(each) for name, each in value.items()}
    if isinstance(value, str):
        text = {"shop": "system", "spare": "system", "new": "system"}.get(value, value)
        return text.replace("/shop/orders", AUDIT).replace("/shop/", "/system/")
    return value


def message_on_audit(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    for field, value in message.ListFields():
        if isinstance(value, Message):
            getattr(copy, field.name).CopyFrom(message_on_audit(value))
        elif isinstance(value, str):
            setattr(copy, field.name, on_audit(value))
    return copy


async def audited(world: AccessWorld) -> int:
    """How many events the audit has. The first of them is there."""
    link = await world.link("exact")
    outcome, _ = await call_matrix.attempt(link, "inspect_topic", {"topic": AUDIT})
    if outcome != ALLOWED:
        return 0
    (shard,) = (await link.call("inspect_topic", {"topic": AUDIT}))["shard_offsets"]
    assert shard["earliest"] == 0
    return int(shard["next"])


async def write_event(world: AccessWorld) -> None:
    """Waits until the audit has the denial of a call."""
    before = await audited(world)
    await call_matrix.attempt(await world.link("nobody"), "delete_topic", {"topic": "/shop/orders"})
    async with asyncio.timeout(WAIT_SECONDS):
        while await audited(world) <= before:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.05)


async def test_hazard_121_no_call_changes_the_audit(tmp_path: Path) -> None:
    async with access_world(tmp_path, ADMIN, danube={"enable": True}) as world:
        await write_event(world)
        tried = 0
        for listener, name in call_matrix.TRIED:
            call = call_matrix.CALLS[name]
            arguments = on_audit(dict(call.arguments))
            actions, resources = (
                zip(*(rule.split(" on ") for rule in call.rules), strict=True) if call.rules else ((), ())
            )
            if arguments == dict(call.arguments) or {*actions} <= OF_READERS or OF_SUBSCRIPTION in " ".join(resources):
                continue
            outcome, _ = await call_matrix.attempt(await world.link("exact", listener), name, arguments)
            assert name in OF_CLUSTER or outcome == DENIED, (listener, name, outcome)
            tried += 1
        for path, method in grpc_matrix.METHODS.items():
            request, right = message_on_audit(method.request), METHOD_RIGHTS[path]
            if request == method.request or right.action is None or right.action.value in OF_READERS or method.is_id:
                continue
            if right.kind is ResourceKind.SUBSCRIPTION:
                continue
            status, _ = await grpc_matrix.attempt(world, path, "exact", request)
            assert status in ("PERMISSION_DENIED", "UNIMPLEMENTED"), (path, status)
            tried += 1
        assert tried > 30
        await write_event(world)  # it has all its events, and takes more


async def test_hazard_121_no_packet_reaches_the_audit(tmp_path: Path) -> None:
    """MQTT topics of this name are messages like any other, and a filter of its subscribers reads none of it."""
    async with access_world(tmp_path, ADMIN, mqtt={"enable": True}) as world:
        await write_event(world)
        port = world.node.services.ports()["mqtt_port"]
        assert isinstance(port, int)
        async with await open_client(port) as client:
            await client.connect("c", user_name="token", password=world.token("exact").encode())
            await client.subscribe(("system/#", 0), ("$replay/-1h/#", 0))
            events = await audited(world)
            assert await client.publish("system/audit", b"forged", 1) <= ReasonCode.GRANTED_QOS_2
            received = [(await client.message()).payload]
            received += [packet.payload for packet in await client.ping() if isinstance(packet, packets.PublishPacket)]
            assert set(received) <= {b"forged", b"retained"}
        assert await audited(world) == events
