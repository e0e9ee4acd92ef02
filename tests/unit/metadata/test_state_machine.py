"""The state machine: revisions, events, deadlines, transactions, repeats and the budget, against a plain dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from icestream import limits
from icestream.metadata import bounds, snapshot
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry, Event
from icestream.metadata.snapshot import Frozen, encode_snapshot, load_snapshot
from icestream.metadata.state_machine import Applied, Budget, StateMachine
from tests.support.hypothesis_effort import HALF
from tests.support.metadata_machine import reader_of


def apply(
    machine: StateMachine, command: cmd.Command, time_ms: int = 0, client: bytes = b"", sequence: int = 0
) -> Applied:
    return machine.apply(cmd.Envelope(cmd.VERSION, client, sequence, time_ms, command))


# --- revisions and events ---------------------------------------------------------------------------------------------


def test_each_change_takes_one_revision_and_reports_its_events() -> None:
    machine = StateMachine()
    assert apply(machine, cmd.Put("/a", b"1")) == (cmd.Done(1), [Event("/a", b"1", 1)])
    assert apply(machine, cmd.Put("/a", b"2")) == (cmd.Done(2), [Event("/a", b"2", 2)])
    assert machine.get("/a") == Entry(b"2", 1, 2, 2, 0)
    assert apply(machine, cmd.Delete("/a")) == (cmd.Done(3), [Event("/a", None, 3)])
    assert apply(machine, cmd.Put("/a", b"")).answer == cmd.Done(4)
    assert machine.get("/a") == Entry(b"", 4, 4, 1, 0)


@pytest.mark.parametrize(
    "command",
    [
        cmd.Delete("/none"),
        cmd.DeletePrefix("/none"),
        cmd.ExpireTtlKeys([("/none", 1)]),
        cmd.Txn([], []),
        cmd.Txn([cmd.Absent("/a")], [cmd.Put("/b", b"")]),
        cmd.Txn([], [cmd.Put("/b", b""), cmd.Delete("/b")]),
        cmd.CompareAndSwap(cmd.Absent("/a"), b""),
    ],
)
def test_a_no_op_takes_no_revision(command: cmd.Command) -> None:
    machine = StateMachine()
    apply(machine, cmd.Put("/a", b"1"))
    answer, events = apply(machine, command)
    assert isinstance(answer, cmd.Done)
    assert (answer.revision, machine.revision, events) == (1, 1, [])


def test_keys_are_listed_in_order_page_by_page() -> None:
    machine = StateMachine()
    for key in ("/b", "/a/2", "/a/1", "/a", "/a/3", "/a0"):
        apply(machine, cmd.Put(key, b""))
    assert list(machine.keys("/a/", 10)) == ["/a/1", "/a/2", "/a/3"]
    assert [key for key, _ in machine.page("/a", "", 2)] == ["/a", "/a/1"]
    assert [key for key, _ in machine.page("/a", "/a/1", 10)] == ["/a/2", "/a/3", "/a0"]
    assert [key for key, _ in machine.page("/b", "/a", 10)] == ["/b"]
    assert machine.page("/a", "/z", 10) == []
    assert machine.page("/a", "", -1) == []


# --- transactions -----------------------------------------------------------------------------------------------------


def test_hazard_10_a_transaction_is_one_revision_and_one_batch_of_events() -> None:
    machine = StateMachine()
    apply(machine, cmd.Put("/old", b""))
    txn = cmd.Txn([cmd.Absent("/new"), cmd.AtRevision("/old", 1)], [cmd.Delete("/old"), cmd.Put("/new", b"x")])
    assert apply(machine, txn) == (cmd.Done(2), [Event("/old", None, 2), Event("/new", b"x", 2)])
    assert apply(machine, txn) == (cmd.Done(2, held=False), [])


def test_hazard_10_when_one_comparison_fails_only_the_other_branch_is_applied() -> None:
    machine = StateMachine()
    apply(machine, cmd.Put("/lease", b"node 2"))
    compare: list[cmd.Compare] = [cmd.Absent("/a"), cmd.HasValue("/lease", b"node 1")]
    applied = apply(machine, cmd.Txn(compare, [cmd.Put("/a", b"")], [cmd.Put("/refused", b"1")]))
    assert applied == (cmd.Done(2, held=False), [Event("/refused", b"1", 2)])
    assert machine.get("/a") is None


def test_operations_of_a_transaction_see_earlier_ones() -> None:
    machine = StateMachine()
    apply(machine, cmd.Put("/a/1", b"old"))
    operations = [cmd.Put("/a/2", b"made"), cmd.DeletePrefix("/a/"), cmd.Put("/a/1", b"new"), cmd.Put("/a/1", b"newer")]
    assert apply(machine, cmd.Txn([], operations)).events == [Event("/a/1", b"newer", 2)]
    assert dict(machine.entries.items()) == {"/a/1": Entry(b"newer", 2, 2, 1, 0)}


def test_a_transaction_that_deletes_too_many_keys_is_rejected_and_a_prefix_is_deleted_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "METADATA_DELETE_KEYS_MAX", 2)
    machine = StateMachine()
    for number in range(3):
        apply(machine, cmd.Put(f"/a/{number}", b""))
    answer = apply(machine, cmd.Txn([], [cmd.Put("/b", b""), cmd.DeletePrefix("/a/")])).answer
    assert isinstance(answer, cmd.Rejected)
    assert len(machine.entries) == 3
    assert apply(machine, cmd.DeletePrefix("/a/")).answer == cmd.Done(4, more=True)
    assert apply(machine, cmd.DeletePrefix("/a/")).answer == cmd.Done(5)
    assert len(machine.entries) == 0


# --- counters ---------------------------------------------------------------------------------------------------------


def test_no_id_is_allocated_twice() -> None:
    machine = StateMachine()
    assert apply(machine, cmd.AllocateMonotonicId("topic")).answer == cmd.Done(1, first_id=1)
    assert apply(machine, cmd.AllocateMonotonicId("topic", 10)).answer == cmd.Done(2, first_id=2)
    assert apply(machine, cmd.AllocateMonotonicId("other")).answer == cmd.Done(3, first_id=1)
    assert apply(machine, cmd.AllocateMonotonicId("topic")).answer == cmd.Done(4, first_id=12)


@pytest.mark.parametrize("value", [b"", b"garbage", b"-1", b"1_0", b" 7", "٣".encode(), b"9" * 5000, b"5" * 19])
def test_a_counter_with_a_non_number_is_rejected(value: bytes) -> None:
    machine = StateMachine()
    machine.restore(1, 0, [("/counters/x", Entry(value, 1, 1, 1, 0))])
    answer = apply(machine, cmd.AllocateMonotonicId("x", 10**6)).answer
    assert isinstance(answer, cmd.Rejected)
    assert machine.revision == 1


# --- time -------------------------------------------------------------------------------------------------------------


def test_deadlines_are_measured_by_stamps_and_a_renewed_key_stays() -> None:
    machine = StateMachine()
    apply(machine, cmd.PutWithTtl("/a", b"", 50), time_ms=100)
    apply(machine, cmd.PutWithTtl("/b", b"", 20), time_ms=90)  # an older stamp does not turn the time back
    assert (machine.time_ms, machine.next_deadline_ms) == (100, 120)
    assert machine.expired(119, 10) == []
    assert machine.expired(150, 10) == [("/b", 2), ("/a", 1)]
    assert machine.expired(150, 1) == [("/b", 2)]
    apply(machine, cmd.PutWithTtl("/b", b"renewed", 500), time_ms=130)
    due = cmd.ExpireTtlKeys([("/b", 2), ("/a", 1)])
    assert apply(machine, due, time_ms=150).events == [Event("/a", None, 4)]
    assert machine.next_deadline_ms == 630


def test_nothing_expires_early_or_without_a_deadline() -> None:
    machine = StateMachine()
    apply(machine, cmd.PutWithTtl("/a", b"", 50), time_ms=100)
    apply(machine, cmd.Put("/b", b""), time_ms=100)
    expire = cmd.ExpireTtlKeys([("/a", 1), ("/b", 2)])
    assert apply(machine, expire, time_ms=149).events == []
    assert apply(machine, expire, time_ms=150).events == [Event("/a", None, 3)]


@pytest.mark.parametrize("command", [cmd.Put("/a", b""), cmd.Delete("/a"), cmd.DeletePrefix("/a")])
def test_a_key_put_without_ttl_or_deleted_has_no_deadline(command: cmd.Command) -> None:
    machine = StateMachine()
    apply(machine, cmd.PutWithTtl("/a", b"", 50))
    apply(machine, command)
    assert machine.next_deadline_ms is None


# --- repeats ----------------------------------------------------------------------------------------------------------


def test_a_repeat_gets_the_first_reply_and_changes_nothing() -> None:
    machine = StateMachine()
    first = apply(machine, cmd.AllocateMonotonicId("x"), client=b"me", sequence=1)
    again = apply(machine, cmd.AllocateMonotonicId("x"), client=b"me", sequence=1)
    assert (again.answer, again.events) == (first.answer, [])
    assert apply(machine, cmd.AllocateMonotonicId("x"), client=b"me", sequence=2).answer == cmd.Done(2, first_id=2)
    late = apply(machine, cmd.AllocateMonotonicId("x"), client=b"me", sequence=1).answer
    assert isinstance(late, cmd.Rejected)
    assert late.code == "out_of_order"


def test_a_rejection_is_remembered_too() -> None:
    machine = StateMachine(Budget(keys=1))
    apply(machine, cmd.Put("/a", b""))
    full = apply(machine, cmd.Put("/b", b""), client=b"me", sequence=1)
    apply(machine, cmd.Delete("/a"))
    assert apply(machine, cmd.Put("/b", b""), client=b"me", sequence=1).answer == full.answer


def test_clients_are_forgotten_by_number_and_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_CLIENTS_MAX", 2)
    machine = StateMachine()
    for name in (b"a", b"b", b"a", b"c"):
        apply(machine, cmd.Delete("/x"), client=name, sequence=len(machine.clients) + 1)
    assert list(machine.clients) == [b"a", b"c"]
    late_ms = limits.METADATA_CLIENT_AGE_MS + 1
    apply(machine, cmd.Delete("/x"), time_ms=late_ms, client=b"d", sequence=1)
    assert list(machine.clients) == [b"d"]


# --- budget -----------------------------------------------------------------------------------------------------------


def test_hazard_28_the_budget_is_exact_and_non_growing_commands_pass_at_the_limit() -> None:
    machine = StateMachine(Budget(keys=2, size_bytes=10))
    assert isinstance(apply(machine, cmd.Put("/é", b"12")).answer, cmd.Done)
    assert machine.size_bytes == 5
    assert isinstance(apply(machine, cmd.Put("/b", b"123")).answer, cmd.Done)
    for command in (cmd.Put("/b", b"1234"), cmd.Put("/c", b""), cmd.AllocateMonotonicId("x")):
        answer = apply(machine, command).answer
        assert isinstance(answer, cmd.Rejected)
        assert answer.code == "metadata_full"
    assert isinstance(apply(machine, cmd.Put("/b", b"321")).answer, cmd.Done)
    assert isinstance(apply(machine, cmd.Txn([], [cmd.Delete("/é"), cmd.Put("/c", b"123")])).answer, cmd.Done)
    assert isinstance(apply(machine, cmd.Txn([], [cmd.Put("/d", b"123"), cmd.Delete("/b")])).answer, cmd.Done)
    assert (machine.size_bytes, list(machine.entries)) == (10, ["/c", "/d"])


def test_hazard_28_a_state_beyond_its_budget_can_still_shrink() -> None:
    """An older version may have allowed more."""
    machine = StateMachine(Budget(keys=1, size_bytes=3))
    machine.restore(3, 0, [(key, Entry(b"123", 1, 3, 1, 0)) for key in ("/a", "/b", "/c")])
    assert isinstance(apply(machine, cmd.Put("/a", b"12")).answer, cmd.Done)
    assert isinstance(apply(machine, cmd.Put("/a", b"123")).answer, cmd.Rejected)
    assert isinstance(
        apply(machine, cmd.Txn([], [cmd.Delete("/a"), cmd.Delete("/b"), cmd.Put("/d", b"1")])).answer, cmd.Done
    )


# --- the model --------------------------------------------------------------------------------------------------------

KEYS = ["/a", "/a/b", "/a/c", "/b", "/é", "/b/\U0001f642"]
CLIENTS = [b"", b"one", b"two", b"three"]
BUDGET = Budget(keys=4, size_bytes=40)
KEY, VALUE = st.sampled_from(KEYS), st.binary(max_size=12)
TTL, REVISION = st.integers(1, 30), st.integers(0, 20)
COMPARE = st.one_of(
    st.builds(cmd.Absent, KEY), st.builds(cmd.AtRevision, KEY, REVISION), st.builds(cmd.HasValue, KEY, st.just(b""))
)
OPERATION = st.one_of(
    st.builds(cmd.Put, KEY, VALUE),
    st.builds(cmd.PutWithTtl, KEY, VALUE, TTL),
    st.builds(cmd.PutLease, KEY, VALUE, TTL),
    st.builds(cmd.Delete, KEY),
    st.builds(cmd.DeletePrefix, st.sampled_from(["/a", "/b", "/a/", "/x"])),
)
COMMAND = st.one_of(
    OPERATION,
    st.builds(cmd.CompareAndSwap, COMPARE, VALUE, st.integers(0, 30)),
    st.builds(cmd.AllocateMonotonicId, st.just("x"), st.integers(1, 3)),
    st.builds(cmd.ExpireTtlKeys, st.lists(st.tuples(KEY, REVISION), max_size=3)),
    st.builds(cmd.Txn, *(st.lists(strategy, max_size=4) for strategy in (COMPARE, OPERATION, OPERATION))),
)
DELETED_MAX = 2
LEASES_MAX = 2


@dataclass
class StateMachineOracle:
    """The rules in the plainest words: copy everything, change the copy, look whether it may stay."""

    map: dict[str, Entry] = field(default_factory=dict)
    revision: int = 0
    time_ms: int = 0
    answers: dict[bytes, tuple[int, Any]] = field(default_factory=dict)

    def apply(self, envelope: cmd.Envelope) -> tuple[Any, list[Event]]:
        self.time_ms = max(self.time_ms, envelope.time_ms)
        last, answer = self.answers.get(envelope.client, (-1, None))
        if envelope.client and envelope.sequence <= last:
            return (answer if envelope.sequence == last else "out_of_order"), []
        answer, events = self.carry_out(envelope.command)
        if envelope.client:
            self.answers[envelope.client] = envelope.sequence, answer
        return answer, events

    def carry_out(self, command: cmd.Command) -> tuple[Any, list[Event]]:
        match command:
            case cmd.CompareAndSwap(compare, value, ttl_ms):
                put = cmd.PutWithTtl(compare.key, value, ttl_ms) if ttl_ms else cmd.Put(compare.key, value)
                return self.change([put] if self.holds(compare) else [], held=self.holds(compare))
            case cmd.Txn(comparisons, then, otherwise):
                are_met = all(map(self.holds, comparisons))
                return self.change(then if are_met else otherwise, held=are_met, is_txn=True)
            case cmd.AllocateMonotonicId(name, count):
                key = f"/counters/{name}"
                last = int(self.map[key].value) if key in self.map else 0
                answer, events = self.change([cmd.Put(key, str(last + count).encode())])
                return (answer if answer == "metadata_full" else cmd.Done(self.revision, first_id=last + 1)), events
            case cmd.ExpireTtlKeys(keys):
                due = [key for key, revision in keys if self.holds(cmd.AtRevision(key, revision)) and self.is_due(key)]
                return self.change([cmd.Delete(key) for key in due])
            case _:
                return self.change([command])

    def is_due(self, key: str) -> bool:
        return self.map[key].deadline_ms != 0 and self.map[key].deadline_ms <= self.time_ms

    def holds(self, compare: cmd.Compare) -> bool:
        entry = self.map.get(compare.key)
        match compare:
            case cmd.Absent():
                return entry is None
            case cmd.AtRevision(_, revision):
                return entry is not None and entry.mod_revision == revision
            case cmd.HasValue(_, value):
                return entry is not None and entry.value == value

    def change(self, operations: list[Any], *, held: bool = True, is_txn: bool = False) -> tuple[Any, list[Event]]:
        after, revision, deleted, more = dict(self.map), self.revision + 1, 0, False
        for operation in operations:
            match operation:
                case cmd.Put(key, value):
                    after[key] = self.entry(after.get(key), value, 0, revision)
                case cmd.PutWithTtl(key, value, ttl_ms):
                    after[key] = self.entry(after.get(key), value, self.time_ms + ttl_ms, revision)
                case cmd.PutLease(key, value, ttl_ms):
                    after[key] = self.entry(after.get(key), value, self.time_ms + ttl_ms, revision, ttl_ms)
                case cmd.Delete(key):
                    deleted += after.pop(key, None) is not None
                case cmd.DeletePrefix(prefix):
                    matching = sorted(key for key in after if key.startswith(prefix))
                    more = more or len(matching) > max(DELETED_MAX - deleted, 0)
                    for key in matching[: max(DELETED_MAX - deleted, 0)]:
                        del after[key]
                        deleted += 1
        if is_txn and more:
            return "invalid", []
        if (len(after) > max(len(self.map), BUDGET.keys)) or size(after) > max(size(self.map), BUDGET.size_bytes):
            return "metadata_full", []
        if leases(after) > max(leases(self.map), LEASES_MAX):
            return "metadata_full", []
        events = [
            Event(key, after[key].value if key in after else None, revision)
            for key in sorted({*self.map, *after})
            if self.map.get(key) != after.get(key)
        ]
        self.revision += bool(events)
        self.map = after
        return cmd.Done(self.revision, held, more), events

    @staticmethod
    def entry(old: Entry | None, value: bytes, deadline_ms: int, revision: int, lease_ms: int = 0) -> Entry:
        if old is None:
            return Entry(value, revision, revision, 1, deadline_ms, lease_ms)
        version = old.version + (old.mod_revision != revision)
        return Entry(value, old.create_revision, revision, version, deadline_ms, lease_ms)


def size(entries: dict[str, Entry]) -> int:
    return sum(len(key.encode()) + len(entry.value) for key, entry in entries.items())


def leases(entries: dict[str, Entry]) -> int:
    return sum(bool(entry.lease_ms) for entry in entries.values())


class StateMachineModel(RuleBasedStateMachine):
    """Any commands, against the oracle; snapshots taken in between and beside them; a twin that is loaded from one."""

    @initialize()
    def begin(self) -> None:
        self.machine, self.oracle = StateMachine(BUDGET), StateMachineOracle()
        self.twin = StateMachine(BUDGET)
        self.now_ms = 0
        self.frozen: tuple[Frozen, Any, list[bytes], bytes] | None = None

    @rule(command=COMMAND, client=st.sampled_from(CLIENTS), sequence=st.integers(0, 6), step_ms=st.integers(-5, 20))
    def apply(self, command: cmd.Command, client: bytes, sequence: int, step_ms: int) -> None:
        self.now_ms = max(0, self.now_ms + step_ms)
        envelope = cmd.Envelope(cmd.VERSION, client, sequence, self.now_ms, command)
        expected, expected_events = self.oracle.apply(envelope)
        answer, events = self.machine.apply(envelope)
        assert (answer.code if isinstance(answer, cmd.Rejected) else answer) == expected
        assert sorted(events, key=lambda event: event.key) == expected_events
        assert self.twin.apply(cmd.decode_envelope(cmd.encode_envelope(envelope))) == (answer, events)

    @rule()
    def load_the_twin_from_a_snapshot(self) -> None:
        if self.twin.keep_preimage is None:
            self.twin = load_snapshot(reader_of(encode_snapshot(self.twin)), BUDGET)

    @rule()
    def begin_a_snapshot(self) -> None:
        if self.frozen is None:
            whole = encode_snapshot(self.machine)
            frozen = Frozen(self.machine)
            self.frozen = frozen, frozen.slices(), [], whole

    @rule(slices=st.integers(1, 3))
    def go_on_with_the_snapshot(self, slices: int) -> None:
        for _ in range(slices if self.frozen else 0):
            assert self.frozen is not None
            frozen, coming, parts, whole = self.frozen
            part = next(coming, None)
            if part is None:
                assert b"".join(parts) == whole, "what changed beside it is in the snapshot"
                frozen.end()
                self.frozen = None
                return
            parts.append(part)

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "machine"):
            return
        machine, oracle = self.machine, self.oracle
        assert dict(machine.entries.items()) == oracle.map
        assert (machine.revision, machine.time_ms) == (oracle.revision, oracle.time_ms)
        assert machine.size_bytes == size(oracle.map)
        due = sorted(
            (entry.deadline_ms, key, entry.mod_revision)
            for key, entry in oracle.map.items()
            if entry.deadline_ms and not entry.lease_ms
        )
        assert machine.leases == {key: entry for key, entry in oracle.map.items() if entry.lease_ms}
        assert machine.expired(10**9, 100) == [(key, revision) for _, key, revision in due]
        assert machine.next_deadline_ms == (due[0][0] if due else None)
        if machine.keep_preimage is None:
            assert encode_snapshot(machine) == encode_snapshot(self.twin)

    def teardown(self) -> None:
        if getattr(self, "frozen", None):
            self.go_on_with_the_snapshot(100)


def test_any_history_agrees_with_a_plain_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_DELETE_KEYS_MAX", DELETED_MAX)
    monkeypatch.setattr(limits, "METADATA_LEASES_MAX", LEASES_MAX)
    monkeypatch.setattr(snapshot, "_SLICE_ENTRIES", 1)
    run_state_machine_as_test(StateMachineModel, settings=settings(HALF, stateful_step_count=40))
    assert bounds.refusal(cmd.Put(KEYS[0], b"")) is None
