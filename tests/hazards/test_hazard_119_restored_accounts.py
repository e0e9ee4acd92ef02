"""Hazard 119: accounts of a backup come back only where nothing is today, and no credential comes with them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.security import security_records as records
from icestream.security.access_policy import decide, is_administrator
from icestream.security.action import Action
from icestream.security.principal import CallerIdentity, Principal, local_user, service_account
from icestream.security.resource import topic_resource
from icestream.security.restored_accounts import RestoredAccounts
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.secured_store import ADMIN_NAME, SecuredStore, secured_store

pytestmark = pytest.mark.asyncio

ALICE, INGEST = local_user("alice"), service_account("ingest")
NODE_KEY = Principal.parse("certificate:native:gateway")
ORDERS, INVOICES = TopicName("shop", "orders"), TopicName("shop", "invoices")
Entries = list[tuple[str, bytes, int]]


def rule(actions: str, resource: str) -> records.RuleRecord:
    return records.RuleRecord(actions.split(","), resource)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def source(clock: FakeClock) -> AsyncIterator[SecuredStore]:
    """The cluster that is backed up: alice and ingest with grants of each kind, some of them disabled or parked."""
    async with secured_store(FaultyStore(clock), clock, 1) as node:
        await node.security.create_user("alice", "hash of alice")
        await node.security.create_service("ingest")
        await node.security.set_disabled(INGEST, is_disabled=True)
        await node.security.put_role("shop", [rule("write", "/shop/*")])
        await node.security.put_role("operators", [rule("admin", "cluster")])
        await node.security.grant(ALICE, role="shop")
        yield node


@pytest_asyncio.fixture
async def target(clock: FakeClock) -> AsyncIterator[SecuredStore]:
    async with secured_store(FaultyStore(clock), clock, 2) as node:
        yield node


async def backup_of(node: SecuredStore) -> Entries:
    return [(key, entry.value, entry.mod_revision) for key, entry in await node.store.list_all(records.SECURITY)]


def is_allowed(node: SecuredStore, principal: Principal, action: Action, topic: TopicName) -> bool:
    return decide(CallerIdentity(principal), action, topic_resource(topic), node.control.policy).is_allowed


async def test_accounts_come_back_with_their_grants_and_roles(source: SecuredStore, target: SecuredStore) -> None:
    restored = await target.security.restore_accounts(await backup_of(source))
    assert restored.accounts == ("user:local:alice", "service:local:ingest")
    assert restored.roles == ("shop",)
    assert is_allowed(target, ALICE, Action.PRODUCE, ORDERS)
    user = target.watch.find_user("alice")
    assert user is not None
    assert user.password_hash == "hash of alice"
    assert target.watch.find_service("ingest") is None  # it was disabled
    assert await target.security.restore_accounts(await backup_of(source)) == RestoredAccounts()


@pytest.mark.parametrize("is_revoked", [False, True])
async def test_no_token_of_before_the_backup_is_valid_after_it(
    source: SecuredStore, target: SecuredStore, *, is_revoked: bool
) -> None:
    """Also where the same keys sign: tokens carry a generation of the source, which may be the greater one."""
    await source.security.record_token("token-1", ALICE, 10**15)
    generation = source.security.state.users["alice"].generation
    if is_revoked:
        await source.security.revoke_token("token-1")
    entries = await backup_of(source)
    await target.security.restore_accounts(entries)
    stolen = CallerIdentity(ALICE, credential_id="token-1", generation=generation)
    for latest in (stolen, CallerIdentity(ALICE, generation=source.security.state.serial)):
        assert target.security.state.find_end(latest, 0) is not None
    assert not target.security.state.tokens
    assert not target.security.state.revoked
    assert target.watch.key_ring() == b"ring"
    renewed = target.security.state.users["alice"].generation
    await target.security.create_user("bob", "hash")
    assert target.security.state.users["bob"].generation > renewed > source.security.state.serial


async def test_accounts_of_the_cluster_are_not_changed(source: SecuredStore, clock: FakeClock) -> None:
    await source.security.grant(NODE_KEY, rule=rule("read", "/shop/*"))
    entries = await backup_of(source)
    # The same cluster, later: a password that leaked was replaced, a grant and a role taken away.
    (grant,) = source.security.state.grants_of(ALICE)
    await source.security.delete_grant(grant.grant_id)
    await source.security.set_password("alice", "another hash")
    await source.security.put_role("shop", [rule("describe", "/shop/*")])
    generation = source.security.state.users["alice"].generation
    assert await source.security.restore_accounts(entries) == RestoredAccounts()
    account = source.security.state.users["alice"]
    assert (account.password_hash, account.generation) == ("another hash", generation)
    assert not is_allowed(source, ALICE, Action.PRODUCE, ORDERS)
    assert [str(item.rule.resource) for item in source.security.state.grant_records.values() if item.rule] == [
        "/shop/*"
    ]


async def test_grants_without_an_account_to_renew_wait_for_an_administrator(
    source: SecuredStore, target: SecuredStore
) -> None:
    """A certificate whose key leaked had its grants deleted: a restore must not undo that by itself."""
    for text in ("certificate:native:gateway", "anonymous", "oidc:corp:bob", "danube:user:x"):
        await source.security.grant(Principal.parse(text), rule=rule("read", "/shop/*"))
    restored = await target.security.restore_accounts(await backup_of(source))
    assert len(restored.parked) == 4
    for text in ("certificate:native:gateway", "anonymous", "oidc:corp:bob", "danube:user:x"):
        assert not is_allowed(target, Principal.parse(text), Action.CONSUME, ORDERS)
    for grant_id in restored.parked:
        await target.security.unpark(grant_id)
    assert is_allowed(target, NODE_KEY, Action.CONSUME, ORDERS)


async def test_a_restore_makes_no_administrator(source: SecuredStore, target: SecuredStore) -> None:
    await source.security.grant(ALICE, role="administrator")
    await source.security.grant(ALICE, role="operators")
    await source.security.grant(ALICE, rule=rule("admin", "cluster"))
    restored = await target.security.restore_accounts(await backup_of(source))
    assert not is_administrator(CallerIdentity(ALICE), target.control.policy)
    # A role of administration would also reach external tokens that claim its name.
    assert not is_administrator(CallerIdentity(ALICE, roles=("operators",)), target.control.policy)
    assert "operators" not in target.security.state.roles
    (waiting, _) = restored.parked
    await target.security.unpark(waiting)
    assert is_administrator(CallerIdentity(ALICE), target.control.policy)


async def test_hazard_117_grants_for_exactly_a_topic_follow_the_restored_topic(
    source: SecuredStore, target: SecuredStore
) -> None:
    for topic in (ORDERS, INVOICES):
        await source.security.grant(INGEST, rule=rule("read", str(topic)))
    restored = await target.security.restore_accounts(await backup_of(source), restored_topics=[ORDERS])
    assert is_allowed(target, INGEST, Action.CONSUME, ORDERS)
    assert not is_allowed(target, INGEST, Action.CONSUME, INVOICES)  # perhaps a new topic of that name
    assert len(restored.parked) == 1
    assert len(restored.grants) == 3


async def test_a_large_restore_is_made_in_batches_and_continues(
    source: SecuredStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = records.encode(records.GrantRecord(str(ALICE), 1, rule=rule("read", "/shop/*")))
    entries: Entries = [
        (records.GRANTS + f"g{number}-{each}", grant.replace(b"alice", f"user{number}".encode()), 9)
        for number in range(20)
        for each in range(100)
    ]
    account = records.encode(records.AccountRecord(3, 1, "hash"))
    entries += [(records.user_key(f"user{number}"), account, 9) for number in range(20)]
    store = FaultyStore(clock)
    async with secured_store(store, clock, 3) as node:
        serial = node.security.state.serial
        last = store.writes + 2
        store.refuse = lambda _: store.writes > last
        with pytest.raises(errors.MetadataFull):
            await node.security.restore_accounts(entries)
        store.refuse = lambda _: False
        begun = set(node.security.state.users)
        assert len(begun) == 1 + 10
        for name in begun - {ADMIN_NAME}:
            assert len(node.security.state.grants_of(local_user(name))) == 100  # whole principals only
        restored = await node.security.restore_accounts(entries)
        assert len(restored.accounts) == 21 - len(begun)
        assert len(node.security.state.grants) == 2_001
        assert node.security.state.serial - serial >= 5
        monkeypatch.setattr(limits, "SECURITY_ACCOUNTS_MAX", 21)
        with pytest.raises(errors.MetadataFull, match="more than 21 accounts"):
            await node.security.restore_accounts([(records.user_key("late"), account, 9)])


async def test_damaged_records_of_a_backup_give_nothing(target: SecuredStore) -> None:
    account = records.encode(records.AccountRecord(3, 1, "hash"))
    entries = [
        (records.user_key("../../root"), b"no record", 1),
        (records.user_key("two\nlines"), account, 1),
        (records.role_key("two\nlines"), records.encode(records.RoleRecord([rule("read", "/*/*")])), 1),
        (records.GRANTS + "g1", records.encode(records.GrantRecord("process:local:lake", 1, "reader")), 1),
        (records.GRANTS + "g2", records.encode(records.GrantRecord("user:local:ghost", 1, "reader")), 1),
        (records.GRANTS + "g3", records.encode(records.GrantRecord("oidc:corp:bob", 1, "no-role")), 1),
        ("/topics/x", b"not of security", 1),
    ]
    before = await backup_of(target)
    assert await target.security.restore_accounts(entries) == RestoredAccounts()
    after = await backup_of(target)
    assert [entry[:2] for entry in before if entry[0] != records.CHANGES] == [
        entry[:2] for entry in after if entry[0] != records.CHANGES
    ]


async def test_accounts_do_not_come_back_while_security_is_off(source: SecuredStore, clock: FakeClock) -> None:
    async with secured_store(FaultyStore(clock), clock, initialised=False) as node:
        with pytest.raises(errors.InvalidInput, match="security is off"):
            await node.security.restore_accounts(await backup_of(source))
