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
from tests.support.fake_clock import FakeClock
from tests.support.tables import add, point, snapshot
from tests.support.warehouse import CatalogWorld

OURS, THEIRS = 7, 20
# What may happen to one copy of a commit.
FAULTS = [
    "answered", "refused", "lost-before", "lost-after", "delayed", "doubled", "doubled-400", "denied", "overtaken"
]  # fmt: skip
READS = ["answered", "answered", "answered", "lost-before"]


@dataclass
class FaultyConnection:
    """Between a settlement and a catalog."""

    world: CatalogWorld
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
        committed = await self.world.catalog.commits.commit(
            self.identifier, CommitRequest(change.requirements, change.updates)
        )
        return LoadedTable(committed.table.as_json())

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
        committed = await self._commit(change)
        if fault == "lost-after":
            raise errors.StorageUnavailable("cut off", is_ambiguous=True)
        return committed

    async def load(self) -> LoadedTable:
        if self.reads and self.reads.pop(0) == "lost-before":
            raise errors.StorageUnavailable("cut off", is_ambiguous=True)
        if self.delayed and len(self.reads) % 2:
            await self._swallow(self.delayed.pop())  # it comes while we read
        return LoadedTable((await self.world.catalog.tables.load(self.identifier)).table.as_json())

    async def append_of_others(self) -> None:
        metadata = (await self.world.catalog.tables.load(self.identifier)).table
        self.others += 1
        number = THEIRS + self.others
        updates = [add(snapshot(number, metadata.current_snapshot_id)), point("main", number)]
        await self.world.catalog.commits.commit(self.identifier, CommitRequest([], updates))

    async def _swallow(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except errors.IcestreamError:
            return

    async def end(self) -> list[int]:
        """Delivers all delayed requests. Returns the snapshots of the table."""
        while self.delayed:
            await self._swallow(self.delayed.pop())
        return [
            entry["snapshot-id"] for entry in (await self.world.catalog.tables.load(self.identifier)).table.snapshots
        ]


def a_caller() -> StorageCaller:
    patience = CallTimeouts(request_seconds=1.0, retry_seconds_min=0.05, retry_seconds_max=0.2)
    return StorageCaller(
        "test", FakeClock(auto_advance=True), SeededRandomness(2), patience, CircuitBreaker(failures_max=10_000)
    )


@given(st.lists(st.sampled_from(FAULTS), max_size=6), st.lists(st.sampled_from(READS), max_size=6))
def test_the_outcome_is_true_whatever_happens_on_the_wire(faults: list[str], reads: list[str]) -> None:
    async def run() -> None:
        world = CatalogWorld()
        wire = FaultyConnection(world, await world.with_table(), faults, reads)
        outcome: CommitOutcome | errors.IcestreamError
        try:
            outcome = await CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.load).resolve()
        except (errors.StorageUnavailable, errors.AccessDenied, errors.InvalidInput) as error:
            outcome = error
        before = [entry["snapshot-id"] for entry in (await world.catalog.tables.load(wire.identifier)).table.snapshots]
        after = await wire.end()
        assert after.count(OURS) <= 1
        if isinstance(outcome, CommitDone):
            assert OURS in before, "reported and not there"
            assert outcome.table is not None
            assert OURS in [entry["snapshot-id"] for entry in outcome.table.metadata["snapshots"]]
        elif isinstance(outcome, CommitUnknown):
            assert set(wire.faults[: wire.sent]) & {"lost-before", "lost-after", "delayed"}
        else:
            assert OURS not in after, f"reported as not done ({outcome}), and it is there"

    asyncio.run(run())


def test_a_commit_that_must_not_be_repeated_is_only_looked_up() -> None:
    """A snapshot without a branch: a second copy could count."""

    async def run() -> None:
        world = CatalogWorld()
        wire = FaultyConnection(world, await world.with_table(), ["lost-before"], [])
        change = TableChange([], [add(snapshot(OURS, None))])
        outcome = await CommitResolver(a_caller(), "commit", change, wire.send, wire.load).resolve()
        assert isinstance(outcome, CommitUnknown)
        assert wire.sent == 1

    asyncio.run(run())


