"""Two drivers, lost and late requests, a lease that changes hands, another engine that compacts, and a clean-up: every
order of events is searched.

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
from icestream.catalog.topic_rules.claim_check import Repeated, check_claim
from icestream.pipeline.file_cleanup.removal_rule import Candidate, TableState, may_remove

END = 2  # offsets of the only shard; each round brings one
Rule = Callable[[Candidate, TableState, bool], bool]


class Request(NamedTuple):
    driver: int
    epoch: int
    start: int
    file: str
    base: int  # the table's version that it was made for


class Driver(NamedTuple):
    epoch: int = 0  # 0: it has not begun
    request: Request | None = None  # its round: the file is written
    is_sent: bool = False
    rounds: int = 0
    has_committed: bool = False  # since it has the lease, and it knows
    may_clean: bool = False  # it loaded the table after that


class World(NamedTuple):
    drivers: tuple[Driver, Driver]
    holder: int  # the driver that has the lease, in truth
    epoch: int  # of the lease
    flying: frozenset[Request]  # sent, and not arrived yet; each may arrive late, or never
    rows: tuple[str, ...]  # the table: the file of each offset
    table_epoch: int
    version: int
    files: frozenset[str]  # on disk
    written: frozenset[Candidate]  # by anybody
    landed: frozenset[str] = frozenset()  # files that the table named when a driver looked
    is_compacted: bool = False


def begin() -> World:
    return World((Driver(1), Driver()), 0, 1, frozenset(), (), 0, 0, frozenset(), frozenset())


def steps(world: World, is_own: bool, rule: Rule) -> Iterator[World]:
    yield from _arrivals(world, is_own)
    yield from _others(world)
    if world.holder == 0:  # the lease changes hands: the first driver does not notice
        second = Driver(2)
        yield world._replace(holder=1, epoch=2, drivers=(world.drivers[0], second))
    for number, driver in enumerate(world.drivers):
        if driver.epoch:
            yield from _moves(world, number, driver, is_own, rule)


def _others(world: World) -> Iterator[World]:
    """Somebody reads the table; another engine writes its first row into a file of its own, and the snapshots from
    before go."""
    if not world.landed >= {*world.rows}:
        yield world._replace(landed=world.landed | {*world.rows})
    if world.rows and not world.is_compacted:
        rows = ("compacted", *world.rows[1:])
        files = world.files | {"compacted"}
        yield world._replace(rows=rows, files=files, version=world.version + 1, is_compacted=True)


def _with(world: World, number: int, driver: Driver) -> World:
    made = list(world.drivers)
    made[number] = driver
    return world._replace(drivers=(made[0], made[1]))


def _moves(world: World, number: int, driver: Driver, is_own: bool, rule: Rule) -> Iterator[World]:
    request = driver.request
    if request is None and driver.rounds < 2 and len(world.rows) < END:
        name = f"{number}{driver.rounds}"
        made = Request(number, driver.epoch, len(world.rows), name, world.version)
        candidate = Candidate(name, driver.epoch, {0: made.start + 1}, made.base)
        yield _with(world, number, driver._replace(request=made, is_sent=False, rounds=driver.rounds + 1))._replace(
            files=world.files | {name}, written=world.written | {_hashable(candidate)}
        )
    if request is not None:
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
        seen = TableState(is_own, world.table_epoch, {0: len(world.rows)}, world.version, frozenset(world.rows))
        for candidate in world.written:
            plain = candidate._replace(
                ends=dict(candidate.ends or ()), was_committed=candidate.location in world.landed
            )
            if candidate.location in world.files and rule(plain, seen, world.holder == number):
                yield world._replace(files=world.files - {candidate.location})


def _hashable(one: Candidate) -> Candidate:
    return one._replace(ends=tuple((one.ends or {}).items()))  # type: ignore[arg-type]


def _arrivals(world: World, is_own: bool) -> Iterator[World]:
    for request in world.flying:
        yield world._replace(flying=world.flying - {request})  # lost
        if _is_taken(world, request, is_own):
            epoch = max(world.table_epoch, request.epoch)
            landed = world._replace(rows=(*world.rows, request.file), table_epoch=epoch, version=world.version + 1)
            yield landed  # and a copy is still on its way
            yield landed._replace(flying=world.flying - {request})


def _is_taken(world: World, request: Request, is_own: bool) -> bool:
    if not is_own:
        return request.base == world.version
    claim = RoundClaim(
        request.file.encode().ljust(16), 1, request.epoch, (ClaimedRange(0, 0, request.start, request.start + 1),)
    )
    try:
        return not isinstance(check_claim(_binding(world), claim, world.epoch), Repeated)
    except errors.RangeRefused:
        return False


def _binding(world: World) -> Binding:
    made = new_binding("/default/t", 1, {0: (0, len(world.rows))})
    return msgspec.structs.replace(made, pipeline_epoch=world.table_epoch)


def search(is_own: bool, rule: Rule) -> tuple[int, str]:
    """How many worlds there are, and what is wrong with the first bad one."""
    first = begin()
    known, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        if missing := set(world.rows) - world.files:
            return len(known), f"the table names {missing.pop()}, which is gone: {world}"
        if len(set(world.rows)) < len(world.rows) or len(world.rows) > END:
            return len(known), f"an offset twice: {world}"
        for after in steps(world, is_own, rule):
            if after not in known:
                known.add(after)
                waiting.append(after)
    return len(known), ""


@pytest.mark.parametrize("is_own", [True, False], ids=["our own catalog", "another catalog"])
def test_no_order_of_events_removes_a_file_that_a_table_names(is_own: bool) -> None:
    count, wrong = search(is_own, may_remove)
    assert not wrong
    assert count > 1_000


def not_named(one: Candidate, seen: TableState, is_holder: bool) -> bool:
    return one.location not in seen.referenced


def holders_only(one: Candidate, seen: TableState, is_holder: bool) -> bool:
    return is_holder and one.location not in seen.referenced


def sent_is_landed(one: Candidate, seen: TableState, is_holder: bool) -> bool:
    """Who takes what it sent, and what the catalog may have taken, for what was in the table."""
    return may_remove(one._replace(was_committed=True), seen, is_holder)


@pytest.mark.parametrize("is_own", [True, False], ids=["our own catalog", "another catalog"])
@pytest.mark.parametrize("rule", [not_named, holders_only, sent_is_landed])
def test_a_weaker_rule_is_found_out(rule: Rule, is_own: bool) -> None:
    assert "which is gone" in search(is_own, rule)[1]


def test_clean_up_does_happen() -> None:
    """The rule is no rule if it never lets anything go."""
    lost = Candidate("a", 1, {0: 1}, 0)
    assert may_remove(lost, TableState(True, 2, {0: 1}, 1, ()), True)
    assert may_remove(lost, TableState(False, 2, {0: 1}, 1, ()), True)
    assert not may_remove(lost, TableState(True, 1, {0: 1}, 1, ()), True)
    assert not may_remove(lost, TableState(False, 2, {0: 1}, 0, ()), True)
    assert not may_remove(lost, TableState(False, 2, {0: 0}, 1, ()), True)
    assert not may_remove(lost, TableState(True, 2, {0: 1}, 1, ("a",)), True)
    assert not may_remove(lost, TableState(True, 2, {0: 1}, 1, ()), False)
    assert not may_remove(lost._replace(ends=None), TableState(False, 2, {0: 1}, 1, ()), True)
    landed = lost._replace(was_committed=True)
    for is_own in (True, False):
        assert may_remove(landed, TableState(is_own, 1, {0: 1}, 1, ()), True)
        assert not may_remove(landed, TableState(is_own, 1, {0: 1}, 1, ("a",)), True)
        assert not may_remove(landed, TableState(is_own, 1, {0: 1}, 1, ()), False)
