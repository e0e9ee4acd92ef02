"""The policy of a node follows the records: by watch, after a resync, at a start. Sessions and holds follow it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Event
from icestream.metadata.store import MemoryStore
from icestream.metadata.watch import WatchHub
from icestream.model.topic_name import TopicName
from icestream.security import security_records as records
from icestream.security.access_control import FindEnd
from icestream.security.access_policy import AccessPolicy, decide
from icestream.security.action import Action
from icestream.security.credential import Credential, PasswordCredential
from icestream.security.principal import ANONYMOUS_IDENTITY, CallerIdentity, local_user, service_account
from icestream.security.resource import Resource, ResourceKind
from icestream.security.security_state import SecurityState
from icestream.security.security_store import plan_parking
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.secured_store import ClosedHold, SecuredStore, secured_store, stored_state

ALICE, INGEST = local_user("alice"), service_account("ingest")
ORDERS = Resource(ResourceKind.TOPIC, ("shop", "orders"))
READ = records.RuleRecord(["read"], "/shop/orders")
TICKS = 40  # enough turns of the loop for every task that is due


async def turn() -> None:
    for _ in range(TICKS):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def node(clock: FakeClock) -> AsyncIterator[SecuredStore]:
    async with secured_store(FaultyStore(clock), clock) as node:
        await node.security.create_user("alice", "hash")
        await node.security.create_service("ingest")
        yield node


# --- the property -----------------------------------------------------------------------------------------------------

NAMES = ("alice", "bob", "carol")
TOPICS = ("orders", "bills")


class SecurityChurn:
    """Random changes of security by two nodes on one store, with watches that lose events."""

    def __init__(self, nodes: tuple[SecuredStore, SecuredStore], chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            node = self._chance.choice(self._nodes)
            try:
                await self._step(node)
            except (errors.InvalidInput, errors.MetadataFull):
                continue  # not possible in this state: nothing changed

    async def _step(self, node: SecuredStore) -> None:
        chance, security = self._chance, node.security
        name, topic = chance.choice(NAMES), chance.choice(TOPICS)
        state = security.state
        grant_id = chance.choice([*state.grants, "none"])
        match chance.randrange(14):
            case 0:
                await security.create_user(name, f"hash {chance.random()}")
            case 1:
                await security.delete_account(local_user(name))
            case 2:
                await security.set_disabled(local_user(name), is_disabled=chance.random() < 0.5)
            case 3:
                await security.grant(local_user(name), rule=records.RuleRecord(["read"], f"/shop/{topic}"))
            case 4:
                await security.grant(local_user(name), role=chance.choice(["reader", "team", "administrator"]))
            case 5:
                await security.delete_grant(grant_id)
            case 6:
                await security.unpark(grant_id)
            case 7:
                await security.put_role("team", [records.RuleRecord(["write"], f"/shop/{topic}")])
            case 8:
                await security.delete_role("team")
            case 9:
                await security.record_token(f"jti-{chance.randrange(5)}", local_user(name), 2**52)
            case 10:
                await security.revoke_token(f"jti-{chance.randrange(5)}")
            case 11:
                compare, operations = await plan_parking(node.store, TopicName("shop", topic))
                await node.store.txn(compare, operations)
            case 12:
                await security.change_keys(lambda ring: ring + b"+")
            case 13:
                assert isinstance(node.store, CommittedStates)
                await node.store.burst(records.RoleRecord([records.RuleRecord(["read"], f"/burst/{topic}")]))


class CommittedStates(FaultyStore):
    """A store that keeps every state of security that was ever committed, by the serial number of its last change."""

    def __init__(self, clock: FakeClock, delay: random.Random, kept: int) -> None:
        super().__init__(clock, delay=delay)
        self._hub = WatchHub(0, batches_max=kept)
        self._kept = kept
        self.states: dict[int, SecurityState] = {0: SecurityState()}
        publish = self._hub.publish

        def note_and_publish(events: list[Event]) -> None:
            page = self._machine.page(records.SECURITY, "", 10_000)
            state = SecurityState.load((key, entry.value, entry.mod_revision) for key, entry in page)
            self.states[state.serial] = state
            publish(events)

        self._hub.publish = note_and_publish  # type: ignore[method-assign]

    async def burst(self, role: records.RoleRecord) -> None:
        """Changes a role, and more than a watch keeps, without a turn of the loop in between: the change is missed."""
        changes = self._machine.get(records.CHANGES)
        assert changes is not None
        serial = records.decode(records.ChangesRecord, changes.value).serial + 1
        bump = cmd.Put(records.CHANGES, records.encode(records.ChangesRecord(serial)))
        await MemoryStore.submit(self, cmd.Txn([], [cmd.Put(records.role_key("burst"), records.encode(role)), bump]))
        for _ in range(min(self._kept, 5) + 1):
            await MemoryStore.submit(self, cmd.Put("/elsewhere", b""))


def check_applied(node: SecuredStore, store: CommittedStates) -> list[str]:
    """Returns a list that gets what a node applies and was never committed: half a change, or an older state again."""
    apply, faults, last = node.control.apply, [], 0

    async def checked(policy: AccessPolicy, find_end: FindEnd | None = None) -> None:
        nonlocal last
        serial = node.watch.state.serial
        committed = store.states[serial].policy(0)
        if (policy.roles, policy.grants) != (committed.roles, committed.grants):
            faults.append(f"state {serial} is not the one that was committed")
        if serial < last:
            faults.append(f"state {serial} after {last}")
        last = serial
        await apply(policy, find_end)

    node.control.apply = checked  # type: ignore[method-assign]
    return faults


@pytest.mark.asyncio
@given(seed=st.integers(0, 2**32), kept=st.sampled_from([2, 3, 1000]), steps=st.integers(1, 40))
async def test_the_policy_is_that_of_the_records(seed: int, kept: int, steps: int) -> None:
    """Also where the watch loses events (`kept`: so many revisions are kept) and must read everything again, in pages,
    while others change it."""
    clock = FakeClock()
    store = CommittedStates(clock, random.Random(seed), kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "METADATA_LIST_MAX", 3)
        async with secured_store(store, clock, 1) as first, secured_store(store, clock, 2, initialised=False) as second:
            faults = [check_applied(node, store) for node in (first, second)]
            churns = [SecurityChurn((first, second), random.Random(seed + number)) for number in range(2)]
            async with asyncio.timeout(20):  # a change that is missed for good is waited for
                await asyncio.gather(*(churn.run(steps) for churn in churns))
            expected = await stored_state(store)
            for node in (first, second):
                await node.watch.until_current()
                assert node.watch.state == expected
                policy = expected.policy(0)
                assert node.control.policy.is_enabled
                assert (node.control.policy.roles, node.control.policy.grants) == (policy.roles, policy.grants)
            assert faults == [[], []]
            assert list(expected.administrators()), "nobody can lock everybody out"
            async with secured_store(store, clock, 3, initialised=False) as restarted:
                assert restarted.watch.state == expected


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_113_a_revoked_grant_closes_the_hold_on_every_node(node: SecuredStore, clock: FakeClock) -> None:
    grant_id = await node.security.grant(ALICE, rule=READ)
    async with secured_store(node.store, clock, 5, initialised=False) as other:
        identity = CallerIdentity(ALICE, generation=node.security.state.users["alice"].generation)
        holds = [ClosedHold(member.session(identity), Action.CONSUME, ORDERS) for member in (node, other)]
        await node.security.delete_grant(grant_id)
        await other.watch.until_current()
        for hold in holds:
            assert isinstance(hold.reason, errors.PermissionDenied)
            assert "no rule of user:local:alice allows consume on topic:/shop/orders" in hold.reason.message


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("delete", "was deleted"),
        ("disable", "is disabled"),
        ("generation", "were revoked"),
        ("token", "the token jti-1 of service:local:ingest was revoked"),
    ],
)
async def test_hazard_113_a_session_ends_with_its_credential(node: SecuredStore, ending: str, reason: str) -> None:
    await node.security.grant(INGEST, rule=READ)
    await node.security.record_token("jti-1", INGEST, (node.security.now_ms() + 3_600_000) * 1000)
    generation = node.security.state.services["ingest"].generation
    session = node.session(CallerIdentity(INGEST, credential_id="jti-1", generation=generation))
    neighbour = node.session(CallerIdentity(ALICE, generation=node.security.state.users["alice"].generation))
    hold = ClosedHold(session, Action.CONSUME, ORDERS)
    match ending:
        case "delete":
            await node.security.delete_account(INGEST)
        case "disable":
            await node.security.set_disabled(INGEST, is_disabled=True)
        case "generation":
            await node.security.revoke_all_tokens(INGEST)
        case "token":
            await node.security.revoke_token("jti-1")
    assert reason in hold.reason.message
    with pytest.raises(errors.Unauthenticated, match=reason):
        session.require(Action.CONSUME, ORDERS)
    assert neighbour.closed is None


@pytest.mark.asyncio
@pytest.mark.parametrize("step_back", [0, 7_200])
async def test_hazard_113_a_session_ends_when_its_credential_expires(
    node: SecuredStore, clock: FakeClock, step_back: int
) -> None:
    """Also if the wall clock steps back meanwhile."""
    await node.security.grant(INGEST, rule=READ)
    generation = node.security.state.services["ingest"].generation
    sessions = [
        node.session(CallerIdentity(INGEST, expires_us=clock.wall_us() + seconds * 1_000_000, generation=generation))
        for seconds in (60, 3_600)
    ]
    holds = [ClosedHold(session, Action.CONSUME, ORDERS) for session in sessions]
    await turn()
    clock.step(-step_back)
    clock.advance(59)
    await turn()
    assert not holds[0].reasons
    clock.advance(1)
    await turn()
    assert "expired" in holds[0].reason.message
    assert not holds[1].reasons
    with pytest.raises(errors.Unauthenticated, match="expired"):
        sessions[0].require(Action.DESCRIBE, ORDERS)


@pytest.mark.asyncio
async def test_closed_sessions_leave_no_expiries_behind(node: SecuredStore, clock: FakeClock) -> None:
    identity = CallerIdentity(INGEST, expires_us=clock.wall_us() + 10**12)
    for _ in range(3 * limits.ACCESS_EXPIRIES_SPARE):
        node.control.close_session(node.session(identity))
    assert len(node.control._expiries) <= limits.ACCESS_EXPIRIES_SPARE + 1


class SlowAuthenticator:
    """Accepts every password, when the test lets it."""

    def __init__(self, identity: CallerIdentity) -> None:
        self._identity = identity
        self.go = asyncio.Event()

    async def authenticate(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        await self.go.wait()
        return self._identity

    def is_current(self, identity: CallerIdentity) -> bool:
        return True

    def forget_tokens(self) -> None:
        pass


@pytest.mark.asyncio
async def test_an_account_that_is_deleted_during_its_login_gets_no_session(node: SecuredStore) -> None:
    generation = node.security.state.users["alice"].generation
    authenticator = SlowAuthenticator(CallerIdentity(ALICE, generation=generation))
    node.control.authenticator = authenticator
    login = asyncio.create_task(node.control.authenticate(PasswordCredential("alice", "secret"), "", "native"))
    await turn()
    await node.security.delete_account(ALICE)
    authenticator.go.set()
    with pytest.raises(errors.Unauthenticated, match="was deleted"):
        await login
    assert node.control.sessions == 0


# --- the switch -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_hazard_112_open_clients_lose_what_they_hold_when_security_is_switched_on(clock: FakeClock) -> None:
    async with secured_store(FaultyStore(clock), clock, initialised=False) as node:
        hold = ClosedHold(node.session(ANONYMOUS_IDENTITY), Action.PRODUCE, ORDERS)
        await node.security.init("root", "hash", b"ring")
        assert isinstance(hold.reason, errors.Unauthenticated)


@pytest.mark.asyncio
async def test_hazard_112_a_node_that_was_away_starts_with_security_on(node: SecuredStore, clock: FakeClock) -> None:
    async with secured_store(node.store, clock, 5, initialised=False) as away:
        assert not decide(ANONYMOUS_IDENTITY, Action.DESCRIBE, ORDERS, away.control.policy).is_allowed


@pytest.mark.asyncio
async def test_nothing_is_read_or_timed_while_security_is_off(clock: FakeClock) -> None:
    store = FaultyStore(clock)
    async with secured_store(store, clock, initialised=False):
        await turn()
        reads = len(store.reads)
        clock.advance(3_600)
        await turn()
        assert len(store.reads) == reads
        assert clock.sleeps == []


# --- a store without a leader -----------------------------------------------------------------------------------------


async def pass_seconds(clock: FakeClock, seconds: float) -> None:
    """Time passes in steps of a tick, and the node looks after each."""
    for _ in range(int(seconds / limits.ACCESS_TICK_SECONDS)):
        clock.advance(limits.ACCESS_TICK_SECONDS)
        await turn()


@pytest.mark.asyncio
async def test_hazard_113_without_a_leader_logins_stop_and_later_holds_close(
    node: SecuredStore, clock: FakeClock
) -> None:
    store = node.store
    assert isinstance(store, FaultyStore)
    await node.security.grant(ALICE, rule=READ)
    session = node.session(CallerIdentity(ALICE, generation=node.security.state.users["alice"].generation))
    hold = ClosedHold(session, Action.CONSUME, ORDERS)
    await pass_seconds(clock, 1)
    store.is_down = True
    await pass_seconds(clock, limits.ACCESS_LOGIN_GRACE_MS / 1000 - 1)
    ClosedHold(session, Action.CONSUME, ORDERS)
    await pass_seconds(clock, 2)
    with pytest.raises(errors.NotReady, match="no leader"):
        await node.control.authenticate(None, "", "native")
    with pytest.raises(errors.NotReady, match="no leader"):
        ClosedHold(session, Action.CONSUME, ORDERS)
    assert not hold.reasons, "what is open goes on"
    await pass_seconds(clock, (limits.ACCESS_HOLD_GRACE_MS - limits.ACCESS_LOGIN_GRACE_MS) / 1000)
    assert isinstance(hold.reason, errors.NotReady)
    assert session.closed is None, "the client opens again on the same connection"
    store.is_down = False
    await pass_seconds(clock, 1)
    await node.control.authenticate(None, "", "native")
    ClosedHold(session, Action.CONSUME, ORDERS)


@pytest.mark.asyncio
async def test_hazard_113_a_node_whose_watch_is_behind_is_not_current(node: SecuredStore, clock: FakeClock) -> None:
    """A reachable leader is not enough: the changes must have been applied here."""
    await pass_seconds(clock, 1)
    node.watch.applied_revision = -(10**9)  # a watch that does not move on
    await pass_seconds(clock, 1)  # the check waits for the watch: nothing is confirmed
    clock.advance(limits.ACCESS_LOGIN_GRACE_MS / 1000)
    async with asyncio.timeout(30):
        while node.control.paused is None:
            clock.advance(limits.ACCESS_TICK_SECONDS)
            await asyncio.sleep(0.01)
    assert "no leader" in node.control.paused.message
