"""What one topic could give to a round: its stretches of the log from where its table ends, without a hole.

Per shard the stretches follow each other in the order of their offsets and are of one epoch (a commit extends one run).
They are offered file by file; files of a spill log come first, because they hold what is older (hazard 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from icestream.model.backlog_messages import BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.pipeline import offset_gaps
from icestream.pipeline.round_plan import OffsetRange, ShardPlan

# A place in the order of files, and the stretch.
Held = tuple[int, BacklogRange]


class Piece(NamedTuple):
    place: int  # of the first file that may hold what follows it, too
    file: int  # which of the files
    position: int
    wanted: OffsetRange
    bytes: int


class Share(NamedTuple):
    pieces: list[Piece]  # taking any number from the front leaves no hole
    fault: str = ""  # why there is none, although there should be


def in_order(files: Sequence[BacklogFile]) -> list[BacklogFile]:
    return sorted(files, key=lambda file: (not file.spill, file.number))


def by_shard(files: Sequence[BacklogFile]) -> dict[tuple[int, int], list[Held]]:
    found: dict[tuple[int, int], list[Held]] = {}
    for place, file in enumerate(files):
        for stretch in file.stretches:
            found.setdefault((stretch.topic_id, stretch.shard), []).append((place, stretch))
    for held in found.values():
        held.sort(key=lambda one: one[1].start)
    return found


def share_of(topic: TopicBacklog, positions: Mapping[int, int], held: Mapping[tuple[int, int], list[Held]]) -> Share:
    pieces: list[Piece] = []
    faults: list[str] = []
    for shard in topic.shards:
        stretches = held.get((topic.topic_id, shard.shard), [])
        if shard.shard not in positions:
            faults.append(f"the catalog knows no position of shard {shard.shard}")
            continue
        found, fault = _of_shard(topic.topic_id, shard, positions[shard.shard], stretches)
        pieces += found
        faults += [fault] if fault else []
    pieces.sort(key=lambda piece: piece.place)
    return Share(pieces, "; ".join(faults))


def _of_shard(topic_id: int, shard: ShardBacklog, start: int, held: list[Held]) -> tuple[list[Piece], str]:
    pieces: list[Piece] = []
    next_offset = offset_gaps.past(shard.gaps, start)
    place = epoch = -1
    for at, stretch in held:
        end = min(stretch.end, shard.synced)
        if end <= next_offset:
            continue
        if pieces and stretch.epoch != epoch:
            break
        if stretch.start > next_offset:
            fault = f"shard {shard.shard}: the table ends at {start}, the log goes on at {stretch.start}"
            return pieces, "" if pieces else fault
        place, epoch = max(place, at), stretch.epoch
        wanted = OffsetRange(topic_id, shard.shard, epoch, next_offset, end)
        size = stretch.bytes * (end - next_offset) // (stretch.end - stretch.start)
        pieces.append(Piece(place, at, stretch.position, wanted, size))
        next_offset = offset_gaps.past(shard.gaps, end)
    return pieces, ""


def shard_plans(topic: TopicBacklog, positions: Mapping[int, int], taken: Sequence[Piece]) -> list[ShardPlan]:
    ends: dict[int, OffsetRange] = {}
    for piece in taken:
        last = ends.get(piece.wanted.shard)
        if last is None or last.end < piece.wanted.end:
            ends[piece.wanted.shard] = piece.wanted
    return [
        ShardPlan(
            one.shard,
            ends[one.shard].epoch,
            positions[one.shard],
            min(offset_gaps.past(one.gaps, ends[one.shard].end), max(one.synced, ends[one.shard].end)),
            one.gaps,
        )
        for one in topic.shards
        if one.shard in ends
    ]
