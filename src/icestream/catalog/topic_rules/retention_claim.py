"""`assert-icestream-job` of the kind `retention`: a commit that removes a topic's oldest rows (hazards 85, 86).

    {"type": "assert-icestream-job", "kind": "retention", "topic-id": 12, "round-id": "<UUID>", "pipeline-epoch": 3,
     "removed": ["file:/…/a.parquet"], "first": {"0": 1200}, "consumers": 812, "lease": "<id of a node>"}

removed     data files that are live in the table before the commit, and not after it. Every row of them lies below
            `first`. Nothing else changes: a commit that adds a file, or removes another one, is refused
first       per shard the first kept offset after the commit; a shard that is not named keeps the one that it has

consumers   the consumer generation of the topic that the removal was planned with, if acks decided about it: a
            subscription that was created or moved back since would miss what goes (hazard 87). Optional

`first` stands in a record of the topic, not of its table (RetainedRecord), which the same transaction writes. It only
rises: whatever an engine or an operator does to the table later, offsets below it stay removed for readers and for
`verify`. A repeat is recognised by its round id, as for a rewrite (rewrite.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.claim import not_negative, read_lease, read_round_id
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.catalog.topic_rules.rewrite import JOB_TYPE, read_locations
from icestream.catalog.topic_rules.rewritten_rows import DataFile, FileChanges
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr
from icestream.runtime.checksum import crc32

RETENTION_KIND: Final = "retention"
FIRST: Final = "icestream.first"  # in the summary of a snapshot: the first kept offsets, as JSON


class RetentionClaim(NamedTuple):
    """A commit of a retention: which pipeline makes it, which files it removes, and the first kept offsets after it."""

    round_id: bytes
    topic_id: int
    pipeline_epoch: int
    removed: frozenset[str]  # locations
    first: Mapping[int, int]
    lease: str = ""
    consumers: int | None = None  # the consumer generation; None: acks did not matter

    @property
    def sum(self) -> int:
        """A checksum over topic, offsets and files, which tells a repeat from another commit with the same id."""
        return crc32(repr((self.topic_id, RETENTION_KIND, sorted(self.first.items()), sorted(self.removed))).encode())


def retention_requirement(claim: RetentionClaim, round_id: str) -> Object:
    """The requirement of a claim; `round_id` as text. The lease is added by the ledger that has one."""
    consumers = {} if claim.consumers is None else {"consumers": claim.consumers}
    return {
        "type": JOB_TYPE,
        "kind": RETENTION_KIND,
        "topic-id": claim.topic_id,
        "round-id": round_id,
        "pipeline-epoch": claim.pipeline_epoch,
        "removed": sorted(claim.removed),
        "first": {str(shard): offset for shard, offset in sorted(claim.first.items())},
        **consumers,
    }


def read_retention(requirement: Object) -> RetentionClaim:
    """Raises InvalidInput for a requirement that could not hold for any table."""
    return RetentionClaim(
        read_round_id(values.text(requirement, "round-id")),
        values.long(requirement, "topic-id"),
        not_negative(requirement, "pipeline-epoch"),
        read_locations(requirement, "removed"),
        _read_first(requirement),
        read_lease(requirement),
        not_negative(requirement, "consumers") if "consumers" in requirement else None,
    )


def _read_first(requirement: Object) -> Mapping[int, int]:
    """The first kept offsets by shard. Raises InvalidInput for an empty list, and for what is no shard or offset."""
    offsets = values.as_object(values.required(requirement, "first"), "first")
    if not 0 < len(offsets) <= limits.SHARDS_PER_TOPIC_MAX:
        raise errors.InvalidInput(f"a retention names the first offset of {len(offsets)} shards", hint="at least one")
    first: dict[int, int] = {}
    for name in offsets:
        if not (name.isascii() and name.isdigit() and int(name) < limits.SHARDS_PER_TOPIC_MAX):
            raise errors.InvalidInput(f"not a shard: {short_repr(name)}")
        first[int(name)] = not_negative(offsets, name)
    return first


# --- the rule ---------------------------------------------------------------------------------------------------------


def check_retention(
    claim: RetentionClaim, changes: FileChanges, binding: Binding, first: Mapping[int, int], consumers: int = 0
) -> dict[int, int]:
    """The first kept offsets of the topic after a retention. `first`: before it. `changes`: of its snapshot.
    `consumers`: the consumer generation of the topic.

    Raises RangeRefused for a retention that does not fit the table any more, to be planned again, and Contradiction for
    one that would remove a row at or above the first kept offset, or anything that it does not name.
    """
    if claim.consumers is not None and claim.consumers != consumers:
        raise range_refused(binding, "consumers_changed", f"a consumer of topic {binding.topic} was created or moved")
    removed = {file.location for file in changes.removed}
    if not_live := claim.removed - removed:
        raise range_refused(binding, "not_live", f"{min(not_live)} is not a live file of the table any more")
    if others := removed - claim.removed:
        raise _contradiction(f"a retention removes {min(others)}, which its requirement does not name")
    if changes.added:
        raise _contradiction(f"a retention adds {changes.added[0].location}")
    committed = binding.committed()
    for shard, offset in sorted(claim.first.items()):
        if shard not in committed:
            raise _contradiction(f"topic {binding.topic} has no shard {shard}")
        # A rewind moved the committed offset back after the retention was planned.
        if offset > max(committed[shard], first.get(shard, 0)):
            raise range_refused(
                binding, "not_committed", f"shard {shard} is committed up to {committed[shard]}, not up to {offset}"
            )
    first_after = {**first, **{shard: max(offset, first.get(shard, 0)) for shard, offset in claim.first.items()}}
    for file in changes.removed:
        if not is_below(file, first_after):
            raise _contradiction(f"a retention removes {file.location}, which may hold rows that are kept")
    return first_after


def is_below(file: DataFile, first: Mapping[int, int]) -> bool:
    """True if every row of the file lies below the first kept offset of its shard, as far as its manifest tells; False
    without bounds.

    A manifest has one pair of bounds for all shards of a file. Its highest offset is one of some shard, so it must lie
    below the highest of their first kept offsets; where each shard ends is read by the job (shard_ranges.py).
    """
    if file.shards is None or file.offsets is None:
        return False
    return file.offsets.high < max(first.get(shard, 0) for shard in range(file.shards.low, file.shards.high + 1))


def _contradiction(problem: str) -> errors.Contradiction:
    return errors.Contradiction(problem, hint="this is a bug of the retention; the table is unchanged")
