"""The record of a topic's erased offsets, and what a commit of an erasure states about it (ADR 120). Pure.

    "offsets": "file:/…/metadata/erased-….bin", "offsets-sha256": "<64 digits>", "offsets-count": 12, "ranges": 5,
    "cut": {"0": 1200}

offsets  the side file (model/erased_offsets.py) with all erased offsets of the topic, those of the commit included
cut      per shard: every erased offset lies below it, and everything below it is committed

Erased offsets are never taken back: a commit of an erasure may only add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from icestream import errors, limits
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.claim import not_negative
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr


class ErasedRecord(msgspec.Struct, frozen=True):
    """The erased offsets of a topic. They are never written again, and only become more."""

    offsets: str  # the side file
    sha256: str
    count: int
    ranges: int
    cut: dict[int, int]
    time_ms: int = 0  # of the last change
    # A sequence number of the table: no manifest up to it may have an entry of a removed file whose rows nothing can
    # search any more, because its bounds may hold an erased key.
    swept_to: int = 0

    def swept(self, sequence_number: int) -> ErasedRecord:
        return msgspec.structs.replace(self, swept_to=max(self.swept_to, sequence_number))


class StatedErasure(NamedTuple):
    """The erased offsets of a topic after a commit, as the commit states them."""

    offsets: str
    sha256: str
    offset_count: int
    range_count: int
    cut: Mapping[int, int]

    def requirement(self) -> Object:
        """The members of the requirement."""
        return {
            "offsets": self.offsets,
            "offsets-sha256": self.sha256,
            "offsets-count": self.offset_count,
            "ranges": self.range_count,
            "cut": {str(shard): offset for shard, offset in sorted(self.cut.items())},
        }


def read_stated(requirement: Object) -> StatedErasure:
    """Raises InvalidInput for members that could not hold for any topic."""
    cut: dict[int, int] = {}
    listed = values.as_object(values.required(requirement, "cut"), "cut")
    for name in listed:
        if not (name.isascii() and name.isdigit() and int(name) < limits.SHARDS_PER_TOPIC_MAX):
            raise errors.InvalidInput(f"not a shard: {short_repr(name)}")
        cut[int(name)] = not_negative(listed, name)
    stated = StatedErasure(
        values.text(requirement, "offsets"),
        values.text(requirement, "offsets-sha256"),
        not_negative(requirement, "offsets-count"),
        not_negative(requirement, "ranges"),
        cut,
    )
    if not cut or stated.range_count > limits.ERASED_RANGES_MAX:
        raise errors.InvalidInput(
            f"an erasure of {len(cut)} shards and {stated.range_count} ranges",
            hint=f"at least one shard, at most {limits.ERASED_RANGES_MAX} ranges",
        )
    return stated


def grown_record(
    stated: StatedErasure, binding: Binding, before: ErasedRecord | None, growth: range, now_ms: int
) -> ErasedRecord:
    """The record after a commit. `before`: None if nothing was erased so far. `growth`: how many offsets may be new.

    Raises RangeRefused for a commit that does not fit the topic any more, to be planned again, and Contradiction for a
    shard that the topic does not have.
    """
    count_before = 0 if before is None else before.count
    if stated.offset_count - count_before not in growth:
        # Also after another erasure that was committed since this one was planned.
        rows = f"{growth[0]}" if len(growth) == 1 else f"{growth[0]} to {growth[-1]}"
        problem = f"{rows} rows go, but the erased offsets become {stated.offset_count} from {count_before}"
        raise range_refused(binding, "erased_before", problem)
    committed = binding.committed()
    for shard, offset in sorted(stated.cut.items()):
        if shard not in committed:
            raise errors.Contradiction(
                f"topic {binding.topic} has no shard {shard}",
                hint="this is a bug of the erasure; the table is unchanged",
            )
        if offset > committed[shard]:  # a rewind moved it back after the erasure was planned
            raise range_refused(
                binding, "not_committed", f"shard {shard} is committed up to {committed[shard]}, not up to {offset}"
            )
    cut = dict(before.cut) if before is not None else {}
    cut |= {shard: max(offset, cut.get(shard, 0)) for shard, offset in stated.cut.items()}
    swept_to = 0 if before is None else before.swept_to
    return ErasedRecord(
        stated.offsets,
        stated.sha256,
        stated.offset_count,
        stated.range_count,
        dict(sorted(cut.items())),
        now_ms,
        swept_to,
    )
