"""Every call of the local socket, and of the native protocol on TCP: by anonymous, without rights, with exactly the
right, and with the right on everything else. The broker lists its calls; one without an entry fails."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from icestream import errors
from icestream.broker import records
from icestream.frontends.native.native_front_end import NativeFrontEnd
from icestream.frontends.native.public_calls import CALLS as PUBLIC_CALLS
from icestream.frontends.native.public_calls import PORTS
from icestream.internal_api.call_gate import PROCESS_CALLS
from icestream.metadata import command as cmd
from icestream.model.subscription_options import DispatchMode
from icestream.rpc.frame import (
    FIRST_FROM_CLIENT,
    FROM_CLIENT,
    AckRanges,
    FrameKind,
    Outcome,
    PublishPart,
    encode_frame,
    encode_ranges,
)
from icestream.rpc.handshake import Hello, HelloCredential
from icestream.rpc.link import Link
from icestream.security.principal import local_user
from tests.support.access_world import ALLOWED, DENIED, ORDERS, UNAUTHENTICATED, access_world, outcome_of
from tests.support.raw_client import ClosedByBroker, ack, block, credit, ping, publish, raw_client

pytestmark = pytest.mark.asyncio
TOPIC, SUBSCRIPTION = {"topic": "/shop/orders"}, {"topic": "/shop/orders", "subscription": "old"}
ADMIN = ("admin on cluster",)
ACCOUNT = "service:local:nobody"


class TriedCall(NamedTuple):
    """How a call is tried.

    rules       that allow exactly it; empty: it needs none
    outcome     of a caller that has them; an error code where the node cannot do it, after the decision
    names       what the answer names for a caller with the right, and for no other: a listing, which everyone may ask
    """

    arguments: Mapping[str, Any] = MappingProxyType({})
    rules: tuple[str, ...] = ()
    outcome: str = ALLOWED
    names: str = ""
    neighbours: tuple[str, ...] | None = None


def of_topic(action: str, outcome: str = ALLOWED, **more: Any) -> TriedCall:
    return TriedCall({**TOPIC, **more}, (f"{action} on /shop/orders",), outcome)


def of_subscription(action: str, outcome: str = ALLOWED, **more: Any) -> TriedCall:
    return TriedCall({**SUBSCRIPTION, **more}, (f"{action} on subscription:/shop/orders/old",), outcome)


def of_namespace(action: str, namespace: str = "shop", **more: Any) -> TriedCall:
    return TriedCall({"namespace": namespace, **more}, (f"{action} on namespace:/{namespace}",))


def of_cluster(action: str, outcome: str = ALLOWED, **arguments: Any) -> TriedCall:
    return TriedCall(arguments, (f"{action} on cluster",), outcome)


def administration(outcome: str = ALLOWED, **arguments: Any) -> TriedCall:
    return TriedCall(arguments, ADMIN, outcome)


TOPIC_RECORD = records.encode(records.TopicRecord(1, 1, DispatchMode.RELIABLE, 0, ""))
ONLINE = "storage.iceberg_config.writer_batch_size"
_ASK_FOR_COMMIT = cmd.PutWithTtl("/pipeline/commit_now", b"", 1000)
COMMIT_NOW = cmd.encode_envelope(cmd.Envelope(cmd.VERSION, b"", 0, 0, _ASK_FOR_COMMIT))
NO_CLUSTER = errors.InvalidInput.code  # this broker is not part of one
CALLS: dict[str, TriedCall] = {
    # producers and consumers; those of handles are tried below
    "open_producer": of_topic("produce", producer="p"),
    "open_producer, create": TriedCall(
        {"topic": "/shop/new", "producer": "p", "create": True}, ("produce,create on /shop/new",)
    ),
    "subscribe": TriedCall(
        {**SUBSCRIPTION, "consumer": "c", "type": "shared"}, ("consume on subscription:/shop/orders/old",)
    ),
    "seek": of_subscription("alter", start="earliest"),
    # topics
    "create_topic": TriedCall({"topic": "/shop/new"}, ("create on /shop/new",)),
    "delete_topic": of_topic("delete"),
    "delete_topic, purge": TriedCall({**TOPIC, "table": "purge"}, ("delete,table-write on /shop/orders",)),
    "undelete_topic": TriedCall(TOPIC, ADMIN, errors.UnknownTopic.code),
    "list_deleted_topics": TriedCall({}, ADMIN),
    "takeover_topic": TriedCall(TOPIC, ADMIN, errors.InvalidInput.code),
    "describe_topic": of_topic("describe"),
    "topic_policies": of_topic("describe"),
    "topic_policies, change": of_topic("alter", policies={"max_producers": 3}),
    "list_topics": TriedCall({}, ("describe on /shop/orders",), names="/shop/orders"),
    "page_topics": TriedCall({"namespace": "shop"}, ("describe on /shop/orders",), names="/shop/orders"),
    "inspect_topic": of_topic("describe"),
    "topic_history": of_topic("describe"),
    "page_gaps": of_topic("describe", shard=0),
    "set_topic_policies": of_topic("alter", policies={}),
    "page_producers": of_topic("describe"),
    "disconnect_producer": of_topic("alter", errors.NotConnected.code, producer="p"),
    # subscriptions
    "page_subscriptions": of_topic("describe"),
    "inspect_subscription": of_subscription("describe"),
    "create_subscription": TriedCall(
        {"topic": "/shop/orders", "subscription": "s"}, ("alter on subscription:/shop/orders/s",)
    ),
    "change_subscription": of_subscription("alter", max_dispatch_rate=5),
    "delete_subscription": of_subscription("alter"),
    "page_consumers": of_subscription("describe"),
    "disconnect_consumer": of_subscription("alter", errors.NotConnected.code, consumer="c"),
    # namespaces
    "list_namespaces": TriedCall({}, ("describe on namespace:/shop",), names="shop"),
    "describe_namespace": of_namespace("describe"),
    "create_namespace": TriedCall({"namespace": "new"}, ("create on namespace:/new",)),
    "delete_namespace": of_namespace("delete", "spare"),
    "set_namespace_policies": of_namespace("alter", policies={}),
    # the node and the cluster
    "page_restores": of_cluster("restore"),
    "inspect_wal": of_cluster("describe"),
    "page_wal_files": of_cluster("describe"),
    "list_settings": of_cluster("describe"),
    "describe_setting": of_cluster("describe", key="log.level"),
    "set_setting": administration(key=ONLINE, value=64),
    "unset_setting": administration(key=ONLINE),
    "health": of_cluster("describe"),
    "ports": TriedCall(),
    "places": TriedCall(),
    "cluster_status": of_cluster("describe", NO_CLUSTER),
    "cluster_verify": of_cluster("describe", NO_CLUSTER),
    "cluster_add": administration(NO_CLUSTER, address="127.0.0.1:1"),
    "cluster_join_token": administration(NO_CLUSTER, node="n", ttl_seconds=5),
    "cluster_promote": administration(NO_CLUSTER, node="n"),
    "cluster_remove": administration(NO_CLUSTER, node="n"),
    "cluster_transfer": administration(NO_CLUSTER, node="n"),
    "cluster_snapshot": administration(NO_CLUSTER),
    "pipeline_backlog": of_cluster("describe"),
    "pipeline_state": of_cluster("describe"),
    "restore_begin": of_cluster("admin", backup="b"),
    "restore_schemas": of_cluster("admin", subjects=[]),
    "restore_producers": of_cluster("admin", errors.LeaseLost.code, backup="b", topic="/shop/absent", producers=[]),
    "restore_sessions": of_cluster("admin", errors.InvalidInput.code, backup="b", shard=0, blocks=[]),
    "restore_accounts": of_cluster("admin", backup="b", entries=[]),
    "restore_finish": of_cluster("admin", backup="b"),
    "restore_erased": of_cluster("admin", log_id="ab", topic_id=1),
    "restore_live": of_cluster("admin", topic="/shop/absent"),
    "restore_allocate": of_cluster("admin", backup="b", topic="/shop/restored"),
    "restore_topic": of_cluster(
        "admin", errors.LeaseLost.code, backup="b", topic="/shop/absent", record=TOPIC_RECORD, shards=[[0, 0, 1, []]]
    ),
    "restore_end": of_cluster("admin", backup="b", topic="/shop/restored"),
    "backup_node": of_cluster("backup"),
    "backup_hold": of_cluster("backup", id="b"),
    "backup_cut": of_cluster("backup", errors.LeaseLost.code, id="absent"),
    "backup_tail": of_cluster("backup", errors.LeaseLost.code, id="absent", topic=1, shard=0, offset=0, end=1),
    "backup_tables": of_cluster("backup"),
    "backup_pin": of_cluster("backup", id="b", uuid="u", snapshot=1),
    "backup_unpin": of_cluster("backup", id="b", uuid="u"),
    "backup_unpin_all": of_cluster("backup", id="b"),
    "backup_numbers": of_cluster("backup", count=1),
    "backup_freeze": administration(errors.LeaseLost.code, id="absent"),
    "backup_part": administration(errors.LeaseLost.code, id="absent", name="metadata", start=0),
    "backup_end": of_cluster("backup", id="absent"),
    "backup_options": of_cluster("backup"),
    "begin_erasure": of_topic("delete,maintain", where="key = 'alice'"),
    "erasure_state": of_topic("delete,maintain"),
    "archive_mark": administration(errors.Refused.code, next_lsn=0, revision=0),
    "archive_read": administration(errors.InvalidInput.code, lsn=10**9, end_lsn=10**9 + 1),
    "archive_changes": administration(after=0),
    "archive_freeze": administration(),
    "archive_part": administration(start=0),
    "metadata_get": administration(key="/topics/shop/orders"),
    "metadata_list": administration(prefix="/topics/"),
    "metadata_revision": administration(),
    "metadata_watch": administration(prefix="/topics/", after=0),
    "metadata_submit": of_cluster("maintain", envelope=COMMIT_NOW),
    "metadata_unwatch": administration(handle=1),
    # MQTT
    "page_mqtt_sessions": of_cluster("describe"),
    "inspect_mqtt_session": of_cluster("describe", errors.UnknownSession.code, client_id="absent"),
    "kick_mqtt_client": of_cluster("alter", errors.UnknownSession.code, client_id="absent"),
    "kick_mqtt_client, session": TriedCall(
        {"client_id": "absent", "delete_session": True}, ("alter,delete on cluster",), errors.UnknownSession.code
    ),
    "page_mqtt_subscriptions": of_cluster("describe"),
    "page_mqtt_topics": TriedCall({}, ("describe on mqtt:orders/#",), names="orders/1"),
    "page_mqtt_retained": TriedCall({}, ("describe on mqtt:orders/#",), names="orders/1"),
    "page_mqtt_retained, payload": TriedCall({"has_payload": True}, ("consume on mqtt:orders/#",), names="retained"),
    "clear_mqtt_retained": TriedCall({"filter": "orders/#"}, ("produce on mqtt:orders/#",), names="'cleared': 1"),
    "page_mqtt_routes": TriedCall(
        {}, ("describe on /mqtt/messages",), names="/mqtt/messages", neighbours=("all on /shop/*",)
    ),
    # security
    "security_page_accounts": administration(),
    "security_create_account": administration(kind="service", name="made"),
    "security_change_account": administration(principal=ACCOUNT, is_disabled=True),
    "security_delete_account": administration(principal=ACCOUNT),
    "security_page_tokens": administration(),
    "security_page_tokens, of another": administration(principal=str(local_user("root"))),
    "security_create_token": administration(principal=ACCOUNT, ttl_seconds=60),
    "security_revoke_token": administration(errors.UnknownAccount.code, token_id="x"),
    "security_revoke_all_tokens": administration(principal=str(local_user("root"))),
    "security_rotate_keys": administration(),
    "security_list_keys": administration(),
    "security_remove_key": administration(errors.InvalidInput.code, key_id="x"),
    "security_create_process_secret": administration(role="lake"),
    "security_delete_process_secret": administration(errors.InvalidInput.code, role="lake"),
    "security_page_roles": administration(),
    "security_put_role": administration(role="made", rules=[{"actions": ["read"], "resource": "/a/b"}]),
    "security_delete_role": administration(errors.UnknownAccount.code, role="absent"),
    "security_page_grants": administration(),
    "security_page_grants, of another": administration(principal=str(local_user("root"))),
    "security_create_grant": administration(principal=ACCOUNT, actions=["read"], resource="/a/b"),
    "security_delete_grant": administration(errors.UnknownAccount.code, grant_id="x"),
    "security_unpark_grant": administration(errors.UnknownAccount.code, grant_id="x"),
    "security_explain": administration(principal=str(local_user("root")), action="consume", resource="/a/b"),
    "security_whoami": TriedCall(),
    # By what the caller sends, not by its rights.
    "security_login": TriedCall({"name": "root", "password": "wrong"}, outcome=UNAUTHENTICATED),
    "security_init": TriedCall({"name": "eve", "password": "correct horse battery"}, outcome=errors.AlreadyExists.code),
}
# On handles of the connection itself, which others do not reach.
OF_HANDLES = {"close_producer", "reset_producer", "close_consumer"}
# By the account of the operating system at the other end of the socket.
OF_THE_OWNER = {"security_recover"}
# For processes of the node, whatever a client may do.
OF_PROCESSES = {name for names in PROCESS_CALLS.values() for name in names} - {name.partition(",")[0] for name in CALLS}


async def test_every_call_has_an_entry(tmp_path: Path) -> None:
    async with access_world(tmp_path, ADMIN) as world:
        assert world.node.services.local is not None
        served = world.node.services.local.methods
        public = world.node.services.front_end(NativeFrontEnd).listener.methods
    entries = {name.partition(",")[0] for name in CALLS} | OF_HANDLES | OF_THE_OWNER | OF_PROCESSES
    assert served | public == entries
    assert public <= served | {"ports"}


async def attempt(link: Link, name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """The outcome of a call, and its answer as text."""
    try:
        return ALLOWED, str(await link.call(name.partition(",")[0], dict(arguments)))
    except errors.IcestreamError as error:
        return outcome_of(error), ""


TRIED = [("local", name) for name in CALLS if name != PORTS]
TRIED += [("native", name) for name in CALLS if name.partition(",")[0] in {*PUBLIC_CALLS, PORTS}]


@pytest.mark.parametrize(("listener", "name"), TRIED)
async def test_a_call_needs_exactly_its_right(tmp_path: Path, listener: str, name: str) -> None:
    call = CALLS[name]
    sections = {"mqtt": {"enable": True}} if "mqtt" in name else {}
    async with access_world(tmp_path, call.rules, call.neighbours, **sections) as world:
        before = await world.records()
        for caller in [*world.strangers, "exact"]:
            outcome, answer = await attempt(await world.link(caller, listener), name, call.arguments)
            if not call.rules:
                assert outcome == call.outcome, caller
            elif call.names:
                expected = errors.UnknownNamespace.code if _is_hidden(name, caller) else ALLOWED
                # A caller that sees it, and may not do this, learns that it may not.
                assert outcome == expected or (outcome == DENIED and caller.startswith("weaker")), caller
                assert (call.names in answer) == (caller == "exact"), (caller, answer)
            elif caller == "exact":
                assert outcome == call.outcome
            else:
                assert outcome == (UNAUTHENTICATED if caller == "anonymous" else DENIED), caller
                assert await world.records() == before, f"{caller} has changed something"


def _is_hidden(name: str, caller: str) -> bool:
    """A namespace in which a caller sees nothing is answered as if it did not exist (hazard 123)."""
    return name == "page_topics" and caller in ("anonymous", "nobody")


@pytest.mark.parametrize("caller", ["anonymous", "exact"])
async def test_calls_of_processes_are_refused_to_an_administrator_too(tmp_path: Path, caller: str) -> None:
    async with access_world(tmp_path, ADMIN) as world:
        link, before = await world.link(caller), await world.records()
        for name in sorted(OF_PROCESSES):
            outcome, _ = await attempt(link, name, {})
            assert outcome == DENIED, name
        assert await world.records() == before


@pytest.mark.parametrize("role", sorted(PROCESS_CALLS))
async def test_hazard_108_a_role_makes_its_calls_and_no_other(tmp_path: Path, role: str) -> None:
    async with access_world(tmp_path, ADMIN) as world:
        secret = world.node.services.role_secrets.role_secret(role)
        link, before = await world.connect(HelloCredential(role=role, secret=secret)), await world.records()
        assert world.node.services.local is not None
        for name in sorted(world.node.services.local.methods - PROCESS_CALLS[role]):
            outcome, _ = await attempt(link, name, {**SUBSCRIPTION, **CALLS.get(name, TriedCall()).arguments})
            assert outcome == DENIED, name
        assert await world.records() == before
        for name in sorted(PROCESS_CALLS[role]):
            assert (await attempt(link, name, {}))[0] not in (DENIED, UNAUTHENTICATED), name


async def test_handles_are_those_of_their_connection(tmp_path: Path) -> None:
    async with access_world(tmp_path, ("produce,consume on /shop/orders",)) as world:
        own, other = await world.link("exact"), await world.link("exact")
        producer = (await own.call("open_producer", {**TOPIC, "producer": "p"}))["handle"]
        consumer = (await own.call("subscribe", {**SUBSCRIPTION, "consumer": "c", "type": "shared"}))["handle"]
        with pytest.raises(errors.UnknownHandle):
            await other.call("reset_producer", {"handle": producer, "shard": 0})
        for name, handle in (("close_producer", producer), ("close_consumer", consumer)):
            await other.call(name, {"handle": handle})
        topic = world.node.broker.list_topics()[0]
        assert [each.name for each in topic.producers] == ["p"]
        assert len(topic.subscriptions["old"].consumers) == 1
        await own.call("reset_producer", {"handle": producer, "shard": 0})


async def test_the_owner_of_the_data_directory_recovers_by_the_socket_alone(tmp_path: Path) -> None:
    request = {"name": "saved", "password": "correct horse battery"}
    async with access_world(tmp_path, ADMIN) as world:
        secret = world.node.services.role_secrets.role_secret("lake")
        lake = await world.connect(HelloCredential(role="lake", secret=secret))
        for token in ("", world.token("exact")):  # forwarded: the lake would lend its account to its client
            opened = await lake.call("security_open_session", {"credential": {"token": token} if token else {}})
            with pytest.raises((errors.PermissionDenied, errors.Unauthenticated)):
                await lake.call("security_recover", {**request, "session": opened["session"]})
        await (await world.link("anonymous")).call("security_recover", request)
        assert "saved" in world.node.security.state.users


async def test_an_account_sees_and_ends_its_own_tokens_and_rights(tmp_path: Path) -> None:
    """What needs no right about oneself needs one about others (above)."""
    async with access_world(tmp_path, ADMIN) as world:
        nobody = await world.link("nobody")
        for name in ("security_page_tokens", "security_page_grants"):
            assert (await attempt(nobody, name, {"principal": ACCOUNT}))[0] == ALLOWED
        question = {"principal": ACCOUNT, "action": "consume", "resource": "/a/b"}
        assert (await attempt(nobody, "security_explain", question))[0] == ALLOWED
        assert (await attempt(nobody, "security_revoke_all_tokens", {"principal": ACCOUNT}))[0] == ALLOWED
        assert (await attempt(nobody, "security_whoami", {}))[0] != ALLOWED, "its token has ended"


# --- frames -----------------------------------------------------------------------------------------------------------

# Every kind of frame that a client sends, and what decides about it.
FRAMES = {
    FrameKind.HELLO: "has the credential",
    FrameKind.CALL: "the calls above",
    FrameKind.PING: "answered to everyone, and tells nothing",
    FrameKind.PUBLISH: "a producer that the connection has opened",
    FrameKind.CREDIT: "a consumer of the connection",
    FrameKind.ACK: "a consumer of the connection",
    FrameKind.NACK: "a consumer of the connection",
}


async def test_every_frame_has_an_entry() -> None:
    assert FRAMES.keys() == FROM_CLIENT | FIRST_FROM_CLIENT


@pytest.mark.parametrize("caller", ["anonymous", "nobody", "exact"])
async def test_frames_reach_what_their_connection_has_opened(tmp_path: Path, caller: str) -> None:
    """The handles of others are numbers that anybody can guess."""
    async with access_world(tmp_path, ("produce,consume on /shop/orders",)) as world:
        address = f"127.0.0.1:{world.node.services.front_end(NativeFrontEnd).port}"
        token = world.token(caller)
        stranger = Hello(credential=HelloCredential(token=token) if token else None)
        async with raw_client(address, Hello(credential=HelloCredential(token=world.token("exact")))) as own:
            producer = (await own.call("open_producer", topic="/shop/orders", producer="p"))["handle"]
            joined = {**SUBSCRIPTION, "consumer": "c", "type": "shared"}
            consumer = (await own.call("subscribe", **joined))["handle"]
            number = own.next_number()
            await own.write(publish(number, PublishPart(producer, 0, block(b"1"))))
            assert (await own.published(number))[0].outcome == Outcome.STORED
            await own.write(credit(consumer, 1))
            assert (await own.read()).kind == FrameKind.DELIVER
            frames = [
                publish(7, PublishPart(producer, 0, block(b"2"))),
                credit(consumer, 5),
                ack(consumer, 0, 1),
                encode_frame(FrameKind.NACK, 0, encode_ranges(AckRanges(consumer, 0, 0, 0, [(0, 1)]))),
            ]
            for stray in frames:
                async with raw_client(address, stranger) as other:
                    await other.write(stray, ping(9))
                    with contextlib.suppress(ClosedByBroker):
                        assert (await other.read()).kind in (FrameKind.ERROR, FrameKind.PONG)
            topic = world.node.broker.topic(ORDERS)
            assert topic.published_messages == 1
            (delivery,) = topic.subscriptions["old"].deliveries
            assert delivery.dispatcher.acked.position == 0
            assert delivery.dispatcher.in_flight.size == 1
