"""Sessions that another process opens for its clients, and the decisions for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.metadata.store import MemoryStore
from icestream.rpc.document import Document
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.security.access_control import AccessControl
from tests.support.local_broker import kept_link, local_broker
from tests.support.secured_access import FixedSecrets, SecuredAccess, of_role

pytestmark = pytest.mark.asyncio
ORDERS = "topic:/shop/orders"


@pytest.fixture
def access() -> SecuredAccess:
    return SecuredAccess({"alice": ["read on /shop/*", "all on table:/raw/**"]})


@pytest_asyncio.fixture
async def lake(tmp_path: Path, access: SecuredAccess) -> AsyncIterator[LinkKeeper]:
    async with (
        local_broker(tmp_path / "broker.sock", MemoryStore(), access_control=access, roles=FixedSecrets()),
        kept_link(tmp_path / "broker.sock", of_role("lake")) as keeper,
    ):
        yield keeper


async def open_session(lake: LinkKeeper, **credential: object) -> Document:
    arguments = {"credential": credential, "address": "10.0.0.9:1", "listener": "lake"}
    return await lake.call("security_open_session", arguments)


async def decide(lake: LinkKeeper, session: int, *rights: tuple[str, str]) -> list[bool]:
    answer = await lake.call("security_decide", {"session": session, "rights": [list(right) for right in rights]})
    return [decision["is_allowed"] for decision in answer["decisions"]]


@pytest.mark.parametrize(
    "credential", [{"token": "token-of-alice"}, {"user": "alice", "password": "password-of-alice"}]
)
async def test_a_session_has_the_rights_of_its_principal(lake: LinkKeeper, credential: dict[str, str]) -> None:
    opened = await open_session(lake, **credential)
    assert (opened["principal"], opened["is_enabled"]) == ("user:local:alice", True)
    assert await decide(
        lake,
        opened["session"],
        ("table-read", ORDERS),
        ("produce", ORDERS),
        ("table-write", "table:/raw/a%2Fb/clicks"),
        ("admin", "cluster"),
    ) == [True, False, True, False]


async def test_a_decision_names_the_rule_and_the_revision(lake: LinkKeeper) -> None:
    session = (await open_session(lake, token="token-of-alice"))["session"]
    answer = await lake.call("security_decide", {"session": session, "rights": [["query", ORDERS]]})
    assert "alice-0" in answer["decisions"][0]["reason"]
    assert answer["revision"] == 1


async def test_a_changed_policy_decides_open_sessions(lake: LinkKeeper, access: SecuredAccess) -> None:
    session = (await open_session(lake, token="token-of-alice"))["session"]
    await access.change({})
    assert await decide(lake, session, ("table-read", ORDERS)) == [False]


async def test_an_invalid_credential_opens_no_session(lake: LinkKeeper, access: SecuredAccess) -> None:
    before = access.sessions
    with pytest.raises(errors.Unauthenticated):
        await open_session(lake, token="forged")
    with pytest.raises(errors.InvalidInput, match="more than one kind"):
        await open_session(lake, token="token-of-alice", user="bob", password="password-of-bob")
    assert access.sessions == before


async def test_a_client_without_a_credential_is_anonymous(lake: LinkKeeper) -> None:
    opened = await open_session(lake)
    assert opened["principal"] == "anonymous"
    assert await decide(lake, opened["session"], ("describe", ORDERS)) == [False]


async def test_an_ended_session_decides_nothing(lake: LinkKeeper, access: SecuredAccess) -> None:
    session = (await open_session(lake, token="token-of-alice"))["session"]
    access.end_sessions(lambda identity: identity.principal.name == "alice", errors.Unauthenticated("revoked"))
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        await decide(lake, session, ("describe", ORDERS))


async def test_a_closed_session_is_unknown(lake: LinkKeeper, access: SecuredAccess) -> None:
    before = access.sessions
    session = (await open_session(lake, token="token-of-alice"))["session"]
    await lake.call("security_close_session", {"session": session})
    assert access.sessions == before
    with pytest.raises(errors.UnknownHandle):
        await decide(lake, session, ("describe", ORDERS))


async def test_the_least_recently_used_session_makes_room(
    lake: LinkKeeper, access: SecuredAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_PER_CONNECTION_MAX", 2)
    first, second = [(await open_session(lake, token=f"token-of-{name}"))["session"] for name in ("alice", "bob")]
    await decide(lake, first, ("describe", ORDERS))
    third = (await open_session(lake, token="token-of-carol"))["session"]
    for session in (first, third):
        await decide(lake, session, ("describe", ORDERS))
    with pytest.raises(errors.UnknownHandle):
        await decide(lake, second, ("describe", ORDERS))


@pytest.mark.parametrize(
    "right", [["read", ORDERS], ["describe", "topic:/shop"], ["describe", "nothing"], ["fly", ORDERS]]
)
async def test_a_right_that_cannot_be_decided_is_refused(lake: LinkKeeper, right: list[str]) -> None:
    session = (await open_session(lake, token="token-of-alice"))["session"]
    with pytest.raises(errors.InvalidInput):
        await lake.call("security_decide", {"session": session, "rights": [right]})


async def test_the_number_of_rights_in_a_call_is_bounded(lake: LinkKeeper) -> None:
    session = (await open_session(lake, token="token-of-alice"))["session"]
    rights = [["describe", "cluster"]] * (limits.DECISIONS_PER_CALL_MAX + 1)
    with pytest.raises(errors.InvalidInput, match="at most"):
        await lake.call("security_decide", {"session": session, "rights": rights})


async def test_sessions_end_with_their_connection(tmp_path: Path, access: SecuredAccess) -> None:
    path = tmp_path / "broker.sock"
    async with (
        local_broker(path, MemoryStore(), access_control=access, roles=FixedSecrets()),
        kept_link(path, of_role("lake")) as keeper,
    ):
        await open_session(keeper, token="token-of-alice")
        assert access.sessions == 2  # that of the connection, and alice's
    assert access.sessions == 0


async def test_everything_is_allowed_while_security_is_off(tmp_path: Path) -> None:
    access = AccessControl(SystemClock())
    path = tmp_path / "broker.sock"
    async with (
        local_broker(path, MemoryStore(), access_control=access, roles=FixedSecrets()),
        kept_link(path, of_role("lake")) as keeper,
    ):
        opened = await open_session(keeper, token="unread")
        assert (opened["principal"], opened["is_enabled"]) == ("anonymous", False)
        assert await decide(keeper, opened["session"], ("admin", "cluster")) == [True]
