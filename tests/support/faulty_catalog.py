"""The catalog of tests: a real one whose next replies to commits are chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from icestream import errors
from icestream.catalogs.table_catalog import (
    CommitDone,
    CommitOutcome,
    CommitRefused,
    CommitUnknown,
    LoadedTable,
    TableCatalog,
    TableChange,
)
from icestream.iceberg.identifier import Identifier

Changes = Mapping[Identifier, TableChange]
Outcomes = dict[Identifier, CommitOutcome]


class FaultyCatalog:
    """A TableCatalog before another one. `faults`: what happens to the next commits, one for each; "" is none.

    unavailable          not applied, StorageUnavailable
    applied, unavailable applied, StorageUnavailable
    lost                 applied, the outcome is unknown
    unknown              not applied, the outcome is unknown
    late                 applied before the next commit, the outcome is unknown
    twice                applied twice, the second reply is returned
    twice, late          applied, and once more before the next commit
    read back            applied, and the outcome was learned by reading
    conflict             refused
    first refused        the first table is refused, the others because of it
    all bystanders       every table is refused because of another one
    unknown table        UnknownTable
    invalid              InvalidInput

    `standing_fault` applies to every commit for which `faults` has none. `loads` counts loads of tables.
    """

    def __init__(self, inner: TableCatalog, *faults: str, one_by_one: bool = False) -> None:
        """`one_by_one`: several tables are committed by a commit each, as catalogs without transactions are used."""
        self.inner = inner
        self.faults = [*faults]
        self.standing_fault = ""
        self.loads = 0
        self._one_by_one = one_by_one
        self._late: list[Changes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def load(self, identifier: Identifier) -> LoadedTable:
        self.loads += 1
        return await self.inner.load(identifier)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        return (await self._answer({identifier: change}, self._apply_each))[identifier]

    async def commit_all(self, changes: Changes) -> Outcomes:
        return await self._answer(changes, self._apply_each if self._one_by_one else self.inner.commit_all)

    async def _apply_each(self, changes: Changes) -> Outcomes:
        return {identifier: await self.inner.commit(identifier, change) for identifier, change in changes.items()}

    async def _answer(self, changes: Changes, apply: Callable[[Changes], Awaitable[Outcomes]]) -> Outcomes:
        for late in self._late:
            await self._apply_each(late)
        self._late.clear()
        fault = self.faults.pop(0) if self.faults else self.standing_fault
        if fault in ("applied, unavailable", "lost", "twice"):
            await apply(changes)
        elif fault in ("late", "twice, late"):
            self._late.append(changes)
        match fault:
            case "unavailable" | "applied, unavailable":
                raise errors.StorageUnavailable("the catalog is unavailable")
            case "lost" | "unknown" | "late":
                return dict.fromkeys(changes, CommitUnknown(fault))
            case "conflict":
                return dict.fromkeys(changes, CommitRefused("concurrent change of the table"))
            case "first refused":
                first, *others = changes
                outcomes: Outcomes = {first: CommitRefused("concurrent change of the table")}
                return outcomes | {other: CommitRefused("another", is_bystander=True) for other in others}
            case "all bystanders":
                return dict.fromkeys(changes, CommitRefused("another", is_bystander=True))
            case "unknown table":
                raise errors.UnknownTable("no such table")
            case "invalid":
                raise errors.InvalidInput("one of the changes is invalid")
            case "read back":
                return {
                    identifier: CommitDone(outcome.table, was_read_back=True)
                    if isinstance(outcome, CommitDone)
                    else outcome
                    for identifier, outcome in (await apply(changes)).items()
                }
        return await apply(changes)
