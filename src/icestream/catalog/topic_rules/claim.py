"""`assert-icestream-range`: how a round of the pipeline says which offsets its commit brings (hazard 14).

    {"type": "assert-icestream-range", "topic-id": 12, "round-id": "<UUID>", "pipeline-epoch": 3,
     "ranges": [{"shard": 0, "epoch": 1, "start": 100, "end": 200}, …], "lease": "<id of a node>"}

`lease`: which one the epoch is of (ADR 32); left out by the pipeline of a node on its own.

It is a requirement like any other in a commit. A table gets messages of its topic by it and by nothing else: never by
properties, which anybody may copy.
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
    shard: int
    epoch: int
    start: int
    end: int


class RoundClaim(NamedTuple):
    round_id: bytes
    topic_id: int
    pipeline_epoch: int
    ranges: tuple[ClaimedRange, ...]  # by shard
    lease: str = ""

    @property
    def sum(self) -> int:
        return crc32(repr((self.topic_id, *self.ranges)).encode())


def read_claim(requirement: Object) -> RoundClaim:
    """Raises InvalidInput for a claim that could not hold for any table."""
    ranges = sorted(_read_range(one) for one in values.objects(requirement, "ranges"))
    if not ranges or len({one.shard for one in ranges}) < len(ranges):
        raise errors.InvalidInput("a round brings one range of each of its shards, and at least one")
    return RoundClaim(
        _read_round_id(values.text(requirement, "round-id")),
        values.long(requirement, "topic-id"),
        _not_negative(requirement, "pipeline-epoch"),
        tuple(ranges),
        _read_lease(requirement),
    )


def lease_of(requirements: Iterable[Object]) -> str:
    """The lease that all rounds of one commit are made under."""
    found = {_read_lease(one) for one in requirements}
    if len(found) > 1:
        raise errors.InvalidInput("a commit of rounds under different leases", hint="commit those of each by itself")
    return found.pop() if found else ""


def _read_lease(requirement: Object) -> str:
    found = values.optional_text(requirement, "lease") or ""
    if found and not _LEASE.fullmatch(found):
        raise errors.InvalidInput(f"a lease is named by 16 hex digits, not {short_repr(found)}")
    return found


def _read_range(given: Object) -> ClaimedRange:
    found = ClaimedRange(*(_not_negative(given, name) for name in ClaimedRange._fields))
    if not found.start < found.end <= limits.OFFSET_MAX:
        raise errors.InvalidInput(f"[{found.start}, {found.end}) is not a range of offsets")
    return found


def _read_round_id(given: str) -> bytes:
    try:
        return uuid.UUID(given).bytes
    except ValueError:
        raise errors.InvalidInput(f"a round-id is a UUID, not {short_repr(given)}") from None


def _not_negative(holder: Object, name: str) -> int:
    found = values.long(holder, name)
    if found < 0:
        raise errors.InvalidInput(f"{name} {found} is below 0")
    return found
