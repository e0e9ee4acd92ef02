"""Logins: one answer for every failure, delays, revocation, and what is remembered."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors, limits
from icestream.observability import metrics
from icestream.security.account_directory import StoredUser
from icestream.security.credential import BearerCredential, PasswordCredential
from icestream.security.principal import CallerIdentity, local_user, service_account
from tests.support.tokens import LoginWorld


async def log_in(world: LoginWorld, name: str, password: str, address: str = "home") -> CallerIdentity:
    return await world.authenticator.authenticate(PasswordCredential(name, password), address, "native")


async def world_with_alice() -> LoginWorld:
    world = LoginWorld()
    world.accounts.users["alice"] = StoredUser(await world.passwords.hash("correct horse"), 7)
    return world


@pytest.mark.asyncio
async def test_a_password_gives_the_identity_of_its_user() -> None:
    world = await world_with_alice()
    identity = await log_in(world, "alice", "correct horse")
    assert (identity.principal, identity.generation, identity.expires_us) == (local_user("alice"), 7, None)
    assert world.authenticator.is_current(identity)
    world.accounts.users["alice"] = StoredUser("", 8)
    assert not world.authenticator.is_current(identity)


@pytest.mark.asyncio
async def test_hazard_120_every_failure_has_the_same_text() -> None:
    world = await world_with_alice()
    texts = set()
    for name, password in (
        ("alice", "wrong"),
        ("bob", "correct horse"),
        ("", ""),
        ("al\u2170ce", "x"),
        ("\ud800", "\ud800"),
    ):
        with pytest.raises(errors.Unauthenticated) as caught:
            await log_in(world, name, password)
        texts.add(str(caught.value))
    with pytest.raises(errors.Unauthenticated) as caught:
        await world.authenticator.authenticate(BearerCredential("x.y.z"), "home", "native")
    assert {*texts, str(caught.value)} == texts
    assert len(texts) == 1
    assert {failure.reason for failure in world.failures} == {"password", "not a signed token"}


@pytest.mark.asyncio
async def test_hazard_120_failures_delay_and_never_lock() -> None:
    world = await world_with_alice()
    for _ in range(3):
        with pytest.raises(errors.Unauthenticated):
            await log_in(world, "alice", "wrong", "attacker")
    guess = asyncio.create_task(log_in(world, "alice", "wrong", "attacker"))
    await asyncio.sleep(0)
    throttled = metrics.LOGINS.values.get("throttled", 0)
    with pytest.raises(errors.Refused):  # no second guess beside it
        await log_in(world, "alice", "wrong", "attacker")
    assert metrics.LOGINS.values["throttled"] == throttled + 1
    assert (await log_in(world, "alice", "correct horse", "home")).principal == local_user("alice")
    assert not guess.done()
    world.clock.advance(0.1)
    with pytest.raises(errors.Unauthenticated):
        await guess
    right = asyncio.create_task(log_in(world, "alice", "correct horse", "attacker"))
    await asyncio.sleep(0)
    assert not right.done()
    world.clock.advance(limits.LOGIN_DELAY_MS_MAX / 1000)
    assert (await right).principal == local_user("alice")
    assert (await log_in(world, "alice", "correct horse", "attacker")).principal == local_user("alice")


@pytest.mark.asyncio
async def test_a_cancelled_login_releases_its_pair() -> None:
    world = await world_with_alice()
    for _ in range(3):
        with pytest.raises(errors.Unauthenticated):
            await log_in(world, "alice", "wrong")
    login = asyncio.create_task(log_in(world, "alice", "correct horse"))
    await asyncio.sleep(0)
    login.cancel()
    await asyncio.wait([login])
    world.clock.advance(1)
    assert (await log_in(world, "alice", "correct horse")).principal == local_user("alice")


async def accept(world: LoginWorld, token: str) -> CallerIdentity:
    return await world.authenticator.authenticate(BearerCredential(token), "home", "native")


@pytest.mark.asyncio
async def test_a_stolen_token_ends_with_its_revocation_although_it_was_verified_lately() -> None:
    world = LoginWorld()
    world.accounts.services["ingest"] = 1
    stolen, other = (world.service_tokens.mint(service_account("ingest"), 1, [], 600) for _ in range(2))
    assert await accept(world, stolen.token) == await accept(world, stolen.token)
    world.accounts.revoked.add(stolen.token_id)
    with pytest.raises(errors.Unauthenticated):
        await accept(world, stolen.token)
    assert (await accept(world, other.token)).credential_id == other.token_id
    world.accounts.services["ingest"] = 2  # all of them
    with pytest.raises(errors.Unauthenticated):
        await accept(world, other.token)
    world.accounts.services.clear()
    with pytest.raises(errors.Unauthenticated):
        await accept(world, world.service_tokens.mint(service_account("ingest"), 2, [], 600).token)
    assert [failure.reason for failure in world.failures] == ["revoked"] * 3


@pytest.mark.asyncio
async def test_a_verified_token_is_remembered_for_a_while_and_not_beyond_its_expiry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TOKEN_SKEW_SECONDS", 1)
    world = LoginWorld()
    world.accounts.services["ingest"] = 1
    long, short = (world.service_tokens.mint(service_account("ingest"), 1, [], ttl).token for ttl in (600, 9))
    identities = [await accept(world, token) for token in (long, short)]
    verified: list[str] = []
    verify = world.service_tokens.verify
    monkeypatch.setattr(world.service_tokens, "verify", lambda token: (verified.append(token.token), verify(token))[1])
    assert [await accept(world, token) for token in (long, short)] == identities
    world.clock.advance(10)
    with pytest.raises(errors.Unauthenticated):
        await accept(world, short)
    assert await accept(world, long) == identities[0]
    assert verified == [short]
    world.clock.advance(limits.TOKEN_CACHE_SECONDS - 10)
    assert await accept(world, long) == identities[0]
    assert verified == [short, long]
    world.authenticator.forget_tokens()
    assert await accept(world, long) == identities[0]
    assert verified == [short, long, long]


@pytest.mark.asyncio
async def test_a_key_that_leaves_the_ring_ends_its_tokens_although_they_were_verified_lately() -> None:
    world = LoginWorld()
    world.accounts.services["ingest"] = 1
    token = world.service_tokens.mint(service_account("ingest"), 1, [], 600).token
    identity = await accept(world, token)
    leaked = world.accounts.ring.newest.key_id
    world.accounts.ring = world.accounts.ring.rotated(world.randomness, world.clock.wall_us())
    assert world.authenticator.is_current(identity)
    world.accounts.ring = world.accounts.ring.without(leaked)
    assert not world.authenticator.is_current(identity)
    with pytest.raises(errors.Unauthenticated):
        await accept(world, token)


@pytest.mark.asyncio
async def test_the_memory_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKEN_CACHE_ENTRIES", 3)
    world = LoginWorld()
    world.accounts.services["ingest"] = 1
    tokens = [world.service_tokens.mint(service_account("ingest"), 1, [], 60).token for _ in range(5)]
    for token in tokens:
        await accept(world, token)
    assert len(world.authenticator._verified._entries) == 3
    assert (await accept(world, tokens[0])).principal == service_account("ingest")
    await world.authenticator.close()
