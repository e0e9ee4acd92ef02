"""Which files may be removed: those that are in no table and can never get into one (hazard 1). Pure.

No file is removed because of a catalog's answer: a refusal, a timeout and a lost reply all look the same to a driver
whose commit has landed. Only the holder of the lease removes files, by the table that it loads after a commit of its
own, and only files that

    no snapshot of the table refers to, whichever branch or tag leads to it, and
    any catalog          were in the table once: the offsets of their round are committed, and their commit was built on
                         a main that is past. They went with the last snapshot that referred to them
    our own catalog      were written under an epoch below the one that the table was last committed under: a round
                         or rewrite of such an epoch is refused for ever
    another catalog      belong to a round all of whose offsets are in the table, and whose commit was built on a main
                         that is not the current one: its requirement can never hold again. The files of a rewrite
                         stay: it has no offsets, and is built again on any main (hazard 96)

Every attempt writes under a new random name, so no file is needed twice. All orders of events are searched by
tests/unit/pipeline/test_file_cleanup_model.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Candidate(NamedTuple):
    """A file that the rule judges."""

    location: str  # in the form of `referenced`
    epoch: int  # of the pipeline when it was written, or the highest possible one
    ends: Mapping[int, int] | None = None  # the end offsets of its round by shard; None: not known any more
    base: int | None = None  # the snapshot that its commit was built on
    was_committed: bool = False  # a snapshot of the table referred to it


class CleanedTable(NamedTuple):
    """The table, loaded after a commit of our own."""

    is_embedded: bool  # in our own catalog
    epoch: int  # of its last commit
    committed: Mapping[int, int]
    main: int | None
    referenced: Collection[str]  # what any snapshot refers to, as objects (location.object_identity)


def may_remove(file: Candidate, table: CleanedTable, is_holder: bool) -> bool:
    """True if the file can never be needed again. `is_holder`: the caller holds the lease."""
    if not is_holder or file.location in table.referenced:
        return False
    if file.was_committed:
        return True
    if table.is_embedded:
        return file.epoch < table.epoch
    if file.ends is None or file.base == table.main:
        return False
    return all(end <= table.committed.get(shard, 0) for shard, end in file.ends.items())
