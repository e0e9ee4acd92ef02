"""Is there one order of the operations on a group of keys that explains every answer? Wing and Gong, with Lowe's memo.

An operation took effect at one moment between its call and its answer. One with an unknown outcome has no end: it may
have taken effect at any moment behind its call, or never. The search takes, again and again, an operation that was
called before any other that is left has answered, and whose answer fits the state; what leads nowhere is taken back. A
set of operations that led to a state is never tried twice.

The search is exact: True and False are proofs. It is given a number of steps, and None says that they did not suffice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.chaos.history import OK, REFUSED, UNKNOWN, Operation

STEPS_MAX = 2_000_000
State = tuple[Any, ...]
EVER = 2**63


def apply(state: State, kind: str, arguments: tuple[Any, ...]) -> tuple[State, Any]:
    """The next state and the result. Pure."""
    match kind, arguments:
        case "get", (place,):
            return state, state[place]
        case "put", (place, value):
            return _with(state, place, value), None
        case "delete", (place,):
            return _with(state, place, None), None
        case "cas", (place, expected, value):
            is_equal = state[place] == expected
            return (_with(state, place, value) if is_equal else state), is_equal
        case "txn", (place, expected, other, value, otherwise):
            is_equal = state[place] == expected
            return _with(state, other, value if is_equal else otherwise), is_equal
    raise AssertionError(f"{kind} {arguments} is no operation")


def _with(state: State, place: int, value: Any) -> State:
    return (*state[:place], value, *state[place + 1 :])


def is_linearizable(operations: Iterable[Operation], width: int, steps_max: int = STEPS_MAX) -> bool | None:
    """True if the operations on one group of `width` keys, absent at first, are linearizable; None if undecided."""
    counted = [
        operation
        for operation in operations
        if operation.outcome == OK or (operation.outcome == UNKNOWN and operation.kind != "get")
    ]
    counted.sort(key=lambda operation: operation.invoked)
    ends = [operation.completed or EVER if operation.outcome == OK else EVER for operation in counted]
    needed = sum(1 << at for at, operation in enumerate(counted) if operation.outcome == OK)
    return _search(counted, ends, needed, (None,) * width, steps_max)


def _search(counted: list[Operation], ends: list[int], needed: int, start: State, steps_max: int) -> bool | None:
    seen = {(0, start)}
    stack = [(0, start)]
    steps = 0
    while stack:
        done, state = stack.pop()
        if done & needed == needed:
            return True
        fitting = []
        # nothing that was called behind the first end of those that are left can be the next
        limit = EVER
        for at in range((~done & (done + 1)).bit_length() - 1, len(counted)):
            operation = counted[at]
            if operation.invoked > limit:
                break
            if done >> at & 1:
                continue
            limit = min(limit, ends[at])
            steps += 1
            after, result = apply(state, operation.kind, operation.arguments)
            if operation.outcome == OK and operation.kind in ("get", "cas", "txn") and result != operation.result:
                continue
            reached = (done | 1 << at, after)
            if reached not in seen:
                seen.add(reached)
                fitting.append((ends[at], reached))
        # the first to end is tried first, an unknown one only where nothing else fits
        fitting.sort(key=lambda candidate: -candidate[0])
        stack += [reached for _, reached in fitting]
        if steps > steps_max:
            return None
    return False


def violations(operations: Iterable[Operation], width: int) -> list[str]:
    groups: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.outcome != REFUSED:
            groups[operation.group].append(operation)
    broken = []
    for group, those in sorted(groups.items()):
        verdict = is_linearizable(those, width)
        if verdict is not True:
            word = "are not linearizable" if verdict is False else "could not be judged in time"
            broken.append(f"the {len(those)} operations of group {group} {word}")
    return broken
