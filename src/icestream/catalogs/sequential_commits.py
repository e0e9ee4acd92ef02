"""Commits to several tables where a catalog takes one at a time: what was done stays known, whatever comes behind it.

the first fails         the error is raised: nothing was changed
a later one fails       that is its outcome: a conflict with the reason in `details`, because it is in no table
the catalog is away     the same, and those behind it are not tried: nothing stood in their own way
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from icestream import errors
from icestream.catalogs.table_catalog import CommitOutcome, CommitRefused, TableChange
from icestream.iceberg.identifier import Identifier

NOT_TRIED: Final = "the catalog was away before its turn"


async def commit_sequentially(
    changes: Mapping[Identifier, TableChange], commit: Callable[[Identifier, TableChange], Awaitable[CommitOutcome]]
) -> dict[Identifier, CommitOutcome]:
    found: dict[Identifier, CommitOutcome] = {}
    is_away = False
    for identifier, change in changes.items():
        if is_away:
            found[identifier] = CommitRefused(NOT_TRIED, is_bystander=True)
            continue
        try:
            found[identifier] = await commit(identifier, change)
        except errors.IcestreamError as error:
            if not found:
                raise
            is_away = isinstance(error, errors.StorageUnavailable)
            found[identifier] = CommitRefused(error.message, details={"code": error.code})
    return found
