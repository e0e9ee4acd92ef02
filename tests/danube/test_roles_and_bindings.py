"""Danube's calls for roles and bindings, over gRPC, on the records that `icestream security` changes too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from grpc import aio

from icestream.frontends.danube.security_handlers import PERMISSIONS
from icestream.frontends.danube.wire import admin_pb2 as pb
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.runtime.randomness import SystemRandomness
from icestream.security import security_records as records
from icestream.security.access_policy import decide
from icestream.security.action import Action
from icestream.security.key_ring import KeyRing, create_wrapping_key
from icestream.security.principal import ANONYMOUS, CallerIdentity, Principal, service_account
from icestream.security.resource import CLUSTER, Resource, topic_resource
from tests.support.node_settings import node_settings
from tests.support.secured_danube import Answer, DanubeCaller, Refusal
from tests.support.tokens import DANUBE_KEY

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
APP = Principal.parse("danube:service_account:test-app")
TOPIC, OTHER = "/default/t", "/default/other"
METHODS = [
    "CreateRole", "GetRole", "ListRoles", "DeleteRole",
    "CreateBinding", "GetBinding", "ListBindings", "ListAllBindings", "DeleteBinding",
]  # fmt: skip


class AdminPort:
    """A node with accounts and Danube's key, and its admin port; `ops` is an administrator."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self._channels: list[aio.Channel] = []

    async def secure(self) -> None:
        randomness = SystemRandomness()
        wrapping_key = create_wrapping_key(self.node.settings.data_dir, randomness)
        ring = KeyRing.new(randomness, self.node.clock.wall_us()).encode(wrapping_key, randomness)
        await self.node.security.init("root", "hash", ring)
        for name in ("ops", "nobody"):
            await self.node.security.create_service(name)
        await self.node.security.grant(service_account("ops"), "administrator")

    def caller(self, token: str, port: int) -> DanubeCaller:
        channel = aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._channels.append(channel)
        return DanubeCaller(channel, *([("authorization", f"Bearer {token}")] if token else []))

    def service(self, name: str) -> DanubeCaller:
        """Calls of a service account, on the admin port."""
        generation = self.node.policy_watch.find_service(name)
        assert generation is not None
        token = self.node.service_tokens.mint(service_account(name), generation, [], 600).token
        return self.caller(token, self.node.danube.admin_port)

    def app(self, port: int) -> DanubeCaller:
        """Calls with a token that Danube's tools minted."""
        claims = {"exp": 4e9, "principal_type": "service_account", "principal_name": "test-app"}
        return self.caller(jwt.encode(claims, DANUBE_KEY, "HS256"), port)

    def is_allowed(self, principal: Principal, action: Action, resource: Resource) -> bool:
        return decide(CallerIdentity(principal), action, resource, self.node.access_control.policy).is_allowed

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await self.node.stop()


@pytest_asyncio.fixture
async def world(tmp_path: Path, wire: str) -> AsyncIterator[AdminPort]:
    key = tmp_path / "danube.key"
    key.touch(0o600)
    key.write_bytes(DANUBE_KEY)
    settings = node_settings(tmp_path, "memory", danube={"enable": True}, security={"danube_key_file": key})
    world = AdminPort(await BrokerNode.start(settings))
    try:
        await world.secure()
        yield world
    finally:
        await world.close()


async def call(caller: DanubeCaller, name: str, request: Message, kind: type[Answer]) -> Answer:
    return await caller.call(f"/danube_admin.SecurityAdmin/{name}", request, kind)


async def create_role(caller: DanubeCaller, name: str, *permissions: str) -> None:
    role = pb.Role(role=pb.RoleDefinition(name=name, permissions=permissions))
    assert (await call(caller, "CreateRole", role, pb.Done)).success


def binding(id_: str, *roles: str, scope: str = "topic", resource: str = TOPIC, **fields: str) -> pb.BindingDefinition:
    principal = {"principal_type": "service_account", "principal_name": "test-app", **fields}
    return pb.BindingDefinition(id=id_, role_names=roles, scope=scope, resource_name=resource, **principal)


