"""Checks the claim of a round, or of a rewrite, against the binding and the driver's lease. Pure.

    the round id was committed with the same ranges     Repeated: it is in the table, with this snapshot
    the driver does not have the lease                  refused
    every range begins at the next offset of its shard's open run, under that run's epoch
                                                        Accepted: the runs are extended to the ends of the ranges
    a rewrite of the driver that has the lease          accepted; its files are checked in rewrite_check.py
    anything else                                       refused, with the present positions

A repeat is recognised by its id alone, whichever driver has the lease now: its rows are in the table. The same offsets
under another round id are never a repeat: they come with other files (hazard 14 b).
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol

from icestream import errors
from icestream.catalog.topic_rules.binding import Binding, CommittedRound, with_round
from icestream.catalog.topic_rules.claim import ClaimedRange, RoundClaim


class PipelineClaim(Protocol):
    """What every commit of the pipeline names: a round, a rewrite, a retention."""

    @property
    def round_id(self) -> bytes: ...
    @property
    def topic_id(self) -> int: ...
    @property
    def pipeline_epoch(self) -> int: ...
    @property
    def sum(self) -> int: ...


class Repeated(NamedTuple):
    """The round or rewrite is in the table already."""

    snapshot_id: int


class Accepted(NamedTuple):
    """The round may be committed."""

    ends: dict[int, int]  # per shard of the round

    def binding(self, before: Binding, claim: RoundClaim, snapshot_id: int) -> Binding:
        """The binding after the round, whose snapshot is `snapshot_id`."""
        return with_round(
            before, self.ends, claim.pipeline_epoch, CommittedRound(claim.round_id, snapshot_id, claim.sum)
        )


def check_claim(binding: Binding, claim: RoundClaim, lease_epoch: int | None) -> Accepted | Repeated:
    """Decides about a round. `lease_epoch`: of the driver that has the lease now; None if the lease is free. Raises
    RangeRefused."""
    if (repeated := check_driver(binding, claim, lease_epoch)) is not None:
        return repeated
    for claimed in claim.ranges:
        _check_range(binding, claimed)
    return Accepted({claimed.shard: claimed.end for claimed in claim.ranges})


def check_driver(binding: Binding, claim: PipelineClaim, lease_epoch: int | None) -> Repeated | None:
    """Returns the earlier commit of the same id; None if there is none, and the driver may commit. Raises RangeRefused
    for a commit to the table of another topic, and of a driver that does not have the lease."""
    if claim.topic_id != binding.topic_id:
        raise range_refused(
            binding, "other_topic", f"the table belongs to topic {binding.topic} (id {binding.topic_id})"
        )
    # Before the lease is compared: a driver that lost its lease after its commit landed must hear that it landed, or it
    # would take its files for orphans (hazard 1).
    committed_round = binding.find_round(claim.round_id)
    # Before the lease is checked: a driver that lost its lease may ask for the result of a commit that it made while it
    # had it.
    if committed_round is not None:
        if committed_round.claimed != claim.sum:
            round_id, content = uuid.UUID(bytes=claim.round_id), "ranges" if isinstance(claim, RoundClaim) else "files"
            raise range_refused(binding, "round_reused", f"round {round_id} was committed with other {content}")
        return Repeated(committed_round.snapshot_id)
    # The lease decides, and the epoch in the binding after it: a restored metadata store could hand out an epoch again
    # under which, or above which, this table was committed before.
    if lease_epoch != claim.pipeline_epoch or claim.pipeline_epoch < binding.pipeline_epoch:
        lease_state = "the lease is free" if lease_epoch is None else f"the lease has epoch {lease_epoch}"
        raise range_refused(
            binding, "stale_pipeline", f"the round has pipeline epoch {claim.pipeline_epoch}, but {lease_state}"
        )
    return None


def _check_range(binding: Binding, claimed: ClaimedRange) -> None:
    """Raises RangeRefused unless the range begins at the next offset of its shard, under the epoch of its owner."""
    runs = binding.runs.get(claimed.shard)
    if runs is None:
        raise range_refused(binding, "unknown_shard", f"topic {binding.topic} has no shard {claimed.shard}")
    last = runs[-1]
    if claimed.epoch != last.epoch:
        message = f"shard {claimed.shard} has epoch {last.epoch}, not {claimed.epoch}"
        raise range_refused(binding, "other_epoch", message)
    if claimed.start != last.next:
        message = f"shard {claimed.shard} continues at {last.next}, not at {claimed.start}"
        raise range_refused(binding, "not_next", message)


def range_refused(binding: Binding | None, reason: str, message: str) -> errors.RangeRefused:
    """The refusal of a round or rewrite, with the present positions of the topic."""
    details: dict[str, object] = {"reason": reason}
    if binding is not None:
        details |= {"positions": binding.positions(), "pipeline-epoch": binding.pipeline_epoch}
    return errors.RangeRefused(
        f"Requirement failed: {message}", hint="read the present positions and plan the round again", details=details
    )
