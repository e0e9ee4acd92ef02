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
            held = state[place] == expected
            return (_with(state, place, value) if held else state), held
        case "txn", (place, expected, other, value, otherwise):
            held = state[place] == expected
            return _with(state, other, value if held else otherwise), held
    raise AssertionError(f"{kind} {arguments} is no operation")


def _with(state: State, place: int, value: Any) -> State:
    return (*state[:place], value, *state[place + 1 :])


def is_linearizable(operations: Iterable[Operation], width: int, steps_max: int = STEPS_MAX) -> bool | None:
    """All of one group of `width` keys that are absent at first."""
    counted = [one for one in operations if one.outcome == OK or (one.outcome == UNKNOWN and one.kind != "get")]
    counted.sort(key=lambda one: one.invoked)
    ends = [one.completed or EVER if one.outcome == OK else EVER for one in counted]
    needed = sum(1 << at for at, one in enumerate(counted) if one.outcome == OK)
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
            one = counted[at]
            if one.invoked > limit:
                break
            if done >> at & 1:
                continue
            limit = min(limit, ends[at])
            steps += 1
            after, result = apply(state, one.kind, one.arguments)
            if one.outcome == OK and one.kind in ("get", "cas", "txn") and result != one.result:
                continue
            reached = (done | 1 << at, after)
            if reached not in seen:
                seen.add(reached)
                fitting.append((ends[at], reached))
        # the first to end is tried first, an unknown one only where nothing else fits
        fitting.sort(key=lambda found: -found[0])
        stack += [reached for _, reached in fitting]
        if steps > steps_max:
            return None
    return False


def violations(operations: Iterable[Operation], width: int) -> list[str]:
    groups: dict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        if one.outcome != REFUSED:
            groups[one.group].append(one)
    found = []
    for group, those in sorted(groups.items()):
        verdict = is_linearizable(those, width)
        if verdict is not True:
            word = "are not linearizable" if verdict is False else "could not be judged in time"
            found.append(f"the {len(those)} operations of group {group} {word}")
    return found