async def bind(caller: DanubeCaller, definition: pb.BindingDefinition) -> None:
    assert (await call(caller, "CreateBinding", pb.Binding(binding=definition), pb.Done)).success


async def bindings(caller: DanubeCaller) -> list[pb.BindingDefinition]:
    listed = (await call(caller, "ListAllBindings", pb.Empty(), pb.BindingListResponse)).bindings
    return [entry for entry in listed if entry.principal_type in ("user", "service_account")]


async def status(caller: DanubeCaller, name: str, request: Message) -> str:
    with pytest.raises(Refusal) as caught:
        await call(caller, name, request, pb.Done)
    return caught.value.status


async def test_danubes_own_example_gives_produce_and_consume_on_one_topic(world: AdminPort) -> None:
    """The steps of Danube's security test: two roles, a binding of each to one topic, an application with a token."""
    ops, app = world.service("ops"), world.app(world.node.danube.port)
    with pytest.raises(Refusal, match="danube:service_account:test-app may not produce"):
        await app.producer()
    await create_role(ops, "producer-role", "Produce", "Lookup")
    await create_role(ops, "consumer-role", "Consume", "Lookup")
    await bind(ops, binding("test-app-produce", "producer-role"))
    await bind(ops, binding("test-app-consume", "consumer-role"))
    producer, consumer = await app.producer(), await app.subscribe()
    stream = app.receive(consumer)
    await app.send(producer, b"1")
    message = await stream.next()
    assert message.payload == b"1"
    await app.ack(message)
    for action in (Action.PRODUCE, Action.CONSUME, Action.CREATE):
        assert world.is_allowed(APP, action, topic_resource(TopicName.parse(TOPIC)))
        assert not world.is_allowed(APP, action, topic_resource(TopicName.parse(OTHER)))
    assert not world.is_allowed(APP, Action.TABLE_READ, topic_resource(TopicName.parse(TOPIC)))
    request = pb.BindingRequest(scope="topic", resource_name=TOPIC, binding_id="test-app-produce")
    assert (await call(ops, "DeleteBinding", request, pb.Done)).success
    with pytest.raises(Refusal, match="may not produce"):  # the open producer ends with the binding
        await app.send(producer, b"2")
    stream.cancel()


async def test_roles_are_those_of_icestream_and_shown_by_their_permissions(world: AdminPort) -> None:
    ops = world.service("ops")
    await create_role(ops, "everything", *PERMISSIONS)
    await create_role(ops, "small", "Lookup")
    await create_role(ops, "small", "Consume")  # replaces it, as in Danube
    roles = {role.name: role for role in (await call(ops, "ListRoles", pb.Empty(), pb.RoleListResponse)).roles}
    assert list(roles["everything"].permissions) == list(PERMISSIONS)
    assert list(roles["small"].permissions) == ["Consume"]
    assert list(roles["administrator"].permissions) == list(PERMISSIONS)
    assert roles["administrator"].system
    assert not roles["small"].system
    assert list(roles["reader"].permissions) == ["Lookup", "Consume"]
    assert world.node.security.state.role_records["small"].rules == [records.RuleRecord(["consume"], "/*/*")]
    shown = await call(ops, "GetRole", pb.RoleRequest(name="small"), pb.Role)
    assert shown.role == roles["small"]
    assert (await call(ops, "DeleteRole", pb.RoleRequest(name="small"), pb.Done)).success
    assert await status(ops, "GetRole", pb.RoleRequest(name="small")) == "NOT_FOUND"
    assert await status(ops, "DeleteRole", pb.RoleRequest(name="small")) == "NOT_FOUND"
    assert await status(ops, "DeleteRole", pb.RoleRequest(name="administrator")) == "FAILED_PRECONDITION"
    for permissions, is_system in ((["Replicate"], False), (["Fly"], False), ([], False), (["Lookup"], True)):
        role = pb.Role(role=pb.RoleDefinition(name="x", permissions=permissions, system=is_system))
        assert await status(ops, "CreateRole", role) == "INVALID_ARGUMENT"
    await world.node.security.put_role("ours", [records.RuleRecord(["read"], "/shop/*")])
    refused = pb.Role(role=pb.RoleDefinition(name="ours", permissions=["Lookup"]))
    assert await status(ops, "CreateRole", refused) == "ALREADY_EXISTS"
    assert await status(ops, "CreateRole", pb.Role(role=pb.RoleDefinition(name="", permissions=["Lookup"]))) == (
        "INVALID_ARGUMENT"
    )


