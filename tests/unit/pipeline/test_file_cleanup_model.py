"""Two drivers, lost and late requests, rewrites that are built again, a lease that changes hands, another engine that
compacts, and a clean-up: every order of events is searched.

The rule about files is the real one, and so is the catalog's judgement of claims; everything else is on paper. A rule
that is weaker in any of its parts is found out by the same search: that is tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import pytest

from icestream import errors
from icestream.catalog.topic_rules.binding import Binding, new_binding
from icestream.catalog.topic_rules.claim import ClaimedRange, RoundClaim
from icestream.catalog.topic_rules.claim_check import Repeated, check_claim, check_driver
from icestream.catalog.topic_rules.rewrite import RewriteClaim
from icestream.pipeline.file_cleanup.removal_rule import Candidate, CleanedTable, may_remove

END = 2  # offsets of the only shard; each round brings one
Rule = Callable[[Candidate, CleanedTable, bool], bool]


class Scope(NamedTuple):
    """The part of the state space that is searched. All of it at once has too many interleavings."""

    is_own: bool
    rounds: int = 2  # of each driver
    has_rewrite: bool = False  # of the first driver, which is late
    is_compacted: bool = True  # by another engine
    is_fenced: bool = True  # our own catalog compares the epoch of a rewrite


class ModelRequest(NamedTuple):
    driver: int
    epoch: int
    start: int
    file: str
    base: int  # the table's version that it was made for
    replaced: str = ""  # of a rewrite: the file of the first row


class ModelDriver(NamedTuple):
    epoch: int = 0  # 0: it has not begun
    request: ModelRequest | None = None  # its round: the file is written
    is_sent: bool = False
    rounds: int = 0
    has_rewritten: bool = False
    has_committed: bool = False  # since it has the lease, and it knows
    may_clean: bool = False  # it loaded the table after that


class CleanupState(NamedTuple):
    drivers: tuple[ModelDriver, ModelDriver]
    holder: int  # the driver that has the lease, in truth
    epoch: int  # of the lease
    flying: frozenset[ModelRequest]  # sent, and not arrived yet; each may arrive late, or never
    rows: tuple[str, ...]  # the table: the file of each offset
    table_epoch: int
    version: int
    files: frozenset[str]  # on disk
    written: frozenset[Candidate]  # by any driver
    landed: frozenset[str] = frozenset()  # files that the table named when a driver looked
    is_compacted: bool = False


def begin() -> CleanupState:
    return CleanupState((ModelDriver(1), ModelDriver()), 0, 1, frozenset(), (), 0, 0, frozenset(), frozenset())


def steps(world: CleanupState, scope: Scope, rule: Rule) -> Iterator[CleanupState]:
    yield from _arrivals(world, scope)
    yield from _others(world, scope)
    if world.holder == 0:  # the lease changes hands: the first driver does not notice
        second = ModelDriver(2)
        yield world._replace(holder=1, epoch=2, drivers=(world.drivers[0], second))
    for number, driver in enumerate(world.drivers):
        if driver.epoch:
            yield from _moves(world, number, driver, scope, rule)


def _others(world: CleanupState, scope: Scope) -> Iterator[CleanupState]:
    """The table is read; another engine writes its first row into a file of its own, and the snapshots from
    before go."""
    if not world.landed >= {*world.rows}:
        yield world._replace(landed=world.landed | {*world.rows})
    if world.rows and scope.is_compacted and not world.is_compacted:
        rows = ("compacted", *world.rows[1:])
        files = world.files | {"compacted"}
        yield world._replace(rows=rows, files=files, version=world.version + 1, is_compacted=True)


def _with(world: CleanupState, number: int, driver: ModelDriver) -> CleanupState:
    drivers = list(world.drivers)
    drivers[number] = driver
    return world._replace(drivers=(drivers[0], drivers[1]))


def _moves(world: CleanupState, number: int, driver: ModelDriver, scope: Scope, rule: Rule) -> Iterator[CleanupState]:
    request, is_own = driver.request, scope.is_own
    if request is None and driver.rounds < scope.rounds and len(world.rows) < END:
        name = f"{number}{driver.rounds}"
        new_request = ModelRequest(number, driver.epoch, len(world.rows), name, world.version)
        candidate = Candidate(name, driver.epoch, {0: new_request.start + 1}, new_request.base)
        yield _with(
            world, number, driver._replace(request=new_request, is_sent=False, rounds=driver.rounds + 1)
        )._replace(files=world.files | {name}, written=world.written | {_hashable(candidate)})
    if request is None and world.rows and scope.has_rewrite and number == 0 and not driver.has_rewritten:
        name = f"{number}r"
        new_request = ModelRequest(number, driver.epoch, -1, name, world.version, world.rows[0])
        yield _with(world, number, driver._replace(request=new_request, is_sent=False, has_rewritten=True))._replace(
            files=world.files | {name}, written=world.written | {Candidate(name, driver.epoch)}
        )
    if request is not None and request.replaced:
        # A rewrite is built again on whatever main is now, with the same file. In another catalog the committer looks
        # at the epochs of the table before. It is given up when it is in the table, or the file to replace is not.
        if request.replaced in world.rows and (is_own or driver.epoch >= world.table_epoch):
            again = request._replace(base=world.version)
            yield _with(world, number, driver._replace(request=again, is_sent=True))._replace(
                flying=world.flying | {again}
            )
        if request.replaced not in world.rows:
            done = driver.has_committed or request.file in world.rows
            yield _with(world, number, driver._replace(request=None, is_sent=False, has_committed=done))
    elif request is not None:
        # it sends, or sends again after an answer that never came; a foreign catalog is read before
        if is_own or len(world.rows) == request.start:
            base = request if is_own else request._replace(base=world.version)
            yield _with(world, number, driver._replace(request=base, is_sent=True))._replace(
                flying=world.flying | {base},
                written=world.written | {_hashable(Candidate(base.file, base.epoch, {0: base.start + 1}, base.base))},
            )
        # it gives the round up: it looks, and the table has gone on
        if len(world.rows) > request.start:
            is_in = request.file in world.rows or request.file in world.landed
            done = driver.has_committed or is_in
            yield _with(world, number, driver._replace(request=None, is_sent=False, has_committed=done))
    if driver.has_committed and world.holder == number and not driver.may_clean:
        yield _with(world, number, driver._replace(may_clean=True))
    if driver.has_committed or rule is not may_remove:
        seen = CleanedTable(is_own, world.table_epoch, {0: len(world.rows)}, world.version, frozenset(world.rows))
        for candidate in world.written:
            ends = None if candidate.ends is None else dict(candidate.ends)
            plain = candidate._replace(ends=ends, was_committed=candidate.location in world.landed)
            if candidate.location in world.files and rule(plain, seen, world.holder == number):
                yield world._replace(files=world.files - {candidate.location})


def _hashable(candidate: Candidate) -> Candidate:
    return candidate._replace(ends=tuple((candidate.ends or {}).items()))  # type: ignore[arg-type]


def _arrivals(world: CleanupState, scope: Scope) -> Iterator[CleanupState]:
    for request in world.flying:
        yield world._replace(flying=world.flying - {request})  # lost
        judge = _is_rewrite_taken if request.replaced else _is_taken
        if judge(world, request, scope):
            epoch = max(world.table_epoch, request.epoch)
            rows = (request.file, *world.rows[1:]) if request.replaced else (*world.rows, request.file)
            landed = world._replace(rows=rows, table_epoch=epoch, version=world.version + 1)
            yield landed  # and a copy is still on its way
            yield landed._replace(flying=world.flying - {request})


def _is_taken(world: CleanupState, request: ModelRequest, scope: Scope) -> bool:
    if not scope.is_own:
        return request.base == world.version
    claim = RoundClaim(
        request.file.encode().ljust(16), 1, request.epoch, (ClaimedRange(0, 0, request.start, request.start + 1),)
    )
    try:
        return not isinstance(check_claim(_binding(world), claim, world.epoch), Repeated)
    except errors.RangeRefused:
        return False


def _is_rewrite_taken(world: CleanupState, request: ModelRequest, scope: Scope) -> bool:
    if request.base != world.version or request.replaced not in world.rows:
        return False
    if not scope.is_own or not scope.is_fenced:
        return True
    claim = RewriteClaim(
        request.file.encode().ljust(16), 1, request.epoch, frozenset([request.replaced]), frozenset([request.file])
    )
    try:
        return check_driver(_binding(world), claim, world.epoch) is None
    except errors.RangeRefused:
        return False


def _binding(world: CleanupState) -> Binding:
    binding = new_binding("/default/t", 1, {0: (0, len(world.rows))})
    return msgspec.structs.replace(binding, pipeline_epoch=world.table_epoch)


def search(scope: Scope, rule: Rule) -> tuple[int, str]:
    """Returns the number of states, and the fault of the first bad one."""
    first = begin()
    visited, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        if missing := set(world.rows) - world.files:
            return len(visited), f"the table names {missing.pop()}, which is gone: {world}"
        if len(set(world.rows)) < len(world.rows) or len(world.rows) > END:
            return len(visited), f"an offset twice: {world}"
        for after in steps(world, scope, rule):
            if after not in visited:
                visited.add(after)
                waiting.append(after)
    return len(visited), ""


# A commit to another catalog is sent again for each version of its table: 371,000 states. Without the other engine, or
# with one round of each driver, they are few, and every weaker rule below is still detected in them.
SCOPES = [
    pytest.param(Scope(is_own=True), id="our own catalog"),
    pytest.param(Scope(is_own=False, rounds=1), id="another catalog, one round"),
    pytest.param(Scope(is_own=False, is_compacted=False), id="another catalog, no other engine"),
    pytest.param(Scope(is_own=False), id="another catalog", marks=pytest.mark.chaos),
]


@pytest.mark.parametrize("scope", SCOPES)
def test_no_order_of_events_removes_a_file_that_a_table_names(scope: Scope) -> None:
    count, wrong = search(scope, may_remove)
    assert not wrong
    assert count > 1_000


REWRITES = Scope(is_own=True, rounds=1, has_rewrite=True, is_compacted=False)


@pytest.mark.parametrize("is_own", [True, False], ids=["our own catalog", "another catalog"])
def test_hazard_75_no_order_of_events_removes_the_file_of_a_rewrite(is_own: bool) -> None:
    count, wrong = search(REWRITES._replace(is_own=is_own), may_remove)
    assert not wrong
    assert count > 1_000


def test_hazard_75_a_rewrite_that_is_not_fenced_is_detected() -> None:
    """A late driver builds its rewrite again on a table whose clean-up has removed its file."""
    assert "which is gone" in search(REWRITES._replace(is_fenced=False), may_remove)[1]


def not_named(candidate: Candidate, seen: CleanedTable, is_holder: bool) -> bool:
    return candidate.location not in seen.referenced


def holders_only(candidate: Candidate, seen: CleanedTable, is_holder: bool) -> bool:
    return is_holder and candidate.location not in seen.referenced


def sent_is_landed(candidate: Candidate, seen: CleanedTable, is_holder: bool) -> bool:
    """A rule that takes every request that was sent for one that was committed."""
    return may_remove(candidate._replace(was_committed=True), seen, is_holder)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("rule", [not_named, holders_only, sent_is_landed])
def test_a_weaker_rule_is_detected(rule: Rule, scope: Scope) -> None:
    assert "which is gone" in search(scope, rule)[1]


def test_clean_up_does_happen() -> None:
    """The rule is no rule if it never lets anything go."""
    lost = Candidate("a", 1, {0: 1}, 0)
    assert may_remove(lost, CleanedTable(True, 2, {0: 1}, 1, ()), True)
    assert may_remove(lost, CleanedTable(False, 2, {0: 1}, 1, ()), True)
    assert not may_remove(lost, CleanedTable(True, 1, {0: 1}, 1, ()), True)
    assert not may_remove(lost, CleanedTable(False, 2, {0: 1}, 0, ()), True)
    assert not may_remove(lost, CleanedTable(False, 2, {0: 0}, 1, ()), True)
    assert not may_remove(lost, CleanedTable(True, 2, {0: 1}, 1, ("a",)), True)
    assert not may_remove(lost, CleanedTable(True, 2, {0: 1}, 1, ()), False)
    assert not may_remove(lost._replace(ends=None), CleanedTable(False, 2, {0: 1}, 1, ()), True)
    landed = lost._replace(was_committed=True)
    for is_own in (True, False):
        assert may_remove(landed, CleanedTable(is_own, 1, {0: 1}, 1, ()), True)
        assert not may_remove(landed, CleanedTable(is_own, 1, {0: 1}, 1, ("a",)), True)
        assert not may_remove(landed, CleanedTable(is_own, 1, {0: 1}, 1, ()), False)
