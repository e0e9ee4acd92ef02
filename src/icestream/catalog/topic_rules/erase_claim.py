"""`assert-icestream-job` of the kind `erase`: a commit that removes single rows of a topic (hazards 80, 81, 97).

    {"type": "assert-icestream-job", "kind": "erase", …, as of a rewrite (rewrite.py),
     "erased-rows": "1:3:<digest>", "offsets": "file:/…/metadata/erased-….bin", "offsets-sha256": "<64 digits>",
     "offsets-count": 12, "ranges": 5, "cut": {"0": 1200}}

erased-rows  the digest of the rows that the added files leave out beside those that delete files delete
offsets      the side file (model/erased_offsets.py) with all erased offsets of the topic, those of this commit
             included: their number grows by as many as `erased-rows` has
cut          per shard: every erased offset lies below it, and everything below it is committed. Below the cut readers
             take no row from the log

Side file, its checksum and the cut stand in a record of the topic, not of its table (ErasedRecord), which the same
transaction writes: whatever an engine or an operator does to the table later, the offsets stay erased for readers and
for `verify`. A repeat is recognised by its round id, as for a rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.claim import not_negative
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.catalog.topic_rules.rewrite import JOB_TYPE, RewriteClaim, read_replacement
from icestream.catalog.topic_rules.rewrite_check import check_files
from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr
from icestream.model.row_digest import parse_digest
from icestream.runtime.checksum import crc32

ERASE_KIND: Final = "erase"
ERASED: Final = "icestream.erased"  # in the summary of a snapshot: how many rows the commit erased


class ErasedRecord(msgspec.Struct, frozen=True):
    """The erased offsets of a topic. They are never written again, and only become more."""

    offsets: str  # the side file
    sha256: str
    count: int
    ranges: int
    cut: dict[int, int]
    time_ms: int = 0  # of the last change


class EraseClaim(NamedTuple):
    """A commit of an erasure: which files it exchanges, and the erased offsets of the topic after it."""

    rewrite: RewriteClaim
    offsets: str
    sha256: str
    offset_count: int
    range_count: int
    cut: Mapping[int, int]

    @property
    def round_id(self) -> bytes:
        return self.rewrite.round_id

    @property
    def topic_id(self) -> int:
        return self.rewrite.topic_id

    @property
    def pipeline_epoch(self) -> int:
        return self.rewrite.pipeline_epoch

    @property
    def sum(self) -> int:
        """A checksum over topic, files and offsets, which tells a repeat from another commit with the same id."""
        return crc32(repr((self.rewrite.sum, ERASE_KIND, self.sha256, sorted(self.cut.items()))).encode())


def read_erase(requirement: Object) -> EraseClaim:
    """Raises InvalidInput for a requirement that could not hold for any table."""
    rewrite = read_replacement(requirement, added_min=0)
    cut: dict[int, int] = {}
    listed = values.as_object(values.required(requirement, "cut"), "cut")
    for name in listed:
        if not (name.isascii() and name.isdigit() and int(name) < limits.SHARDS_PER_TOPIC_MAX):
            raise errors.InvalidInput(f"not a shard: {short_repr(name)}")
        cut[int(name)] = not_negative(listed, name)
    claim = EraseClaim(
        rewrite._replace(erased_rows=parse_digest(values.text(requirement, "erased-rows"))),
        values.text(requirement, "offsets"),
        values.text(requirement, "offsets-sha256"),
        not_negative(requirement, "offsets-count"),
        not_negative(requirement, "ranges"),
        cut,
    )
    if not cut or claim.range_count > limits.ERASED_RANGES_MAX:
        raise errors.InvalidInput(
            f"an erasure of {len(cut)} shards and {claim.range_count} ranges",
            hint=f"at least one shard, at most {limits.ERASED_RANGES_MAX} ranges",
        )
    return claim


def erase_requirement(claim: EraseClaim, rewrite: Object) -> Object:
    """The requirement of a claim; `rewrite`: that of its exchange of files. The lease is added by the ledger."""
    return {
        **rewrite,
        "type": JOB_TYPE,
        "kind": ERASE_KIND,
        "erased-rows": claim.rewrite.erased_rows.text,
        "offsets": claim.offsets,
        "offsets-sha256": claim.sha256,
        "offsets-count": claim.offset_count,
        "ranges": claim.range_count,
        "cut": {str(shard): offset for shard, offset in sorted(claim.cut.items())},
    }


def check_erase(
    claim: EraseClaim, changes: FileChanges, binding: Binding, before: ErasedRecord | None, now_ms: int
) -> ErasedRecord:
    """The erased offsets of the topic after an erasure. `before`: before it.

    Raises RangeRefused for one that does not fit the table any more, to be planned again, and Contradiction for one
    that would remove a row which the record does not count.
    """
    check_files(claim.rewrite, changes, binding)
    count_before = 0 if before is None else before.count
    erased = claim.rewrite.erased_rows.rows
    if claim.offset_count != count_before + erased:
        # Also after another erasure that was committed since this one was planned.
        problem = f"{erased} rows go, but the erased offsets become {claim.offset_count} from {count_before}"
        raise range_refused(binding, "erased_before", problem)
    committed = binding.committed()
    for shard, offset in sorted(claim.cut.items()):
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
    cut |= {shard: max(offset, cut.get(shard, 0)) for shard, offset in claim.cut.items()}
    return ErasedRecord(
        claim.offsets, claim.sha256, claim.offset_count, claim.range_count, dict(sorted(cut.items())), now_ms
    )
