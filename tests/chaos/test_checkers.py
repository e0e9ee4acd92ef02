"""The checkers themselves: histories made by hand, good ones and ones with a single lie in them."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from tests.chaos import checkers
from tests.chaos.history import OK, REFUSED, UNKNOWN, Operation, OperationHistory, TtlRead, TtlWrite, WatchObservation
from tests.chaos.linearizability import apply, is_linearizable, violations


def op(kind: str, *arguments: Any, at: tuple[int, int | None], result: Any = None, **more: Any) -> Operation:
    outcome = OK if at[1] is not None else UNKNOWN
    return Operation(0, kind, 0, arguments, at[0], at[1], more.pop("outcome", outcome), result, **more)


@pytest.mark.parametrize(
    ("operations", "verdict"),
    [
        ([op("put", 0, 1, at=(0, 1)), op("get", 0, at=(2, 3), result=1)], True),
        ([op("put", 0, 1, at=(0, 1)), op("get", 0, at=(2, 3), result=None)], False),
        ([op("put", 0, 1, at=(0, 5)), op("get", 0, at=(2, 3), result=None)], True),
        ([op("put", 0, 1, at=(0, None)), op("get", 0, at=(9, 10), result=1)], True),
        ([op("put", 0, 1, at=(0, None)), op("get", 0, at=(9, 10), result=None)], True),
        (
            [
                op("put", 0, 1, at=(0, None)),
                op("get", 0, at=(9, 10), result=1),
                op("get", 0, at=(11, 12), result=None),
            ],
            False,
        ),
        ([op("put", 0, 1, at=(0, 1)), op("delete", 0, at=(2, 3)), op("get", 0, at=(4, 5), result=1)], False),
        ([op("cas", 0, None, 1, at=(0, 9), result=True), op("cas", 0, None, 2, at=(0, 9), result=True)], False),
        ([op("cas", 0, None, 1, at=(0, 9), result=True), op("cas", 0, None, 2, at=(0, 9), result=False)], True),
        ([op("put", 0, 1, at=(0, 1)), op("txn", 0, 1, 1, 7, 8, at=(2, 3), result=True),
          op("get", 1, at=(4, 5), result=7)], True),
        ([op("put", 0, 1, at=(0, 1)), op("txn", 0, 1, 1, 7, 8, at=(2, 3), result=True),
          op("get", 1, at=(4, 5), result=8)], False),
        ([op("put", 0, 1, at=(0, 1)), op("put", 0, 2, at=(2, 3)), op("get", 0, at=(2, 9), result=1),
          op("get", 0, at=(4, 9), result=2)], True),
        ([op("put", 0, 1, at=(0, 1)), op("put", 0, 2, at=(2, 3)), op("get", 0, at=(4, 9), result=1)], False),
    ],
)  # fmt: skip
def test_small_histories(operations: list[Operation], verdict: bool) -> None:
    assert is_linearizable(operations, 2) is verdict


def random_history(seed: int, clients: int = 5, length: int = 100) -> list[Operation]:
    """Of a register group that is right: each operation takes effect at a moment inside its time."""
    chance, values = random.Random(seed), count(1)
    state: tuple[Any, ...] = (None, None, None)
    moments = []
    for client in range(clients):
        time = 0
        for _ in range(length // clients):
            start = time + chance.randint(1, 10)
            moment, time = start + chance.randint(1, 20), start + chance.randint(21, 40)
            moments.append((moment, client, start, time))
    operations = []
    for _, client, start, end in sorted(moments):
        place, other = chance.randrange(3), chance.randrange(3)
        kind = chance.choice(("get", "get", "put", "delete", "cas", "txn"))
        expected = state[place] if chance.random() < 0.5 else None
        arguments = {
            "get": (place,),
            "put": (place, next(values)),
            "delete": (place,),
            "cas": (place, expected, next(values)),
            "txn": (place, expected, other, next(values), next(values)),
        }[kind]
        if chance.random() < 0.03:
            is_done = chance.random() < 0.5
            state = apply(state, kind, arguments)[0] if is_done else state
            operations.append(Operation(client, kind, 0, arguments, start))
            continue
        state, result = apply(state, kind, arguments)
        operations.append(Operation(client, kind, 0, arguments, start, end, OK, result))
    return operations


@pytest.mark.parametrize("seed", range(12))
def test_a_right_history_passes_and_one_wrong_read_does_not(seed: int) -> None:
    operations = random_history(seed)
    assert is_linearizable(operations, 3) is True
    reads = [operation for operation in operations if operation.kind == "get" and operation.outcome == OK]
    reads[len(reads) // 2].result = -1
    assert is_linearizable(operations, 3) is False


def test_refused_writes_must_stay_invisible_and_key_groups_are_judged_separately() -> None:
    refused = op("put", 0, 1, at=(0, 1), outcome=REFUSED)
    assert violations([refused, op("get", 0, at=(2, 3), result=1)], 1)
    assert not violations([refused, op("get", 0, at=(2, 3), result=None)], 1)


def test_histories_that_cannot_be_judged_are_reported() -> None:
    assert is_linearizable(random_history(1), 3, steps_max=10) is None


def test_watch_gaps_repeats_and_contradictions_are_reported() -> None:
    def observation(*revisions: int, value: bytes = b"") -> WatchObservation:
        return WatchObservation(0, 0, [(revision, [("/a", value)]) for revision in revisions])

    assert checkers.watch_violations([observation(1, 2, 3)])[0] == []
    for bad in (
        [observation(1, 3)],
        [observation(1, 1)],
        [observation(2, 1)],
        [observation(2)],
        [observation(1), observation(1, value=b"x")],
    ):
        assert checkers.watch_violations(bad)[0]


def test_revisions_that_are_out_of_order_or_stale() -> None:
    def key(group: int, place: int) -> str:
        return f"/{place}"

    first, second = op("put", 0, b"1", at=(0, 1), revision=1), op("put", 0, b"2", at=(2, 3), revision=2)
    ledger: dict[int, checkers.Events] = {1: {"/0": b"1"}, 2: {"/0": b"2"}}
    assert checkers.revision_violations([first, second], ledger, key) == []
    late = op("put", 0, b"1", at=(4, 5), revision=1)
    assert checkers.revision_violations([second, late], ledger, key)
    same = op("put", 0, b"2", at=(0, 9), revision=1)
    assert checkers.revision_violations([first, same], {}, key)
    assert checkers.revision_violations([op("put", 0, b"9", at=(0, 1), revision=1)], ledger, key)
    stale = op("get", 0, at=(4, 5), result=b"1", revision=1)
    assert checkers.revision_violations([first, second, stale], ledger, key)
    early = op("get", 0, at=(2, 5), result=b"1", revision=1)
    assert checkers.revision_violations([first, second, early], ledger, key) == []


def test_repeated_or_decreasing_ids_are_reported() -> None:
    assert checkers.id_violations([(0, 1, 1, 5), (0, 3, 6, 1), (4, 5, 7, 1)]) == []
    assert checkers.id_violations([(0, 1, 1, 5), (0, 3, 5, 1)])
    assert checkers.id_violations([(0, 1, 6, 5), (2, 3, 1, 1)])


def test_keys_that_expire_early_or_late_are_reported() -> None:
    ms = checkers.MS
    write = TtlWrite("/t", 100, 0, 10 * ms)

    def judged(read: TtlRead) -> list[str]:
        return checkers.ttl_violations(OperationHistory(ttl_writes=[write], ttl_reads=[read], healed=1))

    assert judged(TtlRead("/t", 20 * ms, 30 * ms, True)) == []
    assert judged(TtlRead("/t", 20 * ms, 30 * ms, False))
    assert judged(TtlRead("/t", 20 * ms, 130 * ms, False)) == []
    assert judged(TtlRead("/t", 9_000 * ms, 9_001 * ms, True))


def test_double_and_forgotten_votes_are_reported(tmp_path: Any) -> None:
    def judged(*lines: str) -> list[str]:
        (tmp_path / "votes").write_text("\n".join(lines))
        return checkers.vote_violations([tmp_path])

    assert judged('["boot", 0, 0]', '["granted", 2, 7]', '["boot", 2, 7]', '["granted", 3, 8]', '["boot", 4, 0]') == []
    assert judged('["granted", 2, 7]', '["granted", 2, 8]')
    assert judged('["granted", 2, 7]', '["boot", 2, 0]')
    assert judged('["granted", 2, 7]', '["boot", 1, 7]')