def test_a_missing_table_may_have_had_the_commit_before() -> None:
    """The table may exist under another name, with the commit."""

    async def run() -> None:
        world = CatalogWorld()
        wire = FaultyConnection(world, await world.with_table(), ["lost-before"], [])
        await world.catalog.tables.drop(wire.identifier)
        settlement = CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.load)
        assert isinstance(await settlement.resolve(), CommitUnknown)
        with pytest.raises(errors.UnknownTable):
            await CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.load).resolve()

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["lost-before", "lost-after"])
def test_a_renamed_and_recreated_table_may_have_the_commit_under_its_other_name(fault: str) -> None:
    async def run() -> None:
        world = CatalogWorld()
        name = await world.with_table()
        catalog = EmbeddedCatalog(world.catalog)
        wire = FaultyConnection(world, name, [fault], [])
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

        outcome = await CommitResolver(a_caller(), "commit", change, send, wire.load).resolve()
        assert isinstance(outcome, CommitUnknown), outcome
        assert wire.sent == 1
        snapshot_ids = [entry["snapshot-id"] for entry in (await catalog.load(new)).metadata["snapshots"]]
        assert (OURS in snapshot_ids) == (fault == "lost-after"), "either may be true"

    asyncio.run(run())


def test_one_of_several_renamed_tables_may_have_the_commit_too() -> None:
    async def run() -> None:
        world = CatalogWorld()
        names = [await world.with_table(name) for name in ("a", "b")]
        catalog = EmbeddedCatalog(world.catalog)
        changes = {}
        for name in names:
            change = FaultyConnection(world, name, [], []).change()
            need = {"type": "assert-table-uuid", "uuid": (await catalog.load(name)).uuid}
            changes[name] = TableChange([*change.requirements, need], change.updates)

        async def send() -> dict[str, Any]:
            await catalog.commit_all(changes)
            await catalog.rename(names[1], Identifier(names[1].namespace, "renamed"))
            await world.with_table("b")
            raise errors.StorageUnavailable("cut", is_ambiguous=True)

        first, second = (await MultiTableCommit(a_caller(), changes, send, catalog.load).resolve()).values()
        assert isinstance(first, CommitDone)
        assert isinstance(second, CommitUnknown)

    asyncio.run(run())


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_the_embedded_catalog_reports_why_it_refused_one_table_or_several(names: list[str]) -> None:
    async def run() -> None:
        world = CatalogWorld()
        tables = [await world.with_table(name) for name in names]
        need = {
            "type": "assert-icestream-range",
            "topic-id": 1,
            "round-id": "00000000-0000-4000-8000-000000000000",
            "pipeline-epoch": 1,
            "ranges": [{"shard": 0, "epoch": 0, "start": 0, "end": 1}],
        }
        outcomes = await EmbeddedCatalog(world.catalog).commit_all({table: TableChange([need], []) for table in tables})
        for outcome in outcomes.values():
            assert isinstance(outcome, CommitRefused)
            assert outcome.details["reason"] == "not_bound"

    asyncio.run(run())


def test_an_unreadable_table_is_unknown_and_not_committed_again() -> None:
    async def run() -> None:
        world = CatalogWorld()
        wire = FaultyConnection(world, await world.with_table(), ["lost-after"], ["lost-before"] * 999)
        outcome = await CommitResolver(a_caller(), "commit", wire.change(), wire.send, wire.load).resolve()
        assert isinstance(outcome, CommitUnknown)
        assert wire.sent == 1

    asyncio.run(run())


