"""Which files may be removed: those that are in no table and can never get into one (hazard 1). Pure.

Nobody removes a file because of an answer: a refusal, a time-out and a lost answer all look the same to a driver whose
commit has landed. Only the holder of the lease removes, by what it loads after a commit of its own, and only what

    no snapshot of the table names, whichever branch or tag leads to it, and
    any catalog          was in the table once: the offsets of the round that brought it are committed, and its commit
                         was made for a main that is past. It went with the last snapshot that named it
    our own catalog      was written under an epoch below the one that the table has committed under: a claim of such an
                         epoch is refused for ever
    another catalog      belongs to a round all of whose offsets are in the table, and whose commit was made for a main
                         that is not the present one: its requirement can never hold again

Every attempt writes under a new random name, so no file is needed twice. Searched in all orders of events by
tests/unit/pipeline/test_clean_up_model.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Candidate(NamedTuple):
    location: str
    epoch: int  # of the pipeline when it was written, or the highest that it can have been
    ends: Mapping[int, int] | None = None  # per shard of its round; None: nobody knows any more
    base: int | None = None  # the snapshot that was main when its commit was made
    has_landed: bool = False  # somebody saw the table name it


class TableState(NamedTuple):
    """The table, loaded after a commit of our own."""

    is_own: bool  # in our own catalog
    epoch: int  # that it has committed under
    committed: Mapping[int, int]
    main: int | None
    named: Collection[str]  # by any snapshot


def may_remove(one: Candidate, seen: TableState, is_holder: bool) -> bool:
    if not is_holder or one.location in seen.named:
        return False
    if one.has_landed:
        return True
    if seen.is_own:
        return one.epoch < seen.epoch
    if one.ends is None or one.base == seen.main:
        return False
    return all(end <= seen.committed.get(shard, 0) for shard, end in one.ends.items())
