"""Changes of security: each is one transaction, refused if a bound or a reference would break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.security import security_records as records
from icestream.security.access_policy import decide, is_administrator
from icestream.security.action import Action
from icestream.security.principal import ANONYMOUS, CallerIdentity, Principal, local_user, service_account
from icestream.security.resource import CLUSTER, Pattern, Resource, ResourceKind
from icestream.security.security_changes import BUILT_IN_ROLES
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.secured_store import ADMIN_NAME, SecuredStore, secured_store, stored_state

pytestmark = pytest.mark.asyncio

ROOT, ALICE, INGEST = local_user(ADMIN_NAME), local_user("alice"), service_account("ingest")
ORDERS = Resource(ResourceKind.TOPIC, ("shop", "orders"))


def rule(actions: str, resource: str) -> records.RuleRecord:
    return records.RuleRecord(actions.split(","), resource)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def node(clock: FakeClock) -> AsyncIterator[SecuredStore]:
    async with secured_store(FaultyStore(clock), clock) as node:
        yield node


# --- the switch ---


async def test_init_makes_one_administrator_and_denies_everybody_else(node: SecuredStore) -> None:
    policy = node.control.policy
    assert policy.is_enabled
    assert set(policy.roles) == set(BUILT_IN_ROLES)
    assert is_administrator(CallerIdentity(ROOT), policy)
    for principal in (ALICE, ANONYMOUS):
        assert not decide(CallerIdentity(principal), Action.DESCRIBE, ORDERS, policy).is_allowed
    assert node.watch.find_user(ADMIN_NAME) is not None
    assert node.watch.key_ring() == b"ring"


async def test_hazard_112_of_two_inits_at_once_one_takes_all_effect() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with (
        secured_store(store, clock, 1, initialised=False) as first,
        secured_store(store, clock, 2, initialised=False) as second,
    ):
        outcomes = await asyncio.gather(
            first.security.init("anna", "hash of anna", b"ring of anna"),
            second.security.init("bert", "hash of bert", b"ring of bert"),
            return_exceptions=True,
        )
        (refusal,) = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert isinstance(refusal, errors.AlreadyExists)
        state = await stored_state(store)
        (name,) = state.users
        assert state.users[name].password_hash == f"hash of {name}"
        assert state.wrapped_keys == f"ring of {name}".encode()
        assert [grant.principal.name for grant in state.grants.values()] == [name]
        for member in (first, second):
            await member.watch.until_current()
            assert member.watch.state == state


@pytest.mark.parametrize("is_applied", [False, True])
async def test_hazard_112_an_init_that_is_killed_leaves_all_or_nothing(is_applied: bool) -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with secured_store(store, clock, initialised=False) as node:
        store.halt_at(0, applied=is_applied)
        killed = asyncio.create_task(node.security.init("anna", "hash", b"ring"))
        await store.halted.wait()
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        store.resume()
    async with secured_store(store, clock, initialised=False) as restarted:
        assert restarted.control.is_enabled == is_applied
        if is_applied:
            with pytest.raises(errors.AlreadyExists):
                await restarted.security.init("bert", "hash", b"ring")
            assert is_administrator(CallerIdentity(local_user("anna")), restarted.control.policy)
        else:
            await restarted.security.init("bert", "hash", b"ring")
            assert list(restarted.security.state.users) == ["bert"]


async def test_a_change_before_init_is_refused_with_the_way_out() -> None:
    clock = FakeClock()
    async with secured_store(FaultyStore(clock), clock, initialised=False) as node:
        with pytest.raises(errors.InvalidInput, match="security is off") as refusal:
            await node.security.create_user("alice", "hash")
        assert "security init" in refusal.value.hint


async def test_recovery_brings_a_disabled_administrator_back_and_revokes_its_tokens(node: SecuredStore) -> None:
    await node.security.create_user("alice", "hash")
    await node.security.grant(ALICE, role="administrator")
    await node.security.set_disabled(ROOT, is_disabled=True)
    generation = node.security.state.users[ADMIN_NAME].generation
    await node.security.recover(ADMIN_NAME, "new hash")
    account = node.security.state.users[ADMIN_NAME]
    assert account.password_hash == "new hash"
    assert account.generation > generation
    assert not account.is_disabled
    assert len(node.security.state.grants_of(ROOT)) == 1, "the grant it had is used"
    await node.security.recover("carol", "hash")
    assert is_administrator(CallerIdentity(local_user("carol")), node.control.policy)


# --- accounts ---


async def test_an_account_that_is_created_again_inherits_no_grant_and_no_token(node: SecuredStore) -> None:
    await node.security.create_service("ingest")
    await node.security.grant(INGEST, rule=rule("write", "/shop/orders"))
    await node.security.record_token("jti-1", INGEST, (node.security.now_ms() + 60_000) * 1000)
    former = node.watch.find_service("ingest")
    await node.security.delete_account(INGEST)
    assert node.watch.find_service("ingest") is None
    await node.security.create_service("ingest")
    assert not decide(CallerIdentity(INGEST), Action.PRODUCE, ORDERS, node.control.policy).is_allowed
    assert not node.security.state.tokens
    current = node.watch.find_service("ingest")
    assert former is not None
    assert current is not None
    assert current > former, "a token of the former account has an older generation"


Change = Callable[[SecuredStore], Awaitable[object]]


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.security.delete_account(ROOT),
        lambda node: node.security.set_disabled(ROOT, is_disabled=True),
        lambda node: node.security.delete_grant(node.security.state.grants_of(ROOT)[0].grant_id),
    ],
    ids=["delete", "disable", "ungrant"],
)
async def test_the_last_administrator_stays(node: SecuredStore, change: Change) -> None:
    with pytest.raises(errors.InvalidInput, match="without an administrator"):
        await change(node)
    await node.security.create_user("alice", "hash")
    await node.security.grant(ALICE, role="administrator")
    await change(node)
    assert not is_administrator(CallerIdentity(ROOT), node.control.policy) or node.watch.find_user(ADMIN_NAME) is None


async def test_a_role_that_made_the_only_administrators_cannot_lose_that(node: SecuredStore) -> None:
    await node.security.put_role("operators", [rule("admin", "cluster")])
    await node.security.create_user("alice", "hash")
    await node.security.grant(ALICE, role="operators")
    await node.security.delete_account(ROOT)
    with pytest.raises(errors.InvalidInput, match="without an administrator"):
        await node.security.put_role("operators", [rule("describe", "cluster")])


# --- roles and grants ---


async def test_a_role_is_deleted_only_when_no_principal_has_it(node: SecuredStore) -> None:
    await node.security.put_role("team", [rule("read", "/shop/*")])
    await node.security.create_user("alice", "hash")
    grant_id = await node.security.grant(ALICE, role="team")
    assert decide(CallerIdentity(ALICE), Action.CONSUME, ORDERS, node.control.policy).is_allowed
    with pytest.raises(errors.NotEmpty, match="granted 1 time"):
        await node.security.delete_role("team")
    await node.security.delete_grant(grant_id)
    assert not decide(CallerIdentity(ALICE), Action.CONSUME, ORDERS, node.control.policy).is_allowed
    await node.security.delete_role("team")
    with pytest.raises(errors.UnknownAccount):
        await node.security.grant(ALICE, role="team")


@pytest.mark.parametrize("name", sorted(BUILT_IN_ROLES))
async def test_a_built_in_role_is_fixed(node: SecuredStore, name: str) -> None:
    with pytest.raises(errors.InvalidInput, match="built in"):
        await node.security.put_role(name, [rule("read", "/shop/*")])
    with pytest.raises(errors.InvalidInput, match="built in"):
        await node.security.delete_role(name)


@pytest.mark.parametrize("principal", ["anonymous", "danube:danube:x"])
async def test_hazard_116_principals_without_a_credential_never_administer(node: SecuredStore, principal: str) -> None:
    anybody = Principal.parse(principal)
    for arguments in ({"role": "administrator"}, {"rule": rule("admin", "cluster")}):
        with pytest.raises(errors.InvalidInput, match="cannot administer"):
            await node.security.grant(anybody, **arguments)
    # Neither by a role that becomes one later.
    await node.security.put_role("team", [rule("read", "/shop/*")])
    await node.security.grant(anybody, role="team")
    await node.security.put_role("team", [rule("admin", "cluster")])
    for identity in (CallerIdentity(anybody), CallerIdentity(ALICE)):
        assert not is_administrator(identity, node.control.policy)


async def test_a_grant_is_refused_to_a_process_and_to_an_account_that_does_not_exist(node: SecuredStore) -> None:
    with pytest.raises(errors.InvalidInput, match="process of a node"):
        await node.security.grant(Principal.parse("process:local:lake"), role="reader")
    with pytest.raises(errors.UnknownAccount):
        await node.security.grant(ALICE, role="reader")


async def test_wildcards_do_not_open_the_audit(node: SecuredStore) -> None:
    await node.security.create_user("alice", "hash")
    await node.security.grant(ALICE, role="reader")
    audit = Resource(ResourceKind.TOPIC, ("system", "audit"))
    assert not decide(CallerIdentity(ALICE), Action.CONSUME, audit, node.control.policy).is_allowed
    await node.security.grant(ALICE, rule=rule("consume", "/system/audit"))
    assert decide(CallerIdentity(ALICE), Action.CONSUME, audit, node.control.policy).is_allowed


# --- tokens ---


async def test_a_revoked_token_is_forgotten_when_it_would_have_expired(node: SecuredStore, clock: FakeClock) -> None:
    await node.security.create_service("ingest")
    for token_id in ("jti-1", "jti-2"):
        await node.security.record_token(token_id, INGEST, clock.wall_us() + 60_000_000, "the nightly job")
    await node.security.revoke_token("jti-1")
    assert node.watch.is_revoked("jti-1")
    assert not node.watch.is_revoked("jti-2")
    assert list(node.security.state.tokens) == ["jti-2"]
    with pytest.raises(errors.UnknownAccount, match="no token"):
        await node.security.revoke_token("jti-1")
    while await node.store.list_all(records.REVOKED):
        clock.advance(60)
        await asyncio.sleep(0)
    await node.watch.until_current()
    assert not await node.store.list_all(records.TOKENS)
    assert clock.wall_us() > node.security.now_ms(), "the clock moved"


async def test_revoking_all_tokens_of_an_account_raises_its_generation(node: SecuredStore) -> None:
    await node.security.create_service("ingest")
    former = node.watch.find_service("ingest")
    await node.security.record_token("jti-1", INGEST, (node.security.now_ms() + 60_000) * 1000)
    await node.security.revoke_all_tokens(INGEST)
    current = node.watch.find_service("ingest")
    assert former is not None
    assert current is not None
    assert current > former
    assert not node.security.state.tokens


# --- bounds and concurrency ---


async def test_accounts_roles_rules_grants_and_tokens_are_bounded(
    node: SecuredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.security.create_user("alice", "hash")
    cases: list[tuple[str, Change, type[errors.IcestreamError]]] = [
        ("SECURITY_ACCOUNTS_MAX", lambda node: node.security.create_service("x"), errors.MetadataFull),
        ("SECURITY_ROLES_MAX", lambda node: node.security.put_role("x", [rule("read", "/a/b")]), errors.MetadataFull),
        ("SECURITY_GRANTS_MAX", lambda node: node.security.grant(ALICE, role="reader"), errors.MetadataFull),
        ("SECURITY_GRANTS_EACH_MAX", lambda node: node.security.grant(ALICE, role="reader"), errors.MetadataFull),
        ("SECURITY_TOKENS_MAX", lambda node: node.security.record_token("j", ALICE, 2**50), errors.MetadataFull),
        ("SECURITY_TOKENS_EACH_MAX", lambda node: node.security.record_token("j", ALICE, 2**50), errors.MetadataFull),
        (
            "SECURITY_ROLE_RULES_MAX",
            lambda node: node.security.put_role("x", [rule("read", "/a/b")] * 2),
            errors.InvalidInput,
        ),
    ]
    for limit, change, refusal in cases:
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, 1 if limit == "SECURITY_ROLE_RULES_MAX" else 0)
            with pytest.raises(refusal):
                await change(node)
        await change(node)
        if limit == "SECURITY_GRANTS_MAX":
            await node.security.delete_grant(node.security.state.grants_of(ALICE)[0].grant_id)


async def test_concurrent_changes_of_several_nodes_all_take_effect(node: SecuredStore, clock: FakeClock) -> None:
    async with secured_store(node.store, clock, 7, initialised=False) as other:
        await asyncio.gather(
            *(member.security.create_user(f"user-{index}-{number}", "hash") for number in range(5)
              for index, member in enumerate((node, other)))
        )  # fmt: skip
        assert len(node.security.state.users) == 11
        generations = {account.generation for account in node.security.state.users.values()}
        assert len(generations) == 11, "each change has its own serial number"
        await other.watch.until_current()
        assert other.watch.state == node.watch.state


async def test_a_record_that_cannot_be_decoded_gives_no_right(node: SecuredStore) -> None:
    await node.security.create_user("alice", "hash")
    grant_id = await node.security.grant(ALICE, role="reader")
    await node.store.put(records.GRANTS + grant_id, b'{"principal": 3}')
    await node.store.put(records.revoked_key("jti-9"), b"\xff")
    await node.store.put(records.role_key("reader"), b"{}")
    await node.store.put(records.user_key("alice"), b"null")
    await node.watch.until_applied(await node.store.put(records.ENABLED, b"?"))
    state = node.watch.state
    assert state.is_enabled
    assert state.is_revoked("jti-9")
    assert not state.grants_of(ALICE)
    assert "reader" not in state.roles
    assert node.watch.find_user("alice") is None
    assert len(state.problems) == 3
    assert not decide(CallerIdentity(ALICE), Action.CONSUME, ORDERS, node.control.policy).is_allowed
    assert is_administrator(CallerIdentity(ROOT), node.control.policy)


async def test_the_key_of_a_name_cannot_be_the_key_of_another() -> None:
    names = ["a", "a/b", "a%2Fb", "a b", "ä", "."]
    assert len({records.user_key(name) for name in names}) == len(names)
    assert [records.unquoted(records.quoted(name)) for name in names] == names
    assert all("/" not in records.quoted(name) for name in names)
    assert records.exact_topic(Pattern.parse("/shop/*")) is None
    assert records.exact_topic(Pattern.parse("/{claims.team}/x")) is None
    assert str(records.exact_topic(Pattern.parse("subscription:/shop/orders/*"))) == "/shop/orders"
    assert CLUSTER.segments == ()
