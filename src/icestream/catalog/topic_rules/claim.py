"""`assert-icestream-range`: the claim of a round, which offsets its commit adds to the table (hazard 14).

    {"type": "assert-icestream-range", "topic-id": 12, "round-id": "<UUID>", "pipeline-epoch": 3,
     "ranges": [{"shard": 0, "epoch": 1, "start": 100, "end": 200}, …], "lease": "<id of a node>"}

`lease`: the lease that `pipeline-epoch` belongs to (ADR 32); left out by the pipeline of a single node.

It is a requirement of a commit. Only a commit with a claim moves the committed offsets of a topic's table; properties,
which any client may copy, never do.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr
from icestream.runtime.checksum import crc32

CLAIM_TYPE: Final = "assert-icestream-range"
_LEASE: Final = re.compile(r"[0-9a-f]{16}")


class ClaimedRange(NamedTuple):
    """Offsets [start, end) of a shard, under the epoch of its owner."""

    shard: int
    epoch: int
    start: int
    end: int


class RoundClaim(NamedTuple):
    """A round: which pipeline commits it, and which offsets it adds."""

    round_id: bytes
    topic_id: int
    pipeline_epoch: int
    ranges: tuple[ClaimedRange, ...]  # by shard
    lease: str = ""

    @property
    def sum(self) -> int:
        """A checksum over topic and ranges, which tells a repeat from another round with the same id."""
        return crc32(repr((self.topic_id, *self.ranges)).encode())


def read_claim(requirement: Object) -> RoundClaim:
    """Raises InvalidInput for a claim that could not hold for any table."""
    ranges = sorted(_read_range(claimed) for claimed in values.objects(requirement, "ranges"))
    if not ranges or len({claimed.shard for claimed in ranges}) < len(ranges):
        raise errors.InvalidInput("a round claims exactly one range per shard, and at least one")
    return RoundClaim(
        read_round_id(values.text(requirement, "round-id")),
        values.long(requirement, "topic-id"),
        not_negative(requirement, "pipeline-epoch"),
        tuple(ranges),
        read_lease(requirement),
    )


def lease_of(requirements: Iterable[Object]) -> str:
    """The lease of all rounds and rewrites in one commit; empty for the lease of a single node. Raises InvalidInput if
    they differ."""
    leases = {read_lease(requirement) for requirement in requirements}
    if len(leases) > 1:
        raise errors.InvalidInput(
            "rounds under different leases in one commit", hint="commit those of each lease separately"
        )
    return leases.pop() if leases else ""


def read_lease(requirement: Object) -> str:
    """The name of the lease; empty for that of a single node. Raises InvalidInput."""
    lease = values.optional_text(requirement, "lease") or ""
    if lease and not _LEASE.fullmatch(lease):
        raise errors.InvalidInput(f"lease must be 16 hex digits, got {short_repr(lease)}")
    return lease


def _read_range(entry: Object) -> ClaimedRange:
    claimed = ClaimedRange(*(not_negative(entry, name) for name in ClaimedRange._fields))
    if not claimed.start < claimed.end <= limits.OFFSET_MAX:
        raise errors.InvalidInput(f"[{claimed.start}, {claimed.end}) is not a range of offsets")
    return claimed


def read_round_id(text: str) -> bytes:
    """Raises InvalidInput for a text that is not a UUID."""
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise errors.InvalidInput(f"round-id is not a UUID: {short_repr(text)}") from None


def not_negative(holder: Object, name: str) -> int:
    """The number of this name. Raises InvalidInput for one below 0."""
    value = values.long(holder, name)
    if value < 0:
        raise errors.InvalidInput(f"{name} must not be negative, got {value}")
    return value
