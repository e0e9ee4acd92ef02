"""Hazard 108: processes of the node have a role, forwarded calls the rights of their client, and nobody all rights."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.admin_api import cluster_api, namespace_api, node_api, session_api, subscription_api, topic_api
from icestream.admin_api.admin_call import AdminCall
from icestream.frontends.native.public_calls import CALLS
from icestream.internal_api.archive_calls import ARCHIVE_METHODS
from icestream.internal_api.backup_calls import BACKUP_METHODS
from icestream.internal_api.call_gate import CLUSTER_RIGHTS, OPEN_CALLS, PROCESS_CALLS, writable_prefixes
from icestream.internal_api.fence_calls import FENCE_METHODS
from icestream.internal_api.metadata_calls import METADATA_METHODS
from icestream.internal_api.pipeline_calls import PIPELINE_METHODS
from icestream.internal_api.scan_calls import SCAN_METHODS
from icestream.metadata import command as cmd
from icestream.metadata.store import MemoryStore
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.handshake import HelloCredential, role_credential
from icestream.rpc.link import open_link
from icestream.runtime.clock import SystemClock
from icestream.security.access_control import AccessControl
from icestream.security.principal import local_user
from tests.support.local_broker import LocalBroker, local_broker
from tests.support.node_settings import node_settings
from tests.support.secured_access import FixedSecrets, KnownNames, SecuredAccess, of_role, policy_of

pytestmark = pytest.mark.asyncio
ADMIN = {"admin": ["admin on cluster"], "alice": ["describe on /default/seen"]}


@contextlib.asynccontextmanager
async def secured(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    access = SecuredAccess(ADMIN)
    async with local_broker(
        tmp_path / "broker.sock", MemoryStore(), access_control=access, roles=FixedSecrets()
    ) as served:
        await served.broker.start()
        yield served


def of_user(name: str) -> HelloCredential:
    return HelloCredential(token=f"token-of-{name}")


def submission(*operations: cmd.Operation) -> dict[str, Any]:
    command = cmd.Txn([], list(operations), []) if len(operations) != 1 else operations[0]
    return {"envelope": cmd.encode_envelope(cmd.Envelope(cmd.VERSION, b"", 0, 0, command))}


async def test_hazard_108_every_call_names_the_roles_that_may_make_it() -> None:
    decided_by_the_broker = {
        value.name
        for module in (namespace_api, topic_api, subscription_api)
        for value in vars(module).values()
        if isinstance(value, AdminCall)
    }
    declared = {
        value.name
        for module in (node_api, cluster_api, session_api)
        for value in vars(module).values()
        if isinstance(value, AdminCall)
    }
    of_processes = {name for calls in PROCESS_CALLS.values() for name in calls}
    every = {*CALLS, *METADATA_METHODS, *PIPELINE_METHODS, *BACKUP_METHODS, *FENCE_METHODS, *SCAN_METHODS} | declared
    every |= decided_by_the_broker | {*ARCHIVE_METHODS}
    assert every - of_processes - CLUSTER_RIGHTS.keys() - OPEN_CALLS == decided_by_the_broker | set(CALLS)
    assert not (of_processes | CLUSTER_RIGHTS.keys()) & (decided_by_the_broker | set(CALLS))


@pytest.mark.parametrize("role", ["lake", "pipeline"])
async def test_hazard_108_a_role_makes_its_calls_alone(tmp_path: Path, role: str) -> None:
    async with secured(tmp_path) as served:
        link = await open_link(served.path, role, of_role(role))
        await link.call("metadata_revision", {})
        for method in ("list_topics", "create_topic"):  # every other: matrix/test_local_calls.py
            with pytest.raises(errors.PermissionDenied):
                await link.call(method, {"topic": "/default/a"})
        link.close()


@pytest.mark.parametrize(
    "credential",
    [
        HelloCredential(role="lake", secret="guessed"),
        HelloCredential(role="worker", secret=""),
        HelloCredential(role="lake", secret="secret-of-pipeline"),
    ],
)
async def test_hazard_108_a_process_without_its_secret_is_refused(tmp_path: Path, credential: HelloCredential) -> None:
    async with secured(tmp_path) as served:
        with pytest.raises(errors.Unauthenticated):
            await open_link(served.path, "worker", credential)


@pytest.mark.parametrize("role", ["lake", "pipeline"])
async def test_hazard_108_a_role_writes_its_keys_alone(tmp_path: Path, role: str) -> None:
    async with secured(tmp_path) as served:
        link = await open_link(served.path, role, of_role(role))
        await link.call("metadata_submit", submission(cmd.Put("/catalog/relations/a:b", b"1")))
        refused: list[list[cmd.Operation]] = [
            [cmd.Put("/security/x", b"1")],
            [cmd.Put("/topics/default/a", b"1")],
            [cmd.Put("/catalog/a", b"1"), cmd.Delete("/subscriptions/default/a/s")],
            [cmd.DeletePrefix("/")],
            [cmd.DeletePrefix("/catalo")],
            [cmd.PutLease("/settings/wal", b"", 1)],
        ]
        for operations in refused:
            with pytest.raises(errors.PermissionDenied):
                await link.call("metadata_submit", submission(*operations))
        with pytest.raises(errors.PermissionDenied):
            await link.call("metadata_renew", {"key": "/topics/default/a", "revision": 1})
        assert [key for key, _ in await served.store.list_all("/catalog/")] == ["/catalog/relations/a:b"]
        link.close()


async def test_hazard_108_a_forwarded_call_has_the_rights_of_its_client(tmp_path: Path) -> None:
    async with secured(tmp_path) as served:
        for name in ("seen", "hidden"):
            await served.broker.create_topic(TopicName("default", name))
        link = await open_link(served.path, "lake", of_role("lake"))
        opened = await link.call("security_open_session", {"credential": {"token": "token-of-alice"}})
        session = {"session": opened["session"]}
        assert (await link.call("list_topics", session))["topics"] == ["/default/seen"]
        assert (await link.call("describe_topic", {**session, "topic": "/default/seen"}))["shards"] == 1
        with pytest.raises(errors.PermissionDenied, match="alice may not describe"):
            await link.call("describe_topic", {**session, "topic": "/default/hidden"})
        with pytest.raises(errors.PermissionDenied, match="without the session"):
            await link.call("describe_topic", {"topic": "/default/seen"})
        with pytest.raises(errors.UnknownHandle):
            await link.call("describe_topic", {"session": opened["session"] + 1, "topic": "/default/seen"})
        link.close()


async def test_hazard_108_a_client_of_the_socket_has_its_own_rights(tmp_path: Path) -> None:
    async with secured(tmp_path) as served:
        admin = await open_link(served.path, "cli", of_user("admin"))
        alice = await open_link(served.path, "cli", of_user("alice"))
        nobody = await open_link(served.path, "cli")
        await admin.call("create_topic", {"topic": "/default/seen"})
        await admin.call("metadata_list", {"prefix": "/topics/"})
        await admin.call("metadata_submit", submission(cmd.PutWithTtl("/pipeline/commit_now", b"", 1000)))
        for link in (alice, nobody):
            for method in METADATA_METHODS:
                with pytest.raises((errors.PermissionDenied, errors.Unauthenticated)):
                    await link.call(method, {"prefix": "/", "key": "/topics/default/seen"})
        with pytest.raises(errors.PermissionDenied):  # not even an administrator writes what the broker owns
            await admin.call("metadata_submit", submission(cmd.Put("/topics/default/b", b"1")))
        with pytest.raises(errors.PermissionDenied, match="processes of the node"):
            await admin.call("security_open_session", {"credential": {"token": "token-of-alice"}})
        for link in (admin, alice, nobody):
            link.close()


async def test_hazard_112_a_process_stays_connected_when_security_is_switched_on(tmp_path: Path) -> None:
    access = AccessControl(SystemClock(), KnownNames())
    path = tmp_path / "broker.sock"
    async with local_broker(path, MemoryStore(), access_control=access, roles=FixedSecrets()) as served:
        lake, cli = await open_link(served.path, "lake", of_role("lake")), await open_link(served.path, "cli")
        await access.apply(policy_of(ADMIN))
        await lake.call("metadata_revision", {})
        await cli.lost.wait()
        assert not lake.lost.is_set()
        lake.close()


async def test_hazard_108_the_secrets_of_a_node_open_its_socket(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path / "data", "iceberg"))
    try:
        await node.access_control.apply(policy_of(ADMIN))
        path, secret = node.settings.local_socket, node.services.role_secrets.role_secret("pipeline")
        link = await open_link(path, "pipeline", role_credential("pipeline", secret))
        assert (await link.call("pipeline_name", {}))["name"] == ""
        link.close()
        with pytest.raises(errors.Unauthenticated):
            await open_link(path, "lake", role_credential("lake", secret))
    finally:
        await node.stop()


async def test_no_client_can_have_the_prefixes_of_a_process() -> None:
    assert writable_prefixes(local_user("lake")) == ("/pipeline/commit_now", "/pipeline/maintenance")
