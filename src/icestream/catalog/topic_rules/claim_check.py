"""May this round's offsets enter the table? Pure: the binding as it is, the claim, the lease; a verdict out.

    the round id is known, with the same ranges   Repeated: it is in the table already, with this snapshot
    an older driver, or none that has the lease   refused
    every range begins at the next offset of its shard's open run, under that run's epoch
                                                  Accepted: the runs go on to its ends
    anything else                                 refused, with the present positions

A repeat is known by its id alone, whatever the driver's lease became: its rows are in the table. The same offsets under
another round id are never a repeat: they came with other files (hazard 14 b).
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from icestream import errors
from icestream.catalog.topic_rules.binding import Binding, CommittedRound, with_round
from icestream.catalog.topic_rules.claim import ClaimedRange, RoundClaim


class Repeated(NamedTuple):
    snapshot_id: int


class Accepted(NamedTuple):
    ends: dict[int, int]  # per shard of the round

    def binding(self, before: Binding, claim: RoundClaim, snapshot_id: int) -> Binding:
        """What the table is bound to once the snapshot is its current one."""
        return with_round(
            before, self.ends, claim.pipeline_epoch, CommittedRound(claim.round_id, snapshot_id, claim.sum)
        )


def check_claim(binding: Binding, claim: RoundClaim, lease_epoch: int | None) -> Accepted | Repeated:
    """`lease_epoch`: of the driver that has the lease now, None when nobody has."""
    if claim.topic_id != binding.topic_id:
        raise range_refused(
            binding, "other_topic", f"the table belongs to topic {binding.topic} (id {binding.topic_id})"
        )
    known = binding.find_round(claim.round_id)
    if known is not None:
        if known.claimed != claim.sum:
            round_id = uuid.UUID(bytes=claim.round_id)
            raise range_refused(binding, "round_reused", f"round {round_id} was committed with other ranges")
        return Repeated(known.snapshot_id)
    if lease_epoch != claim.pipeline_epoch or claim.pipeline_epoch < binding.pipeline_epoch:
        now = "nobody has the lease" if lease_epoch is None else f"the lease is of epoch {lease_epoch}"
        raise range_refused(binding, "stale_pipeline", f"a round of pipeline epoch {claim.pipeline_epoch}, but {now}")
    for one in claim.ranges:
        _check_range(binding, one)
    return Accepted({one.shard: one.end for one in claim.ranges})


def _check_range(binding: Binding, claimed: ClaimedRange) -> None:
    runs = binding.runs.get(claimed.shard)
    if runs is None:
        raise range_refused(binding, "unknown_shard", f"topic {binding.topic} has no shard {claimed.shard}")
    last = runs[-1]
    if claimed.epoch != last.epoch:
        what = f"shard {claimed.shard} is under epoch {last.epoch}, not {claimed.epoch}"
        raise range_refused(binding, "other_epoch", what)
    if claimed.start != last.next:
        what = f"shard {claimed.shard} goes on at {last.next}, not at {claimed.start}"
        raise range_refused(binding, "not_next", what)


def range_refused(binding: Binding | None, reason: str, what: str) -> errors.RangeRefused:
    details: dict[str, object] = {"reason": reason}
    if binding is not None:
        details |= {"positions": binding.positions(), "pipeline-epoch": binding.pipeline_epoch}
    return errors.RangeRefused(
        f"Requirement failed: {what}", hint="read the present positions and plan the round anew", details=details
    )
