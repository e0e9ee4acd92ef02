"""Where a topic goes on whose table is in another catalog (hazards 13, 21). Pure.

Nobody but us compares offsets there, so three things that say how far the table has come must agree:

    snapshots   the last round of this topic in the history of main says it (the summary of its snapshot), or the
                snapshot about which an operator said it (`Mirror.base`). Where rewrites alone are left of the history,
                they stand where the mirror does (catalogs/mirror_anchor.py)
    mirror      what we noted in our metadata store behind the last commit, or an operator's decision
    bounds      the highest offset in the files of main, by their manifests

    snapshots      mirror           rows in main                 then
    none           none             none                         a fresh table: it gets what the log has
    none           none             some                         stop: whose rows these are, nobody knows
    none           there            -                            stop: its history is cut off, rolled back or replaced
    there          none, or behind  not beyond the snapshots     go on where the snapshots say: it was not noted
    there          the same         not beyond the snapshots     go on
    there          ahead            -                            stop: main was rolled back
    there          -                beyond the snapshots         stop: others added rows of our offsets

Another uuid than the mirror's is another table: stop. So does a topic that was parted from its table. A stop names the
commands that settle it. Rows that an operator knew of stop nobody.
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
    """What the table says."""

    uuid: str
    committed: Mapping[int, int] | None  # of the last round in the history of main
    rows_beyond: int | None  # the highest offset in files of main; None: there are no rows


def next_offsets_of(
    topic: str, standing: TableProgress, mirror: ForeignTableRecord | None, log_starts: Mapping[int, int]
) -> dict[int, int]:
    """Per shard the next offset. `log_starts`: the first that the log has. Raises TopicTableConflict."""
    if mirror is not None:
        mirror.check_has_table(topic)
    if mirror is not None and mirror.uuid != standing.uuid:
        raise _stop(topic, "it is another table than the one that was written before")
    if standing.committed is None:
        if mirror is not None:
            raise _stop(topic, "no snapshot in the history of main says how far it has come")
        if standing.rows_beyond is not None:
            raise _stop(topic, "it has rows, and no snapshot says whose")
        return dict(log_starts)
    known = mirror.committed if mirror is not None else {}
    for shard, end in sorted(known.items()):
        if end > standing.committed.get(shard, 0):
            raise _stop(
                topic, f"main holds shard {shard} up to {standing.committed.get(shard, 0)}, and {end} was committed"
            )
    highest = max(standing.committed.values(), default=0)
    known_rows = mirror.rows_up_to if mirror is not None else -1
    if standing.rows_beyond is not None and standing.rows_beyond >= max(highest, known_rows + 1):
        raise _stop(topic, f"main has a row of offset {standing.rows_beyond}, and {highest} is what comes next")
    return {**log_starts, **standing.committed}


def _stop(topic: str, what: str) -> errors.TopicTableConflict:
    return errors.TopicTableConflict(
        f"the table of topic {topic} does not agree with what was committed: {what}", hint=HINT
    )
