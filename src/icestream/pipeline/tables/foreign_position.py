"""Where a topic continues whose table is in another catalog (hazards 13, 21). Pure.

No other process compares offsets there, so three sources of the table's progress must agree:

    snapshots   the summary of the last round of this topic in the history of main, or the snapshot about which an
                operator decided (`ForeignTableRecord.base`). If only rewrites are left of the history, the mirror
                counts for them (catalogs/mirror_anchor.py)
    mirror      what we recorded in our metadata store after the last commit, or an operator's decision
    bounds      the highest offset in the files of main, by their manifests

    snapshots      mirror           rows in main                 consequence
    none           none             none                         a fresh table: continue where the log starts
    none           none             some                         stop: it is unknown whose rows these are
    none           present          -                            stop: its history is cut off, rolled back or replaced
    present        none, or behind  not beyond the snapshots     continue after the snapshots: it was not recorded
    present        the same         not beyond the snapshots     continue
    present        ahead            -                            stop: main was rolled back
    present        -                beyond the snapshots         stop: another writer added rows of our offsets

A uuid other than the mirror's is another table: stop. So is a topic that was detached from its table. A stop names the
commands that settle it. Rows that an operator has decided about do not stop a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from icestream import errors
from icestream.catalogs.mirror import ForeignTableRecord

HINT: Final = (
    "look at the table's snapshots; then `icestream lake adopt` (it is right), `rewind` (the log has the rest) "
    "or `recreate` (a fresh table) settles it"
)


class TableProgress(NamedTuple):
    """The progress of a table by its snapshots and files."""

    uuid: str
    committed: Mapping[int, int] | None  # by shard, of the last round in the history of main
    highest_offset: int | None  # in the files of main; None: there are no rows


def next_offsets_of(
    topic: str, progress: TableProgress, mirror: ForeignTableRecord | None, log_starts: Mapping[int, int]
) -> dict[int, int]:
    """Returns the next offset of each shard. `log_starts`: the first offsets of the log. Raises TopicTableConflict."""
    if mirror is not None:
        mirror.check_has_table(topic)
    if mirror is not None and mirror.uuid != progress.uuid:
        raise _disagreement(topic, "it is another table than the one that was written before")
    if progress.committed is None:
        if mirror is not None:
            raise _disagreement(topic, "no snapshot in the history of main records the offsets of the topic")
        if progress.highest_offset is not None:
            raise _disagreement(topic, "it has rows, and no snapshot records which topic they belong to")
        return dict(log_starts)
    mirrored = mirror.committed if mirror is not None else {}
    for shard, end in sorted(mirrored.items()):
        if end > progress.committed.get(shard, 0):
            raise _disagreement(
                topic, f"main holds shard {shard} up to {progress.committed.get(shard, 0)}, and {end} was committed"
            )
    # By offset alone, over all shards: bounds of files are not kept by shard. A row beyond all committed offsets proves
    # that rows were added that no snapshot of ours accounts for.
    highest_committed = max(progress.committed.values(), default=0)
    decided_rows = mirror.rows_up_to if mirror is not None else -1
    if progress.highest_offset is not None and progress.highest_offset >= max(highest_committed, decided_rows + 1):
        raise _disagreement(
            topic, f"main has a row of offset {progress.highest_offset}, and {highest_committed} is what comes next"
        )
    return {**log_starts, **progress.committed}


def _disagreement(topic: str, problem: str) -> errors.TopicTableConflict:
    return errors.TopicTableConflict(
        f"the table of topic {topic} does not agree with what was committed: {problem}", hint=HINT
    )
