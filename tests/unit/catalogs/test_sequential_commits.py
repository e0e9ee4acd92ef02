"""Commits to several tables of a catalog that takes one at a time: a failure never hides the commits that were done."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalogs.sequential_commits import NOT_TRIED, commit_sequentially
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitRefused, TableChange
from icestream.iceberg.identifier import Identifier

A, B, C = (Identifier(("n",), name) for name in "abc")
CHANGES = dict.fromkeys((A, B, C), TableChange([], []))


class FailingCommits:
    """The commits of a catalog that fails for one table."""

    def __init__(self, failing: Identifier, error: errors.IcestreamError) -> None:
        self.failing, self.error = failing, error
        self.calls: list[Identifier] = []

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        self.calls.append(identifier)
        if identifier == self.failing:
            raise self.error
        return CommitDone(None)


def test_an_error_of_the_first_table_changes_nothing() -> None:
    commits = FailingCommits(A, errors.UnknownTable("there is no a"))
    with pytest.raises(errors.UnknownTable):
        asyncio.run(commit_sequentially(CHANGES, commits.commit))
    assert commits.calls == [A]


def test_a_later_refusal_keeps_the_outcomes_of_the_others() -> None:
    commits = FailingCommits(B, errors.UnknownTable("there is no b"))
    outcomes = asyncio.run(commit_sequentially(CHANGES, commits.commit))
    assert outcomes == {
        A: CommitDone(None),
        B: CommitRefused("there is no b", details={"code": "unknown_table"}),
        C: CommitDone(None),
    }


def test_tables_after_an_unavailable_catalog_are_not_tried() -> None:
    commits = FailingCommits(B, errors.StorageUnavailable("away"))
    outcomes = asyncio.run(commit_sequentially(CHANGES, commits.commit))
    assert commits.calls == [A, B]
    assert outcomes[A] == CommitDone(None)
    assert outcomes[B] == CommitRefused("away", details={"code": errors.StorageUnavailable.code})
    assert outcomes[C] == CommitRefused(NOT_TRIED, is_bystander=True)
