"""Commits to several tables one after the other, for a catalog without multi-table commits.

the first fails               the error is raised: nothing was changed
a later one fails             that is its outcome: refused, with the error code in `details`; earlier outcomes stay
the catalog is unavailable    the same, and the tables after it are not tried: they are bystanders
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from icestream import errors
from icestream.catalogs.table_catalog import CommitOutcome, CommitRefused, TableChange
from icestream.iceberg.identifier import Identifier

NOT_TRIED: Final = "not tried: the catalog became unavailable"


async def commit_sequentially(
    changes: Mapping[Identifier, TableChange], commit: Callable[[Identifier, TableChange], Awaitable[CommitOutcome]]
) -> dict[Identifier, CommitOutcome]:
    """Returns the outcome of each table. Raises the error of the first table."""
    outcomes: dict[Identifier, CommitOutcome] = {}
    is_unavailable = False
    for identifier, change in changes.items():
        if is_unavailable:
            outcomes[identifier] = CommitRefused(NOT_TRIED, is_bystander=True)
            continue
        try:
            outcomes[identifier] = await commit(identifier, change)
        except errors.IcestreamError as error:
            # With the first table nothing was changed yet, so the caller may retry the whole. Later the outcomes of the
            # others must not be lost.
            if not outcomes:
                raise
            is_unavailable = isinstance(error, errors.StorageUnavailable)
            outcomes[identifier] = CommitRefused(error.message, details={"code": error.code})
    return outcomes