@given(st.lists(st.sampled_from(["answered", "refused", "lost-before", "lost-after"]), max_size=5))
def test_a_creation_is_applied_once_and_reported_truthfully(faults: list[str]) -> None:
    async def run() -> None:
        foreign_commits: list[str] = []
        left = list(faults)

        async def send() -> str:
            fault = left.pop(0) if left else "answered"
            if fault == "refused":
                raise errors.StorageUnavailable("no connection")
            if fault == "lost-before":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            if foreign_commits:
                raise errors.AlreadyExists("it is there")
            foreign_commits.append("x")
            if fault == "lost-after":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            return "answer"

        async def is_done() -> bool:
            return bool(foreign_commits)

        assert await resolve_change(a_caller(), "create", send, is_done) in ("answer", None)
        assert foreign_commits == ["x"]

    asyncio.run(run())


@given(st.sampled_from(["answered", "lost-before", "lost-after", "doubled"]), st.booleans(), st.booleans())
def test_each_of_several_tables_is_judged_by_its_own_state(fault: str, is_overtaken: bool, is_unreadable: bool) -> None:
    async def run() -> None:
        world = CatalogWorld()
        names = [await world.with_table(name) for name in ("a", "b")]
        wires = {name: FaultyConnection(world, name, [], []) for name in names}
        catalog = EmbeddedCatalog(world.catalog)
        changes = {name: wires[name].change() for name in names}
        if is_overtaken:
            await wires[names[1]].append_of_others()
        faults = [fault]

        async def send() -> dict[str, Any]:
            now = faults.pop(0) if faults else "answered"
            if now == "lost-before":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            requests = {name: CommitRequest(change.requirements, change.updates) for name, change in changes.items()}
            await world.catalog.commits.commit_all(requests)
            if now == "doubled":
                await world.catalog.commits.commit_all(requests)
            if now == "lost-after":
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            return {}

        async def load(name: Any) -> LoadedTable:
            if is_unreadable:
                raise errors.StorageUnavailable("cut", is_ambiguous=True)
            return await catalog.load(name)

        outcomes = await MultiTableCommit(a_caller(), changes, send, load).resolve()
        for name, outcome in outcomes.items():
            snapshot_ids = [entry["snapshot-id"] for entry in (await catalog.load(name)).metadata["snapshots"]]
            if isinstance(outcome, CommitDone):
                assert OURS in snapshot_ids
            elif isinstance(outcome, CommitRefused):
                assert OURS not in snapshot_ids
            else:
                assert is_unreadable
        if is_overtaken and not is_unreadable:
            assert [isinstance(outcome, CommitRefused) and outcome.is_bystander for outcome in outcomes.values()] == [
                True,
                False,
            ]

    asyncio.run(run())


def test_a_conflict_of_a_repeat_leaves_the_delayed_copy_undecided() -> None:
    """The server refuses the repeat for a reason of its own; then the first copy arrives."""

    async def run() -> None:
        world = CatalogWorld()
        names = [await world.with_table(name) for name in ("a", "b")]
        changes = {name: FaultyConnection(world, name, [], []).change() for name in names}
        catalog = EmbeddedCatalog(world.catalog)

        def answers(name: Any) -> list[Exception]:
            return [errors.StorageUnavailable("cut", is_ambiguous=True), *[errors.CommitConflict("busy")] * 99]

        async def settle_one(name: Any) -> CommitOutcome:
            planned = answers(name)

            async def send() -> LoadedTable:
                raise planned.pop(0)

            return await CommitResolver(a_caller(), "commit", changes[name], send, lambda: catalog.load(name)).resolve()

        async def settle_all() -> CommitOutcome:
            planned = answers(None)

            async def send() -> dict[str, Any]:
                raise planned.pop(0)

            (outcome, _) = (await MultiTableCommit(a_caller(), changes, send, catalog.load).resolve()).values()
            return outcome

        assert isinstance(await settle_one(names[0]), CommitUnknown)
        assert isinstance(await settle_all(), CommitUnknown)

    asyncio.run(run())
