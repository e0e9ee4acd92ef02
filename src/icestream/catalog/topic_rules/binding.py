"""The binding of a table to its topic: what the catalog needs to accept each offset exactly once (hazards 14, 21).

It is stored beside the table's pointer and changes with it in one transaction. The table's properties are a copy for
people and engines; no decision depends on them.

    topic, topic_id    which topic, and which incarnation of it
    pipeline_epoch     the highest lease of a driver that committed: an older one is refused
    runs               per shard (offset_run.py)
    rounds             the last committed rounds: id, snapshot, and a checksum over the claimed ranges
    rewrites           the last committed jobs: id, snapshot, and a checksum over the files of a rewrite (rewrite.py) or
                       retention (retention_claim.py)
    base               the progress of the table when it was adopted on an operator's word (adopt.py), else none: its
                       older snapshots say nothing about this topic
    is_rewound         the committed offsets went back once, or the table was adopted: a snapshot may be ahead of them
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from icestream import errors, limits
from icestream.catalog.topic_rules import offset_run
from icestream.catalog.topic_rules.offset_run import OffsetRun, OffsetRuns
from icestream.catalog.topic_rules.removal import TopicProgress
from icestream.model.topic_name import TopicName


class CommittedRound(msgspec.Struct, frozen=True, array_like=True):
    """A round, or a rewrite, that is in the table."""

    id: bytes
    snapshot_id: int
    claimed: int  # checksum over its ranges or files: the same id with others is not a repeat


class AdoptionBase(msgspec.Struct, frozen=True):
    """The snapshot at which a table was adopted, and the progress that the operator stated for it."""

    snapshot_id: int
    progress: TopicProgress


class Binding(msgspec.Struct, frozen=True):
    """The binding of one table; the head of the module explains each field."""

    topic: str
    topic_id: int
    runs: dict[int, OffsetRuns]
    pipeline_epoch: int = 0
    rounds: tuple[CommittedRound, ...] = ()
    base: AdoptionBase | None = None
    is_rewound: bool = False
    rewrites: tuple[CommittedRound, ...] = ()

    def __post_init__(self) -> None:
        TopicName.parse(self.topic)
        if not self.runs or not all(0 <= shard < limits.SHARDS_PER_TOPIC_MAX for shard in self.runs):
            raise errors.InvalidInput(f"invalid shards of a binding: {sorted(self.runs)[:8]}")
        for runs in self.runs.values():
            offset_run.check_runs(runs)

    def find_round(self, round_id: bytes) -> CommittedRound | None:
        """The round or rewrite of this id; None if none of the last ones has it."""
        committed = (*self.rounds, *self.rewrites)
        return next((committed_round for committed_round in committed if committed_round.id == round_id), None)

    def committed(self) -> dict[int, int]:
        """The committed offsets: per shard the first offset that is not in the table."""
        return {shard: runs[-1].next for shard, runs in sorted(self.runs.items())}

    def positions(self) -> dict[str, dict[str, int]]:
        """The committed offsets with the epochs of the shards, as in the details of a refusal."""
        return {
            str(shard): {"epoch": runs[-1].epoch, "next": runs[-1].next} for shard, runs in sorted(self.runs.items())
        }


def new_binding(topic: str, topic_id: int, shards: Mapping[int, tuple[int, int]]) -> Binding:
    """`shards`: the epoch of each, and the first offset that the table gets (0 for a new topic)."""
    return Binding(
        topic, topic_id, {shard: (OffsetRun(epoch, start, start),) for shard, (epoch, start) in shards.items()}
    )


def with_takeover(binding: Binding, shard: int, epoch: int, start: int) -> tuple[Binding, tuple[int, int]]:
    """The binding after another owner took over a shard, and the range of offsets that can no longer be committed."""
    runs = binding.runs.get(shard)
    if runs is None:
        raise errors.InvalidInput(f"topic {binding.topic} has no shard {shard}")
    new_binding = msgspec.structs.replace(
        binding, runs=binding.runs | {shard: offset_run.taken_over(runs, epoch, start)}
    )
    return new_binding, (runs[-1].next, start)


def with_round(
    binding: Binding, ends: Mapping[int, int], pipeline_epoch: int, committed_round: CommittedRound
) -> Binding:
    """The binding after a round, which extends the runs of its shards to these ends."""
    runs = binding.runs | {shard: offset_run.extended(binding.runs[shard], end) for shard, end in ends.items()}
    # A repeat comes within the time that a driver retries a request, so the last few rounds are enough.
    rounds = (*binding.rounds, committed_round)[-limits.CATALOG_ROUNDS_KEPT :]
    return msgspec.structs.replace(binding, runs=runs, pipeline_epoch=pipeline_epoch, rounds=rounds)


def with_rewrite(binding: Binding, pipeline_epoch: int, rewrite: CommittedRound) -> Binding:
    """The binding after a rewrite: every run stays as it is. The epoch counts like that of a round: files of a lower
    one can no longer be committed, and the clean-up may remove them."""
    rewrites = (*binding.rewrites, rewrite)[-limits.CATALOG_REWRITES_KEPT :]
    return msgspec.structs.replace(binding, pipeline_epoch=pipeline_epoch, rewrites=rewrites)
