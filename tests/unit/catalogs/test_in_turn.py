"""Several tables of a catalog that takes one at a time: what was done is never forgotten over what failed."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalogs.sequential_commits import NOT_TRIED, commit_sequentially
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitRefused, TableChange
from icestream.iceberg.identifier import Identifier

A, B, C = (Identifier(("n",), name) for name in "abc")
CHANGES = dict.fromkeys((A, B, C), TableChange([], []))


class Servant:
    """A catalog that fails for one table."""

    def __init__(self, failing: Identifier, error: errors.IcestreamError) -> None:
        self.failing, self.error = failing, error
        self.asked: list[Identifier] = []

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        self.asked.append(identifier)
        if identifier == self.failing:
            raise self.error
        return CommitDone(None)


def test_an_error_of_the_first_means_that_nothing_was_changed() -> None:
    servant = Servant(A, errors.UnknownTable("there is no a"))
    with pytest.raises(errors.UnknownTable):
        asyncio.run(commit_sequentially(CHANGES, servant.commit))
    assert servant.asked == [A]


def test_a_table_that_is_refused_later_leaves_the_others_their_outcomes() -> None:
    servant = Servant(B, errors.UnknownTable("there is no b"))
    found = asyncio.run(commit_sequentially(CHANGES, servant.commit))
    assert found == {
        A: CommitDone(None),
        B: CommitRefused("there is no b", details={"code": "unknown_table"}),
        C: CommitDone(None),
    }


def test_behind_a_catalog_that_goes_away_nobody_is_tried() -> None:
    servant = Servant(B, errors.StorageUnavailable("away"))
    found = asyncio.run(commit_sequentially(CHANGES, servant.commit))
    assert servant.asked == [A, B]
    assert found[A] == CommitDone(None)
    assert found[B] == CommitRefused("away", details={"code": errors.StorageUnavailable.code})
    assert found[C] == CommitRefused(NOT_TRIED, is_bystander=True)
