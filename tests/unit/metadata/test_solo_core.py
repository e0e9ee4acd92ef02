"""The core for one voter: what it hands out, in which order, what it refuses. Transcripts, as a driver sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.metadata import eraftpb
from icestream.metadata.core import Core, CoreFactory, HardState, ReadState, Ready, Role, SoftState
from icestream.metadata.eraftpb import LogEntry, Membership, SnapshotParts
from icestream.metadata.solo_core import SoloCore
from tests.support.hypothesis_effort import HALF

CONF = eraftpb.encode_conf(Membership((1,)))
NO_STATE = HardState(0, 0, 0)


def entry(index: int, term: int, data: bytes = b"") -> tuple[int, bytes]:
    return index, eraftpb.encode_entry(index, term, eraftpb.NORMAL, data)


def committed(index: int, term: int, data: bytes = b"") -> LogEntry:
    return LogEntry(index, term, eraftpb.NORMAL, data, b"")


def core(state: HardState = NO_STATE, entries: list[bytes] | None = None, applied: int = 0) -> SoloCore:
    snapshot = eraftpb.encode_snapshot(SnapshotParts(applied, 1, CONF, b"")) if applied else None
    return SoloCore(1, 10, 1, state, CONF, entries or [], snapshot, applied)


def leading() -> SoloCore:
    """Term 1, its empty entry committed and applied."""
    leader = core()
    leader.campaign()
    ready = leader.ready()
    assert ready is not None
    leader.persisted(ready.number)
    leader.ready()
    leader.applied(1)
    return leader


def test_a_new_core_becomes_leader_and_commits_when_that_is_synced() -> None:
    alone = core()
    assert alone.ready() is None
    assert not alone.propose([b"too early"])
    alone.campaign()
    assert alone.ready() == Ready(
        1, HardState(1, 1, 0), True, [entry(1, 1)], [], [], None, [], [], SoftState(1, Role.LEADER)
    )
    assert alone.ready() is None, "nothing is committed before it is synced"
    alone.persisted(1)
    assert alone.ready() == Ready(2, HardState(1, 1, 1), False, [], [], [], None, [committed(1, 1)], [], None)
    assert alone.ready() is None


def test_proposals_get_consecutive_indexes_and_are_returned_in_order() -> None:
    leader = leading()
    assert leader.propose([b"a", b"b"])
    ready = leader.ready()
    assert ready == Ready(3, None, True, [entry(2, 1, b"a"), entry(3, 1, b"b")], [], [], None, [], [], None)
    leader.persisted(3)
    ready = leader.ready()
    assert ready is not None
    assert ready.committed == [committed(2, 1, b"a"), committed(3, 1, b"b")]
    assert (ready.hard_state, ready.must_sync, ready.entries) == (HardState(1, 1, 3), False, [])


def test_several_writes_may_be_in_flight_and_only_synced_ones_are_committed() -> None:
    leader = leading()
    leader.propose([b"a"])
    first = leader.ready()
    leader.propose([b"b"])
    second = leader.ready()
    leader.propose([b"c"])
    third = leader.ready()
    assert first and second and third  # noqa: PT018
    leader.persisted(second.number)
    ready = leader.ready()
    assert ready is not None
    assert [committed.data for committed in ready.committed] == [b"a", b"b"]
    leader.persisted(third.number)
    ready = leader.ready()
    assert ready is not None
    assert [committed.data for committed in ready.committed] == [b"c"]


def test_after_a_restart_older_entries_are_committed_with_the_first_of_the_new_term() -> None:
    stored = [data for _, data in (entry(1, 1), entry(2, 1, b"a"), entry(3, 1, b"b"))]
    alone = core(HardState(1, 1, 1), stored)
    ready = alone.ready()
    assert ready is not None
    assert ready.committed == [committed(1, 1)], "the commit index was in the log"
    alone.campaign()
    ready = alone.ready()
    assert ready is not None
    assert (ready.entries, ready.hard_state, ready.committed) == ([entry(4, 2)], HardState(2, 1, 1), [])
    alone.persisted(ready.number)
    ready = alone.ready()
    assert ready is not None
    assert ready.committed == [committed(2, 1, b"a"), committed(3, 1, b"b"), committed(4, 2)]


def test_entries_of_a_snapshot_are_not_returned_again() -> None:
    stored = [data for _, data in (entry(2, 1, b"in the snapshot"), entry(3, 1, b"behind it"))]
    alone = core(HardState(1, 1, 2), stored, applied=2)
    alone.campaign()
    ready = alone.ready()
    assert ready is not None
    alone.persisted(ready.number)
    ready = alone.ready()
    assert ready is not None
    assert [committed.index for committed in ready.committed] == [3, 4]
    assert alone.status()["first"] == 3


def test_a_read_waits_for_all_earlier_proposals() -> None:
    leader = leading()
    leader.propose([b"a"])
    leader.read_index(b"one")
    leader.read_index(b"two")
    ready = leader.ready()
    assert ready is not None
    assert ready.reads == [ReadState(2, b"one"), ReadState(2, b"two")]


def test_a_snapshot_names_the_term_of_its_index() -> None:
    stored = [data for _, data in (entry(1, 1), entry(2, 1, b"a"), entry(3, 4, b"b"))]
    alone = core(HardState(4, 1, 3), stored)
    alone.campaign()
    terms = [eraftpb.decode_snapshot(alone.snapshot(index, CONF, b"d")).term for index in (1, 2, 3, 4)]
    assert terms == [1, 1, 4, 5]
    alone.compact(2)
    assert alone.status()["first"] == 3


def test_a_tick_of_an_idle_core_takes_leadership_once() -> None:
    alone = core()
    assert alone.tick()
    assert alone.tick()
    assert alone.status()["term"] == 1
    assert (alone.status()["leader"], alone.status()["voters"]) == (1, [1])


def test_a_log_of_a_cluster_is_not_opened() -> None:
    for conf in (
        Membership((1, 2)),
        Membership((2,)),
        Membership((1,), (2,)),
        Membership((1,), voters_outgoing=(1, 2)),
    ):
        with pytest.raises(errors.ConfigurationError, match="cluster"):
            SoloCore(1, 10, 1, NO_STATE, eraftpb.encode_conf(conf), [])
    change = eraftpb.encode_entry(1, 1, eraftpb.CONF_CHANGE_V2, b"")
    with pytest.raises(errors.ConfigurationError, match="cluster"):
        core(HardState(1, 1, 1), [change])
    with pytest.raises(errors.ConfigurationError):
        leading().propose_conf([(0, 2)], 0, b"")


@pytest.mark.parametrize("indexes", [[2], [1, 3], [1, 1], [2, 1]])
def test_entries_with_a_hole_are_refused(indexes: list[int]) -> None:
    with pytest.raises(errors.DecodeError, match="expected entry"):
        core(HardState(1, 1, 0), [entry(index, 1)[1] for index in indexes])


def test_it_has_the_interface_of_a_core() -> None:
    factory: CoreFactory = SoloCore
    alone: Core = factory(1, 10, 1, NO_STATE, CONF, [], None, 0)
    alone.step(b"from nobody")
    alone.transfer_leader(2)
    alone.report_snapshot(2, True)
    alone.report_unreachable(2)
    assert alone.apply_conf(2, b"") == CONF
    assert alone.ready() is None


@HALF
@given(st.lists(st.one_of(st.integers(1, 4), st.just("sync"), st.just("restart")), max_size=30))
def test_any_history_hands_out_each_entry_once_in_order_and_never_unsynced(steps: list[int | str]) -> None:
    """The driver's view: a disk that holds what was synced, and an application that applies what it is given."""
    disk: dict[int, bytes] = {}
    state, on_the_way, applied = NO_STATE, list[Ready](), list[LogEntry]()
    alone = core()
    alone.campaign()

    def pump() -> None:
        while (ready := alone.ready()) is not None:
            if ready.must_sync:
                on_the_way.append(ready)
            elif not on_the_way:
                alone.persisted(ready.number)
            for committed in ready.committed:
                assert committed.index in disk
                assert eraftpb.decode_entry(disk[committed.index]) == committed
                assert committed.index == (applied[-1].index if applied else 0) + 1
                applied.append(committed)

    pump()
    for step in steps:
        if step == "restart":
            on_the_way.clear()
            applied.clear()
            alone = core(state, [disk[index] for index in sorted(disk)])
            alone.campaign()
        elif step == "sync":
            for ready in on_the_way:
                disk.update(ready.entries)
                state = ready.hard_state or state
            if on_the_way:
                alone.persisted(on_the_way[-1].number)
            on_the_way.clear()
        else:
            assert alone.propose([b"%d" % number for number in range(int(step))])
        pump()
    assert len(applied) <= len(disk)
