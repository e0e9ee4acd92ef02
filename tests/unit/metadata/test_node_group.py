"""The driver with several voters: the rules of its loop (node.py), forwarding, reads, snapshots, time, the lead."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.core import Role
from icestream.metadata.eraftpb import Membership
from icestream.metadata.node_store import NodeStore
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.store import Consistency
from icestream.metadata.ticker import Ticker
from icestream.metadata.watch import Changes, Resync
from icestream.runtime.simulated_disk import Crash
from tests.support.held_sink import HeldSink
from tests.support.node_group import NodeGroup

# types of a Message
ENTRIES, ENTRIES_ANSWER, HEARTBEAT, HEARTBEAT_ANSWER, ASKS_FOR_VOTES = 3, 4, 8, 9, 17
LEARNER = 2  # in a change of members
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]


@pytest_asyncio.fixture
async def group() -> AsyncIterator[NodeGroup]:
    node_group = await NodeGroup.form(3)
    yield node_group
    await node_group.close()


def kinds(group: NodeGroup, sender: int) -> list[int]:
    return [eraftpb.message_kind(message.data) for source, message in group.sent if source == sender]


# --- the rules --------------------------------------------------------------------------------------------------------


async def test_three_nodes_agree_and_each_accepts_writes(group: NodeGroup) -> None:
    for number, store in enumerate(group.stores.values()):
        await group.do(store.put(f"/{number}", b"x"))
    await group.settle()
    assert len(group.states()) == 1
    assert [key for key, _ in await group.do(group.followers[0].list("/"))] == ["/0", "/1", "/2"]


async def test_rule_1_a_follower_confirms_entries_when_they_are_synced() -> None:
    group = NodeGroup(Membership((1, 2, 3)))
    sink = HeldSink()
    await group.start(1)
    await group.start(2)
    await group.start(3, sink)
    await group.until(lambda: group.leader is not None)
    assert group.led.node.id != 3, "it cannot even vote"
    group.cuts = {(0, 3 - group.led.node.id)}  # of two voters only the slow one is left
    group.sent.clear()
    answer = asyncio.ensure_future(group.led.put("/a", b""))
    for _ in range(5):
        await group.tick()
    assert not answer.done()
    assert 4 not in kinds(group, 3), "no answer to entries that are not on its disk"
    assert 9 in kinds(group, 3), "a heartbeat is answered at once: it depends on no write"
    await stepping(group, group.members[3].up, sink, answer.done)
    assert answer.result() == 1
    await group.close()


async def test_rule_1_no_message_of_a_term_is_sent_before_it_is_synced() -> None:
    """The only voter needs no vote of others: it leads at once, and could lead in the same term again after a crash."""
    group = NodeGroup(Membership((1,), (2,)))
    await group.start(2)
    sink = HeldSink()
    store = await group.start(1, sink)
    for _ in range(5):
        await group.tick()
    assert store.node._role == Role.LEADER
    assert [message for sender, message in group.sent if sender == 1] == []
    await stepping(group, store, sink, lambda: store.node.leads)
    await group.tick()
    assert 3 in kinds(group, 1)
    await group.close()


async def test_rule_1_a_leader_sends_entries_while_it_writes_them(group: NodeGroup) -> None:
    leader = group.led.node.id
    await group.kill(leader)
    await group.until(lambda: group.leader is not None)
    sink = HeldSink()
    store = await group.start(leader, sink)
    await stepping(group, store, sink, lambda: store.is_ready)
    group.led.node._core.transfer_leader(leader)
    await stepping(group, store, sink, lambda: store.node.leads)
    group.sent.clear()
    answer = asyncio.ensure_future(store.put("/a", b""))
    for _ in range(4):
        await group.tick()
    assert 3 in kinds(group, leader), "the entries are under way, although its own disk stands still"
    assert not answer.done(), "and it is applied here when it is synced here (rule 2)"
    await stepping(group, store, sink, answer.done)
    assert answer.result() == 1


async def stepping(group: NodeGroup, store: NodeStore, sink: HeldSink, is_reached: Callable[[], bool]) -> None:
    """Steps a disk that works only step by step until the condition is reached."""
    for _ in range(500):
        if is_reached():
            return
        sink.step()
        store.node._on_news()
        await group.tick()
    raise AssertionError("it never happened")


async def test_rule_3_all_reads_of_a_tick_are_one_read_index(group: NodeGroup) -> None:
    follower = group.followers[0]
    group.sent.clear()
    await group.do(asyncio.gather(*(follower.get(f"/{number}") for number in range(50))))
    assert kinds(group, follower.node.id).count(15) == 1


async def test_rule_3_commands_during_others_are_batched(group: NodeGroup) -> None:
    await group.settle()
    leader = group.led
    answers_held = [True]
    group.hold = lambda sender, message: answers_held[0] and eraftpb.message_kind(message.data) == ENTRIES_ANSWER
    group.sent.clear()
    puts = []
    for number in range(20):
        puts.append(asyncio.ensure_future(leader.put(f"/{number}", b"")))
        await group.turn()
    assert kinds(group, leader.node.id).count(ENTRIES) == 2, "the first of them, to each of the others"
    answers_held[0] = False
    for _ in range(5):
        await group.turn()
    assert [put.result() for put in puts] == list(range(1, 21))
    assert kinds(group, leader.node.id).count(ENTRIES) == 4, "and all others together"


async def test_large_commands_are_not_delayed(group: NodeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_GATHERED_BYTES", 8 * limits.KIB)
    await group.settle()
    leader = group.led
    group.hold = lambda sender, message: eraftpb.message_kind(message.data) == ENTRIES_ANSWER
    group.sent.clear()
    value = bytes(2 * limits.KIB)
    puts = [asyncio.ensure_future(leader.put("/first", b""))]
    await group.turn()
    puts += [asyncio.ensure_future(leader.put(f"/{number}", value)) for number in range(3)]
    await group.turn()
    assert kinds(group, leader.node.id).count(ENTRIES) == 2, "there is room for more with them"
    puts.append(asyncio.ensure_future(leader.put("/last", value)))
    await group.turn()
    assert kinds(group, leader.node.id).count(ENTRIES) == 4
    group.hold = lambda sender, message: False
    await group.do(asyncio.gather(*puts))


async def test_a_commit_is_announced_with_the_next_entries(group: NodeGroup) -> None:
    await group.settle()
    leader, follower = group.led, group.followers[0]
    group.sent.clear()
    for number in range(3):
        put = asyncio.ensure_future(leader.put("/a", b""))
        for _ in range(5):
            await group.turn()
        assert put.done()
        assert follower.node.machine.revision == number, "the one before"
    assert kinds(group, leader.node.id) == [ENTRIES] * 6, "nothing but the entries"


async def test_a_commit_without_following_entries_is_announced_soon(group: NodeGroup) -> None:
    await group.settle()
    leader, follower = group.led, group.followers[0]
    put = asyncio.ensure_future(leader.put("/a", b""))
    for _ in range(5):
        await group.turn()
    assert (put.result(), follower.node.machine.revision) == (1, 0)
    group.clock.advance(limits.METADATA_TELL_SECONDS)
    for _ in range(5):
        await group.turn()
    assert follower.node.machine.revision == 1
    group.sent.clear()
    group.clock.advance(10 * limits.METADATA_TELL_SECONDS)
    await group.turn()
    assert group.sent == [], "it is told once"


async def test_a_node_that_forwarded_a_command_gets_the_commit_immediately(group: NodeGroup) -> None:
    await group.settle()
    put = asyncio.ensure_future(group.followers[0].put("/a", b""))
    for _ in range(10):
        await group.turn()
    assert put.result() == 1, "and no time has passed"


async def test_an_idle_leader_stamps_the_log_while_a_key_has_a_deadline(group: NodeGroup) -> None:
    """A node that starts again goes on from the newest stamp: without one no key expires before the next write."""
    await group.do(group.led.put_with_ttl("/key", b"", 10 * limits.METADATA_STAMP_MS))
    await group.settle()
    began_ms = group.led.node.machine.time_ms
    for _ in range(3):
        group.clock.advance(limits.METADATA_STAMP_MS / 1000 + 1)
        await group.tick()
    await group.settle()
    assert all(store.node.machine.time_ms >= began_ms + 3 * limits.METADATA_STAMP_MS for store in group.followers)
    await group.do(group.led.delete("/key"))
    await group.settle()
    index = group.led.node.applied_index
    for _ in range(3):
        group.clock.advance(limits.METADATA_STAMP_MS / 1000 + 1)
        await group.tick()
    assert group.led.node.applied_index == index, "without such a key an idle log stays as it is"


async def test_commands_behind_a_batch_that_never_ends_are_refused_at_close(group: NodeGroup) -> None:
    await group.settle()
    leader = group.led
    group.hold = lambda sender, message: eraftpb.message_kind(message.data) == ENTRIES_ANSWER
    under_way = leader.begin(cmd.Put("/first", b""))
    await group.turn()
    queued = leader.begin(cmd.Put("/second", b""))
    closing = asyncio.ensure_future(leader.node.close())
    for _ in range(5):
        group.clock.advance(limits.METADATA_CLOSE_SECONDS_MAX)
        await group.turn()
    assert closing.done()
    assert isinstance(under_way.exception(), errors.OutcomeUnknown)
    assert isinstance(queued.exception(), errors.LogClosed), "nothing of it was stored"
    del group.members[leader.node.id]


def message(kind: int, to: int, sender: int, term: int) -> bytes:
    return bytes([0x08, kind, 0x10, to, 0x18, sender, 0x20, term])


async def test_vote_requests_do_not_count_as_leader_contact(group: NodeGroup) -> None:
    """Only messages that the leader of this term sends as leader count; other requests and replies do not."""
    await group.settle()
    follower, other = group.followers
    me, leader, term, before_ns = follower.node.id, group.led.node.id, follower.node._term, follower.node.heard_ns
    group.clock.advance(1.0)
    asks = message(ASKS_FOR_VOTES, me, other.node.id, 1)
    assert eraftpb.rpc_of(asks) == "Vote"
    follower.node.receive([asks])
    for kind in (ENTRIES_ANSWER, HEARTBEAT_ANSWER):
        follower.node.receive([message(kind, me, other.node.id, term), message(kind, me, leader, term)])
    follower.node.receive([message(HEARTBEAT, me, other.node.id, term - 1), message(HEARTBEAT, me, leader, term - 1)])
    assert follower.node.heard_ns == before_ns
    follower.node.receive([asks, message(HEARTBEAT, me, leader, term)])
    assert follower.node.heard_ns > before_ns, "messages of the leader count, whichever other nodes send too"
    before_ns = follower.node.heard_ns
    await group.tick()
    assert follower.node.heard_ns > before_ns, "the leader's heartbeat as it is sent"


async def test_the_first_message_of_a_new_leader_counts_as_contact(group: NodeGroup) -> None:
    await group.settle()
    await group.kill(group.led.node.id)
    await group.until(lambda: group.leader is not None)
    (follower,) = group.followers
    assert follower.node.leader == group.led.node.id
    before_ns = follower.node.heard_ns
    await group.do(group.led.put("/a", b""))
    assert follower.node.heard_ns > before_ns


async def test_a_reading_learner_does_not_prevent_an_election(group: NodeGroup) -> None:
    """The follower does not know the new leader and asks the old one, which is cut off from the new one."""
    await group.start(4, conf=group.conf)
    await group.do(group.led.node.change_members([(LEARNER, 4)]))
    await group.settle()
    old, new = group.led, group.followers[0] if group.followers[0].node.id != 4 else group.followers[1]
    group.cuts = {(new.node.id, 4)}
    old.node.transfer(new.node.id)
    await group.until(lambda: new.node.leads and old.node.leader == new.node.id)
    assert group.stores[4].node.leader == old.node.id
    reading = asyncio.ensure_future(read_again_and_again(group.stores[4]))
    ticking = [asyncio.ensure_future(Ticker(group.clock, store.node).run()) for store in group.stores.values()]
    await group.kill(new.node.id)
    for _ in range(500):
        group.clock.advance(0.01)
        await group.turn()
    assert group.leader is not None, "5 s later"
    for task in (reading, *ticking):
        task.cancel()


async def read_again_and_again(store: NodeStore) -> None:
    while True:
        with contextlib.suppress(errors.IcestreamError):
            await store.get("/a")
        await asyncio.sleep(0)


async def test_several_ticks_at_once_send_one_heartbeat_to_each(group: NodeGroup) -> None:
    await group.settle()
    group.sent.clear()
    group.led.node.tick(4)
    assert kinds(group, group.led.node.id) == [HEARTBEAT] * 2


async def test_rule_4_a_follower_does_not_write_the_commit_index(group: NodeGroup) -> None:
    await group.do(group.led.put("/a", b""))
    await group.settle()
    disk = group.members[group.followers[0].node.id].disk
    disk.operations.clear()
    for _ in range(20):
        await group.tick()
    assert disk.operations == [], "heartbeats of an idle cluster write nothing"


async def test_rule_5_a_failing_disk_stops_its_node_and_the_others_continue(group: NodeGroup) -> None:
    leader = group.led
    group.members[leader.node.id].disk.fail("sync", errno.EIO)
    outcome = await group.outcome(leader.put("/a", b""))
    assert isinstance(outcome, errors.OutcomeUnknown | errors.LogStopped)
    assert isinstance(leader.stopped, errors.LogStopped)
    del group.members[leader.node.id]
    await group.until(lambda: group.leader is not None)
    assert await group.do(group.led.put("/b", b"")) > 0


async def test_rule_6_garbage_from_the_network_stops_no_node(group: NodeGroup) -> None:
    group.led.node.receive([b"", b"garbage", bytes(100)])
    assert group.led.stopped is None
    assert await group.do(group.led.put("/a", b"")) == 1


async def test_a_follower_with_a_full_file_waits_for_the_next(group: NodeGroup) -> None:
    await group.do(asyncio.gather(*(group.led.put(f"/{number}", bytes(3000)) for number in range(60))))
    await group.settle()
    assert len(group.states()) == 1
    assert all(len([n for n in m.disk.names() if n.startswith("log-")]) > 3 for m in group.members.values())


async def test_everything_is_recovered_after_all_nodes_lost_power(group: NodeGroup) -> None:
    for number in range(20):
        await group.do(group.led.put(f"/{number}", b"x"))
    for node_id in tuple(group.stores):
        await group.kill(node_id, power_loss=True)
    for node_id in tuple(group.members):
        await group.start(node_id)
    await group.until(lambda: group.is_ready)
    await group.settle()
    assert len(await group.do(group.led.list("/"))) == 20
    assert len(group.states()) == 1


# --- writes -----------------------------------------------------------------------------------------------------------


async def test_a_forwarded_write_is_visible_to_its_writer(group: NodeGroup) -> None:
    follower = group.followers[0]
    revision = await group.do(follower.put("/a", b"1"))
    assert group.forwarded == 1
    assert follower.node.machine.revision >= revision, "the state here has it before the answer"
    entry = await follower.get("/a", Consistency.SESSION)
    assert entry is not None


async def test_trap_11_a_write_whose_reply_was_lost_is_applied_once(group: NodeGroup) -> None:
    group.lose_answers = 3
    first = await group.do(group.followers[0].allocate_id("x"))
    assert (first, group.forwarded) == (1, 4)
    assert await group.do(group.led.allocate_id("x")) == 2, "four tries, one number"


async def test_a_write_in_flight_survives_the_loss_of_the_leader(group: NodeGroup) -> None:
    leader, follower = group.led, group.followers[0]
    others = [store.node.id for store in group.stores.values() if store is not leader]
    group.cuts = {(leader.node.id, other) for other in others}  # its entries reach no other node
    answer = asyncio.ensure_future(follower.allocate_id("x"))
    for _ in range(3):
        await group.tick()
    await group.kill(leader.node.id)
    group.cuts = set()
    assert await group.do(answer) == 1
    assert await group.do(follower.allocate_id("x")) == 2


async def test_a_leader_without_a_majority_steps_down_with_unknown_outcomes(
    group: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METADATA_REMOTE_SECONDS_MAX", 1.0)
    leader = group.led
    group.cuts = {(leader.node.id, 0), (0, leader.node.id)}
    outcome = await group.outcome(leader.put("/a", b"lost"))
    assert isinstance(outcome, errors.OutcomeUnknown)
    assert not leader.node.leads
    await group.until(lambda: group.leader is not None)
    assert isinstance(await group.outcome(leader.put("/b", b"")), errors.NotReady), "it never left this node"
    group.cuts = set()
    await group.do(group.led.put("/c", b""))
    await group.settle()
    assert len(group.states()) == 1


async def test_a_forwarded_write_is_unknown_when_this_node_stops_before_the_reply(
    group: NodeGroup,
) -> None:
    follower = group.followers[0]
    group.hold = lambda sender, message: message.to == follower.node.id
    writing = asyncio.ensure_future(follower.put("/a", b""))
    for _ in range(6):
        await group.tick()
    assert group.led.node.machine.get("/a") is not None
    assert not writing.done()
    follower.node.fail(errors.LogStopped("its disk failed"))
    with pytest.raises(errors.OutcomeUnknown):
        await group.do(writing)


async def test_a_write_that_the_leader_has_done_waits_for_this_node_no_longer_than_any_other(
    group: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METADATA_REMOTE_SECONDS_MAX", 1.0)
    follower = group.followers[0]
    group.hold = lambda sender, message: message.to == follower.node.id
    begun_ns = group.clock.monotonic_ns()
    with pytest.raises(errors.OutcomeUnknown):
        await group.do(follower.put("/a", b""))
    assert group.led.node.machine.get("/a") is not None
    assert group.clock.monotonic_ns() - begun_ns < 2e9


async def test_a_write_whose_replies_were_lost_is_unknown_when_this_node_stops(group: NodeGroup) -> None:
    follower = group.followers[0]
    group.lose_answers = 1_000
    writing = asyncio.ensure_future(follower.put("/a", b""))
    await group.until(lambda: group.forwarded > 1)
    follower.node.fail(errors.LogStopped("its disk failed"))
    with pytest.raises(errors.OutcomeUnknown):
        await group.do(writing)


async def test_hazard_13_an_error_of_a_stopping_leader_does_not_decide_a_write_that_may_be_done(
    group: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try was carried out, the next ones meet a leader that stops, or is closed."""
    await group.settle()
    follower, leader, reasons = (
        group.followers[0],
        group.led,
        [errors.LogStopped("stopped"), errors.LogClosed("closed")],
    )
    real = leader.propose

    async def propose(command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        if group.forwarded > 1 and reasons:
            raise reasons.pop()
        return await real(command, client, sequence)

    monkeypatch.setattr(leader, "propose", propose)
    group.lose_answers = 1
    assert await group.do(follower.allocate_id("x")) == 1
    assert group.forwarded == 4
    reasons.append(errors.LogStopped("stopped"))
    assert isinstance(await group.outcome(follower.allocate_id("x")), errors.LogStopped), "a first try"


async def test_a_write_that_no_node_accepted_is_refused_when_this_node_stops(group: NodeGroup) -> None:
    follower = group.followers[0]
    group.cuts = {(follower.node.id, 0), (0, follower.node.id)}
    await group.until(lambda: not follower.node.leader)
    writing = asyncio.ensure_future(follower.put("/a", b""))
    await group.tick()
    follower.node.fail(errors.LogStopped("its disk failed"))
    with pytest.raises(errors.LogStopped):
        await group.do(writing)


async def test_a_refusal_of_the_leader_is_the_answer(group: NodeGroup) -> None:
    with pytest.raises(errors.MessageTooLarge):
        await group.do(group.led.put("/a", bytes(63_000)))
    with pytest.raises(errors.InvalidInput):
        await group.do(group.followers[0].put("", b""))


# --- reads ------------------------------------------------------------------------------------------------------------


async def test_a_read_never_misses_a_write_answered_by_another_node(group: NodeGroup) -> None:
    for number in range(10):
        await group.do(group.led.put("/a", b"%d" % number))
        entry = await group.do(group.followers[number % 2].get("/a"))
        assert entry.value == b"%d" % number


async def test_a_deposed_leader_answers_stale_reads_only(group: NodeGroup) -> None:
    await group.do(group.led.put("/a", b"old"))
    old = group.led
    group.cuts = {(old.node.id, 0), (0, old.node.id)}
    others = [store for store in group.stores.values() if store is not old]
    await group.until(lambda: any(store.node.leads for store in others))
    await group.do(others[0].put("/a", b"new"))
    stale = await old.get("/a", Consistency.STALE)
    assert stale is not None
    assert stale.value == b"old"
    read = asyncio.ensure_future(old.get("/a"))
    for _ in range(limits.METADATA_READ_TICKS_MAX + 20):
        await group.tick()
    assert isinstance(read.exception(), errors.NotReady)
    group.cuts = set()
    entry = await group.do(old.get("/a"))
    assert entry.value == b"new"


async def test_trap_12_an_unanswered_read_is_repeated_under_another_id(group: NodeGroup) -> None:
    follower = group.followers[0]
    lost: list[bytes] = []
    group.cuts = {(follower.node.id, group.led.node.id)}
    read = asyncio.ensure_future(follower.get("/a"))
    for _ in range(limits.METADATA_READ_PATIENCE_TICKS + 1):
        await group.tick()
        lost += [m.data for source, m in group.sent if source == follower.node.id and m.data[1] == 15]
        group.sent.clear()
    group.cuts = set()
    assert await group.do(read) is None
    lost += [m.data for source, m in group.sent if source == follower.node.id and m.data[1] == 15]
    assert len(lost) == len(set(lost)) >= 2


# --- watches ----------------------------------------------------------------------------------------------------------


async def test_a_watch_on_a_follower_sees_every_change_in_order(group: NodeGroup) -> None:
    watch = group.followers[0].watch("/w/", 0)
    for number in range(20):
        await group.do(group.led.put(f"/w/{number}", b""))
    await group.settle()
    seen = [await anext(watch) for _ in range(20)]
    assert [change.revision for change in seen if isinstance(change, Changes)] == list(range(1, 21))


# --- snapshots --------------------------------------------------------------------------------------------------------


async def far_behind(group: NodeGroup) -> int:
    """A follower that misses more than the leader keeps; its id."""
    follower = group.followers[0].node.id
    watch = group.stores[follower].watch("/", 0)
    await group.do(group.led.put("/seen", b""))
    await group.settle()
    assert isinstance(await anext(watch), Changes)
    group.cuts = {(0, follower), (follower, 0)}
    for number in range(40):
        await group.do(group.led.put(f"/{number}", b"x" * 100))
    await group.led.snapshots.take()
    group.cuts = set()
    await group.settle()
    assert isinstance(await anext(watch), Resync), "it missed changes, and is told"
    return follower


async def test_a_follower_far_behind_gets_a_snapshot(group: NodeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_TRAIL_ENTRIES", 0)
    follower = await far_behind(group)
    assert group.stores[follower].node.installs.count == 1
    assert len(group.states()) == 1
    await group.do(group.stores[follower].put("/after", b""))
    await group.settle()
    await group.kill(follower, power_loss=True)
    await group.start(follower)
    await group.until(lambda: group.is_ready)
    await group.settle()
    assert len(group.states()) == 1
    assert group.stores[follower].report.snapshot_index > 0


async def test_an_installed_snapshot_survives_a_crash_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reached the disk, the next start is in order and the node catches up again."""
    monkeypatch.setattr(limits, "METADATA_TRAIL_ENTRIES", 0)
    group = await NodeGroup.form(3)
    follower = group.followers[0].node.id
    await group.do(group.led.put("/seen", b""))
    await group.settle()
    group.cuts = {(0, follower), (follower, 0)}
    for number in range(30):
        await group.do(group.led.put(f"/{number}", b"x" * 100))
    await group.led.snapshots.take()
    group.cuts = set()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    crashes, store = 0, group.stores[follower]
    for step in range(1, 60):
        group.members[follower].disk.crash_after(step)
        crashed = await crashes_while_it_catches_up(group, store)
        group.members[follower].disk.crash_after(10**9)
        await group.kill(follower, power_loss=step % 2 == 0)
        store = await group.start(follower)
        crashes += crashed
        if not crashed:
            break
    assert crashes > 5
    assert store.report.snapshot_index > 30, "it came by a snapshot, not by entries"
    await group.until(lambda: group.is_ready)
    await group.settle()
    assert len(group.states()) == 1
    await group.close()


async def crashes_while_it_catches_up(group: NodeGroup, store: NodeStore) -> bool:
    for _ in range(60):
        try:
            await group.tick()
        except Crash:
            return True
        if store.stopped is not None:
            return True
    return False


# --- time -------------------------------------------------------------------------------------------------------------


async def test_only_the_leader_expires_keys_and_a_new_one_continues(group: NodeGroup) -> None:
    await group.do(group.led.put_with_ttl("/short", b"", 1_000))
    await group.do(group.led.put_with_ttl("/long", b"", 5_000))
    for _ in range(30):
        await group.tick()
    await group.settle()
    revisions = {store.node.machine.revision for store in group.stores.values()}
    assert revisions == {3}, "two puts and one expiry"
    await group.kill(group.led.node.id)
    await group.until(lambda: group.leader is not None)
    assert group.led.node.machine.get("/long") is not None
    for _ in range(100):
        await group.tick()
    assert group.led.node.machine.get("/long") is None


async def test_a_new_leader_whose_clock_is_ahead_expires_nothing_early(group: NodeGroup) -> None:
    await group.do(group.led.put_with_ttl("/lease", b"", 10_000))
    await group.settle()
    group.clock.step(3_600)  # every other clock of the cluster is an hour ahead
    start_ns = group.clock.monotonic_ns()
    await group.kill(group.led.node.id)
    await group.until(lambda: group.leader is not None)
    await group.do(group.led.put("/now", b""))
    while group.led.node.machine.get("/lease") is not None:
        await group.tick()
    lived_ms = (group.clock.monotonic_ns() - start_ns) / 1e6
    assert lived_ms + 500 >= 10_000
    assert lived_ms < 12_000


# --- the lead ---------------------------------------------------------------------------------------------------------


async def test_a_closing_leader_transfers_leadership_immediately(group: NodeGroup) -> None:
    leader = group.led
    start_ns = group.clock.monotonic_ns()
    handing = asyncio.ensure_future(leader.leadership.hand_over())
    while not handing.done():
        await group.turn()
    others = [store for store in group.stores.values() if store is not leader]
    while not any(store.node.leads for store in others):
        await group.turn()
    assert group.clock.monotonic_ns() == start_ns, "no election timeout had to pass"
    assert leader.node._role == Role.FOLLOWER


async def test_members_join_and_leave(group: NodeGroup) -> None:
    await group.do(group.led.put("/a", b"1"))
    await group.start(4)
    await group.do(group.led.node.change_members([(2, 4)]))
    await group.settle()
    assert group.led.node.members == Membership((1, 2, 3), (4,))
    assert len(group.states()) == 1
    gone = min(store.node.id for store in group.followers)
    await group.do(group.led.node.change_members([(0, 4), (1, gone)]))
    await group.until(lambda: not group.led.node.members.voters_outgoing)
    assert set(group.led.node.members.voters) == {1, 2, 3, 4} - {gone}
    await group.do(group.led.put("/b", b"2"))


async def test_a_second_membership_change_is_refused_while_one_is_in_progress(group: NodeGroup) -> None:
    await group.start(4)
    first = group.led.node.change_members([(2, 4)])
    second = group.led.node.change_members([(1, 4)])
    assert isinstance(await group.outcome(second), errors.NotReady)
    assert isinstance(await group.do(first), cmd.Done)
    assert isinstance(await group.outcome(group.followers[0].node.change_members([(1, 4)])), errors.NotReady)


async def test_a_restarted_founder_knows_the_voters_without_a_snapshot() -> None:
    """The founder began as the only voter; later membership must be on its disk, or it would lead alone."""
    group = NodeGroup(Membership((1,)))
    await group.start(1)
    await group.until(lambda: group.leader is not None)
    await group.start(2)
    await group.start(3)
    await group.do(group.led.node.change_members([(2, 2), (2, 3)]))
    await group.do(group.led.node.change_members([(0, 2), (0, 3)]))
    await group.until(lambda: group.led.node.members == Membership((1, 2, 3)))
    await group.do(group.led.put("/a", b"1"))
    assert not group.led.node._log.snapshots
    await group.kill(1, power_loss=True)
    await group.until(lambda: group.leader is not None)
    group.cuts = {(1, 0), (0, 1)}
    alone = await group.start(1)
    await group.do(group.led.put("/a", b"2"))
    for _ in range(100):
        await group.tick()
        assert not alone.node.leads
    assert alone.node.members == Membership((1, 2, 3))
    group.cuts.clear()
    await group.until(lambda: group.is_ready)
    await group.settle()
    assert len(group.states()) == 1
    await group.close()


async def test_no_key_expires_early_after_a_leader_change(
    group: NodeGroup,
) -> None:
    """The time of a new leader continues from when it applied the last stamp, not from the previous stamp."""
    old = group.led
    await group.do(old.put("/before", b""))
    await group.settle()
    for _ in range(200):
        await group.tick()
    # the others have the next command, and do not hear that it is committed
    group.hold = lambda sender, message: sender == old.node.id and old.node.machine.get("/t") is not None
    await group.do(old.put_with_ttl("/t", b"", 5_000))
    start_ns = group.clock.monotonic_ns()
    await group.kill(old.node.id)
    group.network.clear()
    group.hold = lambda sender, message: False
    await group.until(lambda: group.leader is not None)
    while group.clock.monotonic_ns() < start_ns + 4_800_000_000:
        assert group.led.node.machine.get("/t") is not None
        await group.tick()
    await group.until(lambda: group.led.node.machine.get("/t") is None)
    assert group.clock.monotonic_ns() < start_ns + 8_000_000_000


async def test_an_idle_group_writes_nothing(group: NodeGroup) -> None:
    """Hazard 46: heartbeats, reads and a lead that is kept cost no entry and no record."""
    await group.do(group.led.put("/a", b"1"))
    await group.settle()
    marks = [(store.node.applied_index, store.node._log.plan.planned_bytes) for store in group.stores.values()]
    for _ in range(300):
        await group.tick()
    await group.do(group.followers[0].get("/a"))
    assert [(store.node.applied_index, store.node._log.plan.planned_bytes) for store in group.stores.values()] == marks
