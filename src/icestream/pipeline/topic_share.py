"""What one topic could contribute to a round: its stretches of the log from the end of its table on, without a hole.

The stretches of a shard follow each other in the order of their offsets and are of one epoch, because a commit extends
one run. They are offered file by file; files of a spill log come first, because they hold older messages (hazard 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from icestream.model.backlog_messages import BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.pipeline import offset_gaps
from icestream.pipeline.round_plan import OffsetRange, ShardPlan

# The index of a file in the order of files, and a stretch in it.
FileStretch = tuple[int, BacklogRange]


class Piece(NamedTuple):
    """Consecutive offsets of a shard in one log file."""

    order: int  # index of the first file from which on this piece may be taken without a hole
    file: int  # index of the file that holds it
    position: int
    offsets: OffsetRange
    bytes: int


class Share(NamedTuple):
    """What a topic could contribute to a round."""

    pieces: list[Piece]  # any number from the front leaves no hole
    fault: str = ""  # why a shard contributes nothing although it should


def in_order(files: Sequence[BacklogFile]) -> list[BacklogFile]:
    return sorted(files, key=lambda file: (not file.spill, file.number))


def by_shard(files: Sequence[BacklogFile]) -> dict[tuple[int, int], list[FileStretch]]:
    """Returns the stretches of each (topic id, shard), by rising offsets."""
    stretches: dict[tuple[int, int], list[FileStretch]] = {}
    for index, file in enumerate(files):
        for stretch in file.stretches:
            stretches.setdefault((stretch.topic_id, stretch.shard), []).append((index, stretch))
    for entries in stretches.values():
        entries.sort(key=lambda entry: entry[1].start)
    return stretches


def share_of(
    topic: TopicBacklog, positions: Mapping[int, int], stretches: Mapping[tuple[int, int], list[FileStretch]]
) -> Share:
    """`positions`: the next offset of each shard. `stretches`: of `by_shard`."""
    pieces: list[Piece] = []
    faults: list[str] = []
    for shard in topic.shards:
        if shard.shard not in positions:
            faults.append(f"the catalog has no position of shard {shard.shard}")
            continue
        shard_stretches = stretches.get((topic.topic_id, shard.shard), [])
        shard_pieces, fault = _shard_pieces(topic.topic_id, shard, positions[shard.shard], shard_stretches)
        pieces += shard_pieces
        faults += [fault] if fault else []
    # By file and not by shard: where the budget ends, all shards end at about the same time, and log files can be
    # freed.
    pieces.sort(key=lambda piece: piece.order)
    return Share(pieces, "; ".join(faults))


def _shard_pieces(
    topic_id: int, shard: ShardBacklog, start: int, stretches: list[FileStretch]
) -> tuple[list[Piece], str]:
    """Returns the pieces of one shard from `start` on, and why there are none although there should be."""
    pieces: list[Piece] = []
    next_offset = offset_gaps.past(shard.gaps, start)
    order = epoch = -1
    for index, stretch in stretches:
        # Never beyond *synced*: a power loss could take back what a table has, and assign its offsets again (hazard 3).
        end = min(stretch.end, shard.synced)
        if end <= next_offset:
            continue
        # A commit extends one run of the table, and a run has one epoch: the next epoch follows in the next round.
        if pieces and stretch.epoch != epoch:
            break
        if stretch.start > next_offset:
            # A hole behind usable pieces is not reported yet: the table has not reached it.
            fault = f"shard {shard.shard}: the table ends at {start}, the log continues at {stretch.start}"
            return pieces, "" if pieces else fault
        # `order` never falls within a shard: its pieces are taken in the order of their offsets, even if a later one is
        # in an earlier file (a spill log).
        order, epoch = max(order, index), stretch.epoch
        offsets = OffsetRange(topic_id, shard.shard, epoch, next_offset, end)
        # In proportion to the offsets that the table still lacks.
        size = stretch.bytes * (end - next_offset) // (stretch.end - stretch.start)
        pieces.append(Piece(order, index, stretch.position, offsets, size))
        next_offset = offset_gaps.past(shard.gaps, end)
    return pieces, ""


def shard_plans(topic: TopicBacklog, positions: Mapping[int, int], pieces: Sequence[Piece]) -> list[ShardPlan]:
    """Returns the offsets that a commit of these pieces claims."""
    last_ranges: dict[int, OffsetRange] = {}
    for piece in pieces:
        last = last_ranges.get(piece.offsets.shard)
        if last is None or last.end < piece.offsets.end:
            last_ranges[piece.offsets.shard] = piece.offsets
    return [
        ShardPlan(
            shard.shard,
            last_ranges[shard.shard].epoch,
            positions[shard.shard],
            min(
                offset_gaps.past(shard.gaps, last_ranges[shard.shard].end),
                max(shard.synced, last_ranges[shard.shard].end),
            ),
            shard.gaps,
        )
        for shard in topic.shards
        if shard.shard in last_ranges
    ]