async def test_bindings_are_grants_and_grants_are_bindings(world: AdminPort) -> None:
    ops = world.service("ops")
    for name, permission in (("p", "Produce"), ("c", "Consume"), ("s", "ManageSchema")):
        await create_role(ops, name, permission)
    definitions = [
        binding("b1", "c", "p"),
        binding("b1", "p", scope="namespace", resource="default"),
        binding("b1", "c", scope="cluster", resource=""),
        binding("b2", "s", resource="orders-value"),
    ]
    for definition in definitions:
        await bind(ops, definition)
    assert sorted(await bindings(ops), key=str) == sorted(definitions, key=str)
    for definition in definitions:
        request = pb.BindingRequest(
            scope=definition.scope, resource_name=definition.resource_name, binding_id=definition.id
        )
        assert (await call(ops, "GetBinding", request, pb.Binding)).binding == definition
        listed = await call(ops, "ListBindings", request, pb.BindingListResponse)
        assert definition in listed.bindings
    grants = [grant for grant in world.node.security.state.grants.values() if grant.principal == APP]
    assert sorted((grant.role, str(grant.scope)) for grant in grants) == [
        ("c", "None"), ("c", "topic:/default/t"), ("p", "namespace:/default"), ("p", "topic:/default/t"),
        ("s", "schema:/orders-value"),
    ]  # fmt: skip
    # Of another tool: by its own id.
    grant_id = await world.node.security.grant(service_account("nobody"), "c", scope="/default/t")
    request = pb.BindingRequest(scope="topic", resource_name=TOPIC, binding_id=grant_id)
    shown = (await call(ops, "GetBinding", request, pb.Binding)).binding
    assert (shown.principal_type, shown.principal_name, shown.role_names) == ("service:local", "nobody", ["c"])
    assert (await call(ops, "DeleteBinding", request, pb.Done)).success
    assert grant_id not in world.node.security.state.grants
    assert await status(ops, "DeleteBinding", request) == "NOT_FOUND"


async def test_a_binding_is_replaced_as_a_whole(world: AdminPort) -> None:
    ops = world.service("ops")
    for name, permission in (("p", "Produce"), ("c", "Consume")):
        await create_role(ops, name, permission)
    await bind(ops, binding("b", "p", "c"))
    await bind(ops, binding("b", "c"))
    await bind(ops, binding("b", "c"))
    (shown,) = await bindings(ops)
    assert shown.role_names == ["c"]
    await bind(ops, binding("b", "p", principal_name="other"))
    (shown,) = await bindings(ops)
    assert (shown.role_names, shown.principal_name) == (["p"], "other")
    assert not world.is_allowed(APP, Action.CONSUME, topic_resource(TopicName.parse(TOPIC)))
    assert await status(ops, "DeleteRole", pb.RoleRequest(name="p")) == "FAILED_PRECONDITION"  # it is granted


async def test_a_binding_of_a_deleted_topic_gives_nothing_until_it_is_made_again(world: AdminPort) -> None:
    ops, resource = world.service("ops"), topic_resource(TopicName.parse(TOPIC))
    await create_role(ops, "p", "Produce")
    await bind(ops, binding("b", "p"))
    await world.node.broker.create_topic(TopicName.parse(TOPIC))
    await world.node.broker.delete_topic(TopicName.parse(TOPIC))
    assert not world.is_allowed(APP, Action.PRODUCE, resource)
    assert await bindings(ops) == []
    await bind(ops, binding("b", "p"))
    assert world.is_allowed(APP, Action.PRODUCE, resource)
    assert len(await bindings(ops)) == 1


