"""Hazard 124: a changed policy decides everything that is open again, and the loop serves others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest

from icestream import errors, limits
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import AccessRule
from icestream.security.action import Action
from icestream.security.principal import CallerIdentity, local_user
from icestream.security.resource import Resource
from tests.support.fake_clock import FakeClock
from tests.support.secured_access import policy_of

HOLDS = 1_000
MANY_HOLDS = 20_000
DECISION_SECONDS = 20e-6  # a slow one
BOTH = {"alice": ["produce on /shop/*", "produce on /bank/*"]}
ONE = {"alice": ["produce on /shop/*"]}


@pytest.mark.asyncio
@pytest.mark.parametrize("sessions", [1, HOLDS], ids=["one connection", "as many connections"])
async def test_hazard_124_a_change_is_decided_in_slices(sessions: int) -> None:
    """Each task of the loop runs after a slice at the latest, also while one connection has all the producers."""
    clock = FakeClock()
    access = AccessControl(clock)
    await access.apply(policy_of(BOTH))
    closed: list[int] = []
    for number in range(sessions):
        session = access.new_session(CallerIdentity(local_user("alice")), "", "native")
        for place in range(HOLDS // sessions):
            name = number + place
            topic = Resource.parse(f"topic:/{'shop' if name % 2 else 'bank'}/t{name}")
            session.hold(Action.PRODUCE, topic, partial(lambda name, _: closed.append(name), name))
    clock.read_cost_seconds = DECISION_SECONDS
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    serving = asyncio.create_task(others())
    await access.apply(policy_of(ONE, revision=2))
    serving.cancel()
    assert sorted(closed) == list(range(0, HOLDS, 2)), "those of the right that ended, and no others"
    assert turns >= HOLDS * DECISION_SECONDS * 1e9 // limits.ACCESS_SLICE_NS - 1


@pytest.mark.asyncio
async def test_a_session_that_ends_between_two_slices_is_left_alone() -> None:
    clock = FakeClock()
    access = AccessControl(clock)
    await access.apply(policy_of(BOTH))
    session = access.new_session(CallerIdentity(local_user("alice")), "", "native")
    reasons: list[errors.IcestreamError] = []
    for number in range(HOLDS):
        session.hold(Action.PRODUCE, Resource.parse(f"topic:/bank/t{number}"), reasons.append)
    clock.read_cost_seconds = DECISION_SECONDS
    deciding = asyncio.create_task(access.apply(policy_of(ONE, revision=2)))
    await asyncio.sleep(0)
    assert 0 < len(reasons) < HOLDS
    session.end(errors.Unauthenticated("the token was revoked"))
    await deciding
    assert len(reasons) == HOLDS, "each hold is closed once"
    assert {type(reason) for reason in reasons} == {errors.PermissionDenied, errors.Unauthenticated}


class CountedRules:
    """Counts how often a rule is compared with a resource."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        allows = AccessRule.allows

        def counted(rule: AccessRule, action: Action, resource: Resource, claims: Mapping[str, str]) -> bool:
            self.count += 1
            return allows(rule, action, resource, claims)

        monkeypatch.setattr(AccessRule, "allows", counted)


@pytest.mark.asyncio
async def test_hazard_124_a_change_compares_each_right_with_few_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection has many producers and its principal as many grants as it may have."""
    others = [
        rule
        for number in range(limits.SECURITY_GRANTS_EACH_MAX // 4)
        for rule in (
            f"produce on /shop/other{number}",
            f"produce on /place{number}/*",
            f"produce on /*/name{number}",
            f"consume on mqtt:a/+/{number}/#",
        )
    ]
    access = AccessControl(FakeClock())
    await access.apply(policy_of({"alice": ["produce on /shop/*", "produce on /bank/*", *others]}))
    session = access.new_session(CallerIdentity(local_user("alice")), "", "native")
    closed: list[errors.IcestreamError] = []
    for number in range(MANY_HOLDS):
        session.hold(
            Action.PRODUCE, Resource.parse(f"topic:/{'shop' if number % 2 else 'bank'}/t{number}"), closed.append
        )
    rules = CountedRules(monkeypatch)
    await access.apply(policy_of({"alice": [*others, "produce on /shop/*"]}, revision=2))
    assert len(closed) == session.holds == MANY_HOLDS // 2
    assert rules.count <= MANY_HOLDS


@pytest.mark.asyncio
async def test_hazard_124_a_change_for_others_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    access = AccessControl(clock)
    await access.apply(policy_of(BOTH))
    session = access.new_session(CallerIdentity(local_user("alice")), "", "native")
    closed: list[errors.IcestreamError] = []
    rules = CountedRules(monkeypatch)
    for number in range(HOLDS):
        session.hold(Action.PRODUCE, Resource.parse(f"topic:/bank/t{number}"), closed.append)
    opened = rules.count
    for revision in range(2, 10):
        await access.apply(policy_of({**BOTH, "bob": [f"consume on /shop/t{revision}"]}, revision=revision))
    assert rules.count == opened
    await access.apply(policy_of({**ONE, "bob": []}, revision=10))
    assert len(closed) == HOLDS


@pytest.mark.asyncio
async def test_a_right_that_was_opened_during_a_change_is_decided_by_the_next_one() -> None:
    """The rules may be again those of the first change, which other rights of the session were decided by."""
    clock = FakeClock()
    access = AccessControl(clock)
    await access.apply(policy_of(ONE))
    session = access.new_session(CallerIdentity(local_user("alice")), "", "native")
    closed: list[int] = []
    for number in range(HOLDS):
        session.hold(Action.PRODUCE, Resource.parse(f"topic:/shop/t{number}"), lambda _: closed.append(0))
    clock.read_cost_seconds = DECISION_SECONDS
    given_up = asyncio.create_task(access.apply(policy_of(BOTH, revision=2)))
    await asyncio.sleep(0)
    session.hold(Action.PRODUCE, Resource.parse("topic:/bank/late"), lambda _: closed.append(1))
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await access.apply(policy_of(ONE, revision=3))
    assert closed == [1]
