"""A whole node with accounts: login, token, revocation, and what the audit says afterwards."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from icestream import errors
from icestream.broker.audit_log import AUDIT_TOPIC
from icestream.model import envelope
from icestream.model.block import iter_blocks
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.runtime.randomness import SystemRandomness
from icestream.security.action import Action
from icestream.security.audit_event import AuditEvent
from icestream.security.credential import BearerCredential, PasswordCredential
from icestream.security.key_ring import KeyRing, create_wrapping_key
from icestream.security.principal import service_account
from icestream.security.resource import topic_resource
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio
ORDERS = topic_resource(TopicName("shop", "orders"))
INGEST = service_account("ingest")
PASSWORD = "correct horse battery"


async def secure(node: BrokerNode) -> None:
    """What `icestream security init` does."""
    randomness = SystemRandomness()
    wrapping_key = create_wrapping_key(node.settings.data_dir, randomness)
    ring = KeyRing.new(randomness, node.clock.wall_us()).encode(wrapping_key, randomness)
    await node.security.init("root", await node.passwords.hash(PASSWORD), ring)


async def audited(node: BrokerNode) -> list[AuditEvent]:
    await node.audit.flush()
    (stream,) = node.broker.shard_streams(node.broker.topic(AUDIT_TOPIC))
    sections = (await stream.read(0, 2**20)).sections
    blocks = [block for section in sections for block in iter_blocks(section.body)]
    payloads = [payload for block in blocks for payload in block.values(envelope.PAYLOAD)]
    return [msgspec.json.decode(payload, type=AuditEvent) for payload in payloads]  # type: ignore[arg-type]


async def test_logins_tokens_and_their_revocation(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, "memory"))
    try:
        login = node.access_control.authenticate
        anonymous = await login(PasswordCredential("root", "wrong"), "10.0.0.1:1", "native")
        anonymous.require(Action.PRODUCE, ORDERS)  # nothing is asked before
        await secure(node)
        with pytest.raises(errors.Unauthenticated):
            anonymous.require(Action.PRODUCE, ORDERS)
        for name in ("root", "nobody"):
            with pytest.raises(errors.Unauthenticated, match="the credential is not valid"):
                await login(PasswordCredential(name, "wrong"), "10.0.0.2:1", "native")
        root = await login(PasswordCredential("root", PASSWORD), "10.0.0.3:1", "native")
        root.require(Action.PRODUCE, ORDERS)

        await node.security.create_service("ingest")
        generation = node.policy_watch.find_service("ingest")
        assert generation is not None
        minted = [node.service_tokens.mint(INGEST, generation, [], 600) for _ in range(2)]
        for token in minted:
            await node.security.record_token(token.token_id, INGEST, token.expires_us)
        sessions = [await login(BearerCredential(token.token), "10.0.0.4:1", "native") for token in minted]
        with pytest.raises(errors.PermissionDenied):
            sessions[0].require(Action.PRODUCE, ORDERS)
        await node.security.revoke_token(minted[0].token_id)
        assert sessions[0].closed is not None
        assert sessions[1].closed is None
        with pytest.raises(errors.Unauthenticated, match="the credential is not valid"):
            await login(BearerCredential(minted[0].token), "10.0.0.4:1", "native")
        await login(BearerCredential(minted[1].token), "10.0.0.4:1", "native")

        async with node.audit.change(root, Action.ADMIN, ORDERS, "rotate the signing keys"):
            wrapping_key = create_wrapping_key(tmp_path, SystemRandomness())

            def replace(wrapped: bytes) -> bytes:
                ring = KeyRing.decode(wrapped, wrapping_key)
                rotated = ring.rotated(SystemRandomness(), node.clock.wall_us())
                return rotated.without(ring.newest.key_id).encode(wrapping_key, SystemRandomness())

            await node.security.change_keys(replace)  # the key leaked: every token that it signed ends
        assert sessions[1].closed is not None
        with pytest.raises(errors.Unauthenticated):
            await login(BearerCredential(minted[1].token), "10.0.0.4:1", "native")

        events = await audited(node)
        assert sorted(
            (event.event, event.principal, event.rule if not event.principal else "") for event in events
        ) == [
            ("change", "user:local:root", ""),
            ("denied", "anonymous", ""),
            ("denied", "service:local:ingest", ""),
            ("login-failed", "", "revoked"),
            ("login-failed", "", "unknown key"),
            ("login-failed", "nobody", ""),
            ("login-failed", "root", ""),
        ]
        assert {event.count for event in events} == {1}
        text = str(events)
        assert not any(secret in text for secret in (PASSWORD, minted[0].token, minted[1].token, "wrong"))
    finally:
        await node.stop()


async def test_hazard_119_neither_the_store_nor_its_snapshot_has_a_signing_key_in_clear(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path))
    try:
        await secure(node)
        seed = node.service_tokens._ring().newest.seed
    finally:
        await node.stop()
    assert not files_with(tmp_path, seed, seed.hex().encode(), base64.b64encode(seed))
    assert files_with(tmp_path, b"/security/"), "the records are in none of the files looked at"


def files_with(directory: Path, *texts: bytes) -> list[Path]:
    contents = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return [path for path, content in contents.items() if any(text in content for text in texts)]