async def test_administration_is_given_to_accounts_in_the_cluster_alone(world: AdminPort) -> None:
    ops, nobody = world.service("ops"), service_account("nobody")
    await create_role(ops, "root-role", "ManageCluster", "Lookup")
    of_account = {"principal_type": "service:local", "principal_name": "nobody"}
    await bind(ops, binding("b", "root-role", scope="topic", **of_account))
    assert not world.is_allowed(nobody, Action.ADMIN, CLUSTER)
    assert not world.is_allowed(nobody, Action.PRODUCE, topic_resource(TopicName.parse(TOPIC)))
    assert world.is_allowed(nobody, Action.DESCRIBE, topic_resource(TopicName.parse(TOPIC)))
    in_cluster = pb.Binding(binding=binding("b", "root-role", scope="cluster", resource=""))
    assert await status(ops, "CreateBinding", in_cluster) == "INVALID_ARGUMENT"  # of Danube's key
    await bind(ops, binding("b", "root-role", scope="cluster", resource="", **of_account))
    assert world.is_allowed(nobody, Action.ADMIN, CLUSTER)


async def test_malformed_bindings_are_refused(world: AdminPort) -> None:
    ops = world.service("ops")
    await create_role(ops, "p", "Produce")
    for definition in (
        binding("", "p"),
        binding("b"),
        binding("b", "p", scope="galaxy"),
        binding("b", "p", resource=""),
        binding("b", "p", resource="/default/*"),
        binding("b", "p", resource="/only"),
        binding("b", "p", scope="namespace", resource="*"),
        binding("b", "p", principal_type=""),
        binding("b", "p", principal_name=""),
        binding("b", "p", principal_type="broker_internal"),
        binding("b", "p", principal_type="process:local", principal_name="lake"),
        binding("b", *(f"r{number}" for number in range(21))),
        binding("b\n", "p"),
        binding("b", "absent-role"),
    ):
        assert await status(ops, "CreateBinding", pb.Binding(binding=definition)) == "INVALID_ARGUMENT", definition
    assert await bindings(ops) == []
    await bind(ops, binding("b", "p", principal_type="anonymous", principal_name="anonymous"))
    assert world.is_allowed(ANONYMOUS, Action.PRODUCE, topic_resource(TopicName.parse(TOPIC)))


async def test_only_administrators_call_and_changes_are_in_the_audit(world: AdminPort) -> None:
    nobody, app = world.service("nobody"), world.app(world.node.danube.admin_port)
    for name in METHODS:
        assert await status(nobody, name, pb.Empty()) == "PERMISSION_DENIED"
        assert await status(app, name, pb.Empty()) == "PERMISSION_DENIED"
        assert await status(world.caller("", world.node.danube.admin_port), name, pb.Empty()) == "UNAUTHENTICATED"
    ops, audit = world.service("ops"), TopicName("system", "audit")
    await create_role(ops, "p", "Produce")  # the topic exists from the first event on
    (stream,) = world.node.broker.shard_streams(world.node.broker.topic(audit))
    before = stream.visible
    request = pb.BindingRequest(scope="topic", resource_name=TOPIC, binding_id="b")
    await bind(ops, binding("b", "p"))
    await call(ops, "DeleteBinding", request, pb.Done)
    await call(ops, "DeleteRole", pb.RoleRequest(name="p"), pb.Done)
    assert stream.visible >= before + 3


async def test_while_security_is_off_there_are_no_roles(tmp_path: Path, wire: str) -> None:
    world = AdminPort(await BrokerNode.start(node_settings(tmp_path, "memory", danube={"enable": True})))
    try:
        for name in METHODS:
            assert await status(world.caller("", world.node.danube.admin_port), name, pb.Empty()) == (
                "FAILED_PRECONDITION"
            )
    finally:
        await world.close()
