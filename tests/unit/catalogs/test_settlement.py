"""Commits over a wire that loses, delays and doubles: on the real catalog, with every order of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalogs.circuit_breaker import CircuitBreaker
from icestream.catalogs.commit_resolution import CommitResolver, resolve_change
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.multi_table_commit import MultiTableCommit
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.table_catalog import (
    CommitDone,
    CommitOutcome,
    CommitRefused,
    CommitUnknown,
    LoadedTable,
    TableChange,
)
from icestream.iceberg.identifier import Identifier
from icestream.runtime.randomness import SeededRandomness
from tests.support.eager_clock import EagerClock
from tests.support.tables import add, point, snapshot
from tests.support.warehouse import World

OURS, THEIRS = 7, 20
# What may happen to one copy of a commit.
FAULTS = [
    "answered", "refused", "lost-before", "lost-after", "delayed", "doubled", "doubled-400", "denied", "overtaken"
]  # fmt: skip
READS = ["answered", "answered", "answered", "lost-before"]


@dataclass
class Wire:
    """Between a settlement and a catalog."""

    world: World
    identifier: Any
    faults: list[str]
    reads: list[str]
    delayed: list[Coroutine[Any, Any, Any]] = field(default_factory=list)
    sent: int = 0
    others: int = 0

    def change(self) -> TableChange:
        return TableChange(
            [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
            [add(snapshot(OURS, None)), point("main", OURS)],
        )

    async def _commit(self, change: TableChange) -> LoadedTable:
        made = await self.world.catalog.commits.commit(
            self.identifier, CommitRequest(change.requirements, change.updates)
        )
        return LoadedTable(made.table.as_json())

    async def send(self) -> LoadedTable:
        fault = self.faults[self.sent] if self.sent < len(self.faults) else "answered"
        self.sent += 1
        change = self.change()
        if fault == "refused":
            raise errors.StorageUnavailable("no connection")
        if fault == "lost-before":
            raise errors.StorageUnavailable("cut off", is_ambiguous=True)
        if fault == "delayed":
            self.delayed.append(self._commit(change))
            raise errors.StorageUnavailable("no answer in time", is_ambiguous=True)
        if fault == "overtaken":
            await self.append_of_others()
        if fault in ("doubled", "doubled-400"):
            await self._swallow(self._commit(change))
        if fault == "doubled-400":
            raise errors.InvalidInput("snapshot exists")
        if fault == "denied":
            raise errors.AccessDenied("who are you?")
        made = await self._commit(change)
        if fault == "lost-after":
            raise errors.StorageUnavailable("cut off", is_ambiguous=True)
        return made

    async def look(self) -> LoadedTable:
        if self.reads and self.reads.pop(0) == "lost-before":
            raise errors.StorageUnavailable("cut off", is_ambiguous=True)
        if self.delayed and len(self.reads) % 2:
            await self._swallow(self.delayed.pop())  # it comes while we read
        return LoadedTable((await self.world.catalog.tables.load(self.identifier)).table.as_json())

    async def append_of_others(self) -> None:
        found = (await self.world.catalog.tables.load(self.identifier)).table
        self.others += 1
        number = THEIRS + self.others
        updates = [add(snapshot(number, found.current_snapshot_id)), point("main", number)]
        await self.world.catalog.commits.commit(self.identifier, CommitRequest([], updates))

    async def _swallow(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except errors.IcestreamError:
            return

    async def end(self) -> list[int]:
        """All that was on its way arrives. The snapshots of the table."""
        while self.delayed:
            await self._swallow(self.delayed.pop())
        return [one["snapshot-id"] for one in (await self.world.catalog.tables.load(self.identifier)).table.snapshots]


def a_caller() -> StorageCaller:
    patience = CallTimeouts(request_seconds=1.0, retry_seconds_min=0.05, retry_seconds_max=0.2)
    return StorageCaller("test", EagerClock(), SeededRandomness(2), patience, CircuitBreaker(failures_max=10_000))


@given(st.lists(st.sampled_from(FAULTS), max_size=6), st.lists(st.sampled_from(READS), max_size=6))
def test_whatever_happens_on_the_wire_the_outcome_is_true(faults: list[str], reads: list[str]) -> None:
    async def run() -> None:
        world = World()
        wire = Wire(world, await world.with_table(), faults, reads)
        outcome: CommitOutcome | errors.IcestreamError
        try:
            outcome = await CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.look).settle()
        except (errors.StorageUnavailable, errors.AccessDenied, errors.InvalidInput) as error:
            outcome = error
        before = [one["snapshot-id"] for one in (await world.catalog.tables.load(wire.identifier)).table.snapshots]
        after = await wire.end()
        assert after.count(OURS) <= 1
        if isinstance(outcome, CommitDone):
            assert OURS in before, "reported and not there"
            assert outcome.table is not None
            assert OURS in [one["snapshot-id"] for one in outcome.table.metadata["snapshots"]]
        elif isinstance(outcome, CommitUnknown):
            assert set(wire.faults[: wire.sent]) & {"lost-before", "lost-after", "delayed"}
        else:
            assert OURS not in after, f"reported as not done ({outcome}), and it is there"

    asyncio.run(run())


def test_a_commit_that_nobody_may_send_twice_is_only_looked_for() -> None:
    """A snapshot without a branch: a second copy could count."""

    async def run() -> None:
        world = World()
        wire = Wire(world, await world.with_table(), ["lost-before"], [])
        change = TableChange([], [add(snapshot(OURS, None))])
        outcome = await CommitResolver(a_caller(), "commit", change, wire.send, wire.look).settle()
        assert isinstance(outcome, CommitUnknown)
        assert wire.sent == 1

    asyncio.run(run())


def test_a_table_that_is_gone_may_have_got_it_before() -> None:
    """It may live on under another name."""

    async def run() -> None:
        world = World()
        wire = Wire(world, await world.with_table(), ["lost-before"], [])
        await world.catalog.tables.drop(wire.identifier)
        settlement = CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.look)
        assert isinstance(await settlement.settle(), CommitUnknown)
        with pytest.raises(errors.UnknownTable):
            await CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.look).settle()

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["lost-before", "lost-after"])
def test_a_table_that_was_renamed_and_made_anew_may_have_it_under_its_other_name(fault: str) -> None:
    async def run() -> None:
        world = World()
        name = await world.with_table()
        catalog = EmbeddedCatalog(world.catalog)
        wire = Wire(world, name, [fault], [])
        change = wire.change()
        uuid = (await catalog.load(name)).uuid
        change = TableChange([*change.requirements, {"type": "assert-table-uuid", "uuid": uuid}], change.updates)
        new = Identifier(name.namespace, "renamed")

        async def send() -> LoadedTable:
            try:
                return await wire.send()
            finally:
                await catalog.rename(name, new)
                await world.with_table(name.name)

        outcome = await CommitResolver(a_caller(), "commit", change, send, wire.look).settle()
        assert isinstance(outcome, CommitUnknown), outcome
        assert wire.sent == 1
        found = [one["snapshot-id"] for one in (await catalog.load(new)).metadata["snapshots"]]
        assert (OURS in found) == (fault == "lost-after"), "either may be true"

    asyncio.run(run())


def test_one_of_several_tables_that_was_renamed_and_made_anew_may_have_it_too() -> None:
    async def run() -> None:
        world = World()
        names = [await world.with_table(name) for name in ("a", "b")]
        catalog = EmbeddedCatalog(world.catalog)
        changes = {}
        for name in names:
            change = Wire(world, name, [], []).change()
            need = {"type": "assert-table-uuid", "uuid": (await catalog.load(name)).uuid}
            changes[name] = TableChange([*change.requirements, need], change.updates)

        async def send() -> dict[str, Any]:
            await catalog.commit_all(changes)
            await catalog.rename(names[1], Identifier(names[1].namespace, "renamed"))
            await world.with_table("b")
            raise errors.StorageUnavailable("cut", is_ambiguous=True)

        first, second = (await MultiTableCommit(a_caller(), changes, send, catalog.load).settle()).values()
        assert isinstance(first, CommitDone)
        assert isinstance(second, CommitUnknown)

    asyncio.run(run())


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_our_own_catalog_says_why_it_refused_one_table_or_several(names: list[str]) -> None:
    async def run() -> None:
        world = World()
        tables = [await world.with_table(name) for name in names]
        need = {
            "type": "assert-icestream-range",
            "topic-id": 1,
            "round-id": "00000000-0000-4000-8000-000000000000",
            "pipeline-epoch": 1,
            "ranges": [{"shard": 0, "epoch": 0, "start": 0, "end": 1}],
        }
        found = await EmbeddedCatalog(world.catalog).commit_all({one: TableChange([need], []) for one in tables})
        for outcome in found.values():
            assert isinstance(outcome, CommitRefused)
            assert outcome.details["reason"] == "not_bound"

    asyncio.run(run())


def test_what_stays_unreadable_is_unknown_and_is_not_sent_again() -> None:
    async def run() -> None:
        world = World()
        wire = Wire(world, await world.with_table(), ["lost-after"], ["lost-before"] * 999)
        outcome = await CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.look).settle()
        assert isinstance(outcome, CommitUnknown)
        assert wire.sent == 1

    asyncio.run(run())


@given(st.lists(st.sampled_from(["answered", "refused", "lost-before", "lost-after"]), max_size=5))
def test_a_creation_happens_once_and_is_told_truly(faults: list[str]) -> None:
    async def run() -> None:
        made: list[str] = []
        left = list(faults)

        async def send() -> str:
            fault = left.pop(0) if left else "answered"
            if fault == "refused":
                raise errors.StorageUnavailable("no connection")
            if fault == "lost-before":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            if made:
                raise errors.AlreadyExists("it is there")
            made.append("x")
            if fault == "lost-after":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            return "answer"

        async def is_done() -> bool:
            return bool(made)

        assert await resolve_change(a_caller(), "create", send, is_done) in ("answer", None)
        assert made == ["x"]

    asyncio.run(run())


@given(st.sampled_from(["answered", "lost-before", "lost-after", "doubled"]), st.booleans(), st.booleans())
def test_several_tables_are_all_judged_by_what_they_say(fault: str, is_overtaken: bool, is_unreadable: bool) -> None:
    async def run() -> None:
        world = World()
        names = [await world.with_table(name) for name in ("a", "b")]
        wires = {name: Wire(world, name, [], []) for name in names}
        catalog = EmbeddedCatalog(world.catalog)
        changes = {name: wires[name].change() for name in names}
        if is_overtaken:
            await wires[names[1]].append_of_others()
        faults = [fault]

        async def send() -> dict[str, Any]:
            now = faults.pop(0) if faults else "answered"
            if now == "lost-before":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            asked = {name: CommitRequest(one.requirements, one.updates) for name, one in changes.items()}
            await world.catalog.commits.commit_all(asked)
            if now == "doubled":
                await world.catalog.commits.commit_all(asked)
            if now == "lost-after":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            return {}

        async def load(name: Any) -> LoadedTable:
            if is_unreadable:
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            return await catalog.load(name)

        outcomes = await MultiTableCommit(a_caller(), changes, send, load).settle()
        for name, outcome in outcomes.items():
            found = [one["snapshot-id"] for one in (await catalog.load(name)).metadata["snapshots"]]
            if isinstance(outcome, CommitDone):
                assert OURS in found
            elif isinstance(outcome, CommitRefused):
                assert OURS not in found
            else:
                assert is_unreadable
        if is_overtaken and not is_unreadable:
            assert [isinstance(one, CommitRefused) and one.is_bystander for one in outcomes.values()] == [True, False]

    asyncio.run(run())


def test_a_conflict_of_a_repeat_says_nothing_about_the_copy_that_is_still_on_its_way() -> None:
    """The server refuses the repeat for a reason of its own; then the first copy arrives."""

    async def run() -> None:
        world = World()
        names = [await world.with_table(name) for name in ("a", "b")]
        changes = {name: Wire(world, name, [], []).change() for name in names}
        catalog = EmbeddedCatalog(world.catalog)

        def answers(name: Any) -> list[Exception]:
            return [errors.StorageUnavailable("cut", is_ambiguous=True), *[errors.CommitConflict("busy")] * 99]

        async def settle_one(name: Any) -> CommitOutcome:
            planned = answers(name)

            async def send() -> LoadedTable:
                raise planned.pop(0)

            return await CommitResolver(a_caller(), "commit", changes[name], send, lambda: catalog.load(name)).settle()

        async def settle_all() -> CommitOutcome:
            planned = answers(None)

            async def send() -> dict[str, Any]:
                raise planned.pop(0)

            (outcome, _) = (await MultiTableCommit(a_caller(), changes, send, catalog.load).settle()).values()
            return outcome

        assert isinstance(await settle_one(names[0]), CommitUnknown)
        assert isinstance(await settle_all(), CommitUnknown)

    asyncio.run(run())
