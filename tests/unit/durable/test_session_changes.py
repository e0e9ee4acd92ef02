"""Scenarios of sessions on the fold alone. `World` is a node; its `restart` replays what was written, and a rewrite.

Tests carry the numbers of requirements (R) and hazards that they prove.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from icestream import errors
from icestream.durable import session_changes as change
from icestream.durable import session_records as rec
from icestream.durable.session_changes import MatchedRow, MatchedRun, SubscriptionOptions, WillMessage
from icestream.durable.session_records import NO_OFFSET, AnyRecord, decode_transaction, encode_transaction
from icestream.durable.session_state import SessionState, SessionTable
from icestream.model.block import Block
from icestream.model.shard import ShardKey
from icestream.mqtt.topics import matches

A = ShardKey(5, 0)
B = ShardKey(5, 1)
QOS1 = SubscriptionOptions(1)
QOS2 = SubscriptionOptions(2)


class World:
    """A table and its log; what is written is applied and can be replayed."""

    def __init__(self) -> None:
        self.table = SessionTable()
        self.log: list[bytes] = []
        self.ids = 0

    def write(self, records: Sequence[AnyRecord]) -> None:
        if records:
            self.table.check(records)
            self.log.append(encode_transaction(records))
            self.table.apply(records)

    def restart(self) -> None:
        """A crash and a start: everything comes from the log, once as written and once rewritten whole."""
        before = self.table
        self.table = SessionTable()
        for block in self.log:
            self.table.apply(decode_transaction(Block(block)))
        assert self.table.sessions == before.sessions
        assert self.table.marks == before.marks
        rewritten = SessionTable()
        rewritten.apply(self.table.node_records())
        for session in self.table.sessions.values():
            rewritten.apply(decode_transaction(Block(encode_transaction(list(session.records())))))
        assert rewritten.sessions == before.sessions
        assert rewritten.elapsed_ms == before.elapsed_ms
        self.table = rewritten
        self.write(change.disconnect_all(self.table))

    def connect(
        self, client_id: str = "c", now_ms: int = 0, *, clean: bool = False, expiry_s: int = 60,
        will: WillMessage | None = None,
    ) -> change.ConnectPlan:  # fmt: skip
        self.ids += 1
        plan = change.connect(
            self.table, client_id, self.ids, now_ms, is_clean_start=clean, expiry_s=expiry_s, will=will
        )
        self.write(plan.records)
        return plan

    def session(self, client_id: str = "c") -> SessionState:
        session = self.table.of_client(client_id)
        assert session is not None
        return session

    def send(self, *offsets: int, qos: int = 1, key: ShardKey = A, indexed_end: int = 0) -> list[int]:
        """Sends rows; returns their packet ids."""
        before = set(self.session().in_flight)
        rows = [MatchedRow(offset, qos, 1) for offset in offsets]
        self.write(change.send_rows(self.session(), key, rows, max(offsets) + 1, indexed_end))
        return [packet_id for packet_id in self.session().in_flight if packet_id not in before]


@pytest.fixture
def world() -> World:
    return World()


# --- takeover: R18, hazard 59 ---


def test_r18_hazard_59_only_the_newest_connection_writes(world: World) -> None:
    old = world.connect()
    world.write(change.subscribe(world.session(), "a/#", QOS1, {A: 0}))
    (packet_id,) = world.send(4)
    new = world.connect()
    assert (new.session_id, new.is_present, new.epoch) == (old.session_id, True, old.epoch + 1)
    late_ack = [rec.InFlightClosed(old.session_id, old.epoch, (packet_id,))]
    with pytest.raises(errors.SessionFenced):
        world.write(late_ack)
    assert packet_id in world.session().in_flight
    again = [rec.SessionConnected(old.session_id, new.epoch, 60)]
    with pytest.raises(errors.SessionFenced):
        world.write(again)
    world.restart()
    assert world.session().epoch == new.epoch


def test_r18_a_stale_timer_does_not_delete_a_newer_session(world: World) -> None:
    old = world.connect()
    world.connect(clean=True)
    world.write([rec.SessionEnded(old.session_id, old.epoch)])
    world.restart()
    assert world.session().id != old.session_id
    with pytest.raises(errors.SessionFenced):
        world.write([rec.SessionEnding(old.session_id, old.epoch)])


def test_a_client_id_has_one_session_that_is_not_ending(world: World) -> None:
    world.connect()
    with pytest.raises(errors.Contradiction, match="not ending"):
        world.write([rec.SessionRecord(99, 1, "c", 60)])


# --- generations: hazard 58 ---


def matched(session: SessionState, topic: str, offset: int, qos: int = 2, key: ShardKey = A) -> MatchedRow | None:
    return change.match_row(session, key, offset, qos, lambda topic_filter: matches(topic_filter, topic))


def test_hazard_58_a_subscription_covers_the_offsets_since_it_and_no_others(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a/#", QOS1, {A: 100}))
    world.write(change.subscribe(world.session(), "b/#", QOS1, {A: 900}))
    world.restart()
    session = world.session()
    assert matched(session, "b/x", 899) is None
    assert matched(session, "b/x", 900) == MatchedRow(900, 1, 2)
    assert matched(session, "a/x", 100) == MatchedRow(100, 1, 1)
    assert world.table.start_of(session, A) == 100


def test_hazard_58_unsubscribe_and_subscribe_while_behind_loses_only_the_time_between(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 10}))
    world.write(change.unsubscribe(world.session(), "a", {A: 20}))
    world.restart()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 30}))
    got = [offset for offset in range(40) if matched(world.session(), "a", offset) is not None]
    assert got == [*range(10, 20), *range(30, 40)]


def test_hazard_58_other_options_hold_from_one_offset_on(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 10}))
    assert change.subscribe(world.session(), "a", QOS1, {A: 15}) == []
    world.write(change.subscribe(world.session(), "a", SubscriptionOptions(2, 9), {A: 20}))
    world.restart()
    assert matched(world.session(), "a", 19) == MatchedRow(19, 1, 1)
    assert matched(world.session(), "a", 20) == MatchedRow(20, 2, 2, (9,))
    world.send(25)
    assert list(world.session().generations) == [2], "a generation that is passed leaves nothing behind"


def test_hazard_57_overlapping_subscriptions_are_one_delivery_with_all_identifiers(world: World) -> None:
    world.connect()
    for topic_filter, options in (
        ("a/#", SubscriptionOptions(0, 5)),
        ("a/+", SubscriptionOptions(2, 3)),
        ("a/b", QOS1),
    ):
        world.write(change.subscribe(world.session(), topic_filter, options, {A: 0}))
    assert matched(world.session(), "a/b", 1) == MatchedRow(1, 2, 2, (3, 5))
    assert matched(world.session(), "a/b", 1, qos=0) == MatchedRow(1, 0, 2, (3, 5))


def test_no_local_hides_the_clients_own_messages_from_that_subscription_only(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a", SubscriptionOptions(1, is_no_local=True), {A: 0}))
    assert change.match_row(world.session(), A, 1, 1, lambda _: True, is_own=True) is None
    world.write(change.subscribe(world.session(), "#", QOS1, {A: 0}))
    row = change.match_row(world.session(), A, 1, 1, lambda _: True, is_own=True)
    assert row == MatchedRow(1, 1, 2)


def test_bounds_do_not_move(world: World) -> None:
    plan = world.connect()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 10}))
    world.write(change.unsubscribe(world.session(), "a", {A: 20}))
    for start, end in ((10, 30), (5, 20), (10, NO_OFFSET)):
        with pytest.raises(errors.Contradiction):
            world.write([rec.GenerationBound(plan.session_id, plan.epoch, 1, *A, start, end)])


# --- packet ids: hazards 52, 54 ---


def test_hazard_52_ids_stay_with_their_rows_whatever_happens_to_others(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 0}))
    sent = {packet_id: offset for offset in range(100) for packet_id in world.send(offset)}
    world.write(change.unsubscribe(world.session(), "a", {A: 100}))
    lost = [packet_id for packet_id in sent if packet_id % 3 == 0]
    world.write(change.lose(world.session(), [*lost, 60_000]))
    world.restart()
    resent = {entry.packet_id: entry.offset for entry in change.resends(world.session())}
    assert resent == {packet_id: offset for packet_id, offset in sent.items() if packet_id not in lost}
    assert list(resent) == sorted(resent), "in the order of the first sending"
    # R36: acks in any order, late ones change nothing
    for packet_id in reversed(list(resent)):
        world.write(change.puback(world.session(), packet_id))
    assert change.puback(world.session(), 1) == []
    assert not world.session().in_flight


def test_hazard_54_ids_go_round_the_ring_also_after_a_restart(world: World) -> None:
    world.connect()
    (first,) = world.send(0)
    world.write(change.puback(world.session(), first))
    world.restart()
    (second,) = world.send(1)
    assert second == first + 1
    plan = world.connect()
    world.write([rec.InFlightEntry(plan.session_id, plan.epoch, 65_535, *A, 2, 1, 1)])
    assert change.free_packet_ids(world.session(), 3) == [1, 3, 4]


def test_a_run_is_divided_at_the_end_of_the_ring_and_at_ids_in_flight(world: World) -> None:
    plan = world.connect()
    own = (plan.session_id, plan.epoch)
    world.write([rec.InFlightEntry(*own, 3, *A, 1, 1, 1), rec.InFlightEntry(*own, 65_532, *A, 2, 1, 1)])
    spans = [(10, 2), (20, 6)]
    run = MatchedRun(spans, 8, 1, 1, (5,))
    records = change.send_rows(world.session(), A, [run, MatchedRow(40, 1, 1)], 41, 41)
    entries = [record for record in records if not isinstance(record, rec.ReaderPosition)]
    assert [(record.packet_id, record.spans) for record in entries if isinstance(record, rec.InFlightRun)] == [
        (65_533, ((10, 2), (20, 1))), (1, ((21, 2),)), (4, ((23, 3),)),
    ]  # fmt: skip
    world.write(records)
    ids = [3, 65_532, 65_533, 65_534, 65_535, 1, 2, 4, 5, 6, 7]
    assert list(world.session().in_flight) == ids
    world.restart()
    resent = [(entry.packet_id, entry.offset) for entry in change.resends(world.session())]
    assert resent == list(zip(ids, [1, 2, 10, 11, 20, 21, 22, 23, 24, 25, 40], strict=True))
    assert all(world.session().in_flight[packet_id].identifiers == (5,) for packet_id in ids[2:10])


def test_r36_acks_in_any_order_leave_the_rest_of_a_run_as_it_was(world: World) -> None:
    world.connect()
    world.write(change.send_rows(world.session(), A, [MatchedRun([(100, 20)], 20, 1, 1)], 120, 120))
    offsets = {packet_id: entry.offset for packet_id, entry in world.session().in_flight.items()}
    acked = [7, 8, 1, 20, 13]
    world.write(change.pubacks(world.session(), [*acked, 60_000]))
    assert change.pubacks(world.session(), acked) == [], "late acks change nothing"
    world.restart()
    left = {packet_id: entry.offset for packet_id, entry in world.session().in_flight.items()}
    assert left == {packet_id: offset for packet_id, offset in offsets.items() if packet_id not in acked}
    assert change.free_packet_ids(world.session(), 2) == range(21, 23)
    runs = [record for record in world.session().records() if isinstance(record, rec.InFlightRun)]
    assert [len(run.packet_ids) for run in runs] == [5, 4, 6], "a session that is written again keeps its runs"


def test_the_ids_of_a_run_are_not_used_twice(world: World) -> None:
    plan = world.connect()
    world.write([rec.InFlightRun(plan.session_id, plan.epoch, 5, *A, ((1, 10),), 1, 1)])
    for packet_id, rows in ((1, 5), (14, 3), (5, 10)):
        with pytest.raises(errors.Contradiction, match="in flight"):
            world.write([rec.InFlightRun(plan.session_id, plan.epoch, packet_id, *A, ((20, rows),), 1, 1)])


def test_no_id_is_used_twice_with_the_ring_full(world: World) -> None:
    world.connect()
    session = world.session()
    entry = rec.InFlightEntry(session.id, session.epoch, 1, *A, 1, 1, 1)
    session.in_flight.add(rec.InFlightRun(session.id, session.epoch, 1, *A, ((1, 65_534),), 1, 1))
    assert change.free_packet_ids(session, 5) == [65_535]
    with pytest.raises(errors.PolicyReached):
        change.send_rows(session, A, [MatchedRow(1, 1, 1), MatchedRow(2, 1, 1)], 3, 3)
    with pytest.raises(errors.Contradiction, match="in flight"):
        world.write([entry])


def test_hazard_54_outbound_qos_2_resumes_at_its_last_state(world: World) -> None:
    world.connect()
    first, second = world.send(1, 2, qos=2)
    world.write(change.pubrec(world.session(), first))
    world.restart()
    states = {entry.packet_id: entry.state for entry in change.resends(world.session())}
    assert states == {first: rec.InFlightState.RELEASED, second: rec.InFlightState.SENT}
    assert change.pubrec(world.session(), first) == [], "a second PUBREC changes nothing"
    assert change.pubcomp(world.session(), second) == [], "its PUBREL was not sent"
    assert change.puback(world.session(), second) == [], "the wrong kind of ack"
    world.write(change.pubcomp(world.session(), first))
    world.write(change.pubrec(world.session(), second, is_refused=True))
    world.restart()
    assert not world.session().in_flight


# --- inbound QoS 2: R34, hazards 53, 54 ---


def test_hazard_53_an_id_is_noted_once_until_it_is_released(world: World) -> None:
    world.connect()
    world.write(change.receive(world.session(), 7, A))
    world.restart()
    world.connect()
    assert change.receive(world.session(), 7, A) == [], "a resend stores nothing"
    world.write(change.pubrel(world.session(), 7))
    world.restart()
    assert change.pubrel(world.session(), 7) == []
    assert len(change.receive(world.session(), 7, A)) == 1, "the id is free for a new message"


def test_hazard_53_a_new_session_of_the_client_id_shares_no_ids(world: World) -> None:
    world.connect()
    world.write(change.receive(world.session(), 7, None))
    world.connect(clean=True)
    world.restart()
    assert len(change.receive(world.session(), 7, A)) == 1


# --- owed and C: hazard 61 ---


def test_hazard_61_an_idle_session_starts_at_the_mark(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "rare", QOS1, {A: 0, B: 0}))
    world.write(change.beat(world.table, 1, 1, {A: 5_000_000}))
    world.restart()
    assert world.table.start_of(world.session(), A) == 5_000_000
    assert world.table.start_of(world.session(), B) == 0, "no index, no move of C"


def test_hazard_61_what_is_owed_is_found_below_the_mark(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 0}))
    world.write(change.list_owed(world.session(), A, 700))
    assert change.list_owed(world.session(), A, 900) == [], "the first one is listed"
    world.write(change.beat(world.table, 1, 1, {A: 1_000}))
    world.restart()
    assert world.table.start_of(world.session(), A) == 700
    world.send(700, indexed_end=1_000)
    world.restart()
    assert world.table.start_of(world.session(), A) == 701, "not caught up: C does not speak for it"
    world.send(999, indexed_end=1_000)
    world.restart()
    assert world.table.start_of(world.session(), A) == 1_000


def test_hazard_60_one_unacked_message_does_not_hold_the_position(world: World) -> None:
    world.connect()
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 0}))
    world.send(0)
    world.write(change.send_rows(world.session(), A, [], 5_000_000, 5_000_000))
    world.restart()
    assert world.table.start_of(world.session(), A) == 5_000_000
    assert len(world.session().in_flight) == 1


def test_marks_positions_and_time_do_not_go_back(world: World) -> None:
    world.connect()
    world.write(change.beat(world.table, 50, 1, {A: 10}))
    world.send(20)
    going_back: list[list[AnyRecord]] = [
        [rec.ShardMark(0, 0, *A, 9)],
        [rec.NodeBeat(0, 0, 49, 1), rec.ShardMark(0, 0, *A, 10)],
        [rec.NodeBeat(0, 0, 51, 1)],  # without the mark
        change.send_rows(world.session(), A, [], 20, 0),
    ]
    for records in going_back:
        with pytest.raises(errors.Contradiction):
            world.write(records)


# --- wills: hazard 65 ---

WILL = WillMessage("w", b"bye", 1)
SLOW_WILL = WillMessage("w", b"bye", 1, delay_s=30)


@pytest.mark.parametrize(("delay_s", "due_ms"), [(0, 1_000), (60, 61_000), (300, 61_000)])
def test_hazard_65_a_will_is_due_after_its_delay_or_at_the_end_of_the_session(
    world: World, delay_s: int, due_ms: int
) -> None:
    world.connect(will=WillMessage("w", b"bye", 1, delay_s=delay_s))
    assert change.will_ms(world.session()) is None, "connected"
    world.write(change.disconnect(world.session(), 1_000, is_normal=False))
    world.restart()
    assert change.will_ms(world.session()) == due_ms
    world.write(change.fire_will(world.session()))
    world.restart()
    assert change.will_ms(world.session()) is None, "published once"


def test_hazard_65_a_crash_of_the_node_loses_every_open_connection_now(world: World) -> None:
    world.connect(will=WILL, expiry_s=0)
    world.write(change.beat(world.table, 7_000, 1, {}))
    world.restart()
    assert world.session().disconnected_ms == 7_000
    assert change.will_ms(world.session()) == 7_000


def test_hazard_65_a_normal_disconnect_removes_the_will(world: World) -> None:
    world.connect(will=WILL)
    world.write(change.disconnect(world.session(), 5, is_normal=True))
    world.restart()
    assert world.session().will is None


def test_hazard_65_a_resume_within_the_delay_cancels_and_a_takeover_without_delay_publishes(world: World) -> None:
    world.connect(will=SLOW_WILL)
    world.write(change.disconnect(world.session(), 0, is_normal=False))
    plan = world.connect(now_ms=10_000, will=WILL)
    assert plan.fired is None
    plan = world.connect(now_ms=10_000)
    assert plan.fired is not None
    assert plan.fired.payload == b"bye"
    world.restart()
    assert world.session().will is None


def test_hazard_65_clean_start_publishes_a_delayed_will_of_the_session_that_it_ends(world: World) -> None:
    world.connect(will=SLOW_WILL)
    world.write(change.disconnect(world.session(), 0, is_normal=False))
    plan = world.connect(now_ms=1, clean=True)
    assert plan.fired is not None
    assert not plan.is_present


# --- expiry: R28, hazard 69 ---


def test_hazard_69_an_outage_and_a_step_of_the_wall_clock_expire_nothing(world: World) -> None:
    world.connect(expiry_s=3_600)
    world.write(change.disconnect(world.session(), 0, is_normal=True))
    world.write(change.beat(world.table, 60_000, 1_700_000_000_000_000, {}))
    world.restart()
    world.write(change.beat(world.table, 70_000, 1_700_000_000_000_000 + 365 * 86_400_000_000, {}))
    assert change.expiry_ms(world.session()) == 3_600_000
    plan = world.connect(now_ms=world.table.elapsed_ms, expiry_s=3_600)
    assert plan.is_present


def test_hazard_69_a_connect_after_the_expiry_gets_a_new_session(world: World) -> None:
    old = world.connect(expiry_s=10)
    world.write(change.receive(world.session(), 1, A))
    world.write(change.disconnect(world.session(), 0, is_normal=True))
    new = world.connect(now_ms=10_000)
    assert not new.is_present
    world.restart()
    assert world.table.sessions[old.session_id].is_ending
    assert world.session().id == new.session_id


def test_expiry_is_set_by_disconnect_and_may_be_never(world: World) -> None:
    world.connect(expiry_s=10)
    assert change.expiry_ms(world.session()) is None
    world.write(change.disconnect(world.session(), 0, is_normal=True, expiry_s=rec.EXPIRY_NEVER))
    assert change.expiry_ms(world.session()) is None
    assert world.connect(now_ms=2**40).is_present


def test_r28_a_session_ends_in_steps_and_leaves_nothing(world: World) -> None:
    world.connect(will=WILL, expiry_s=1)
    world.write(change.subscribe(world.session(), "a", QOS1, {A: 0}))
    ending = world.session()
    world.write(change.disconnect(ending, 0, is_normal=False))
    world.write(change.end_session(ending))
    world.restart()
    ending = world.table.sessions[ending.id]
    assert change.will_ms(ending) == 0
    with pytest.raises(errors.Contradiction, match="still due"):
        change.forget_session(ending)
    world.write(change.fire_will(ending))
    world.restart()
    world.write(change.forget_session(world.table.sessions[ending.id]))
    world.restart()
    assert not world.table.sessions
    assert world.table.of_client("c") is None


def test_filters_of_a_session_are_bounded(world: World) -> None:
    world.connect()
    for number in range(4):
        world.write(change.subscribe(world.session(), f"{number}" + "x" * 60_000, QOS1, {A: 0}))
    with pytest.raises(errors.PolicyReached, match="filters"):
        change.subscribe(world.session(), "x" * 60_000, QOS1, {A: 0})
