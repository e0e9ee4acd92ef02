"""`assert-icestream-job` of the kind `erase`: a commit that removes single rows of a topic (hazards 80, 81, 97).

    {"type": "assert-icestream-job", "kind": "erase", …, as of a rewrite (rewrite.py),
     "erased-rows": "1:3:<digest>", "offsets": "file:/…/metadata/erased-….bin", "offsets-sha256": "<64 digits>",
     "offsets-count": 12, "ranges": 5, "cut": {"0": 1200}}

erased-rows  the digest of the rows that the added files leave out beside those that delete files delete
offsets      the side file (model/erased_offsets.py) with all erased offsets of the topic, those of this commit
             included: their number grows by as many as `erased-rows` has (erased_record.py)
cut          per shard: every erased offset lies below it, and everything below it is committed. Below the cut readers
             take no row from the log

Side file, its checksum and the cut stand in a record of the topic, not of its table (ErasedRecord), which the same
transaction writes: whatever an engine or an operator does to the table later, the offsets stay erased for readers and
for `verify`. A repeat is recognised by its round id, as for a rewrite.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.erased_record import ErasedRecord, StatedErasure, grown_record, read_stated
from icestream.catalog.topic_rules.rewrite import JOB_TYPE, RewriteClaim, read_replacement
from icestream.catalog.topic_rules.rewrite_check import check_files
from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from icestream.iceberg import values
from icestream.iceberg.values import Object
from icestream.model.row_digest import parse_digest
from icestream.runtime.checksum import crc32

ERASE_KIND: Final = "erase"
ERASED: Final = "icestream.erased"  # in the summary of a snapshot: how many rows the commit erased


class EraseClaim(NamedTuple):
    """A commit of an erasure: which files it exchanges, and the erased offsets of the topic after it."""

    rewrite: RewriteClaim
    stated: StatedErasure

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
        return crc32(repr((self.rewrite.sum, ERASE_KIND, self.stated.sha256, sorted(self.stated.cut.items()))).encode())


def read_erase(requirement: Object) -> EraseClaim:
    """Raises InvalidInput for a requirement that could not hold for any table."""
    rewrite = read_replacement(requirement, added_min=0)
    erased_rows = parse_digest(values.text(requirement, "erased-rows"))
    return EraseClaim(rewrite._replace(erased_rows=erased_rows), read_stated(requirement))


def erase_requirement(claim: EraseClaim, rewrite: Object) -> Object:
    """The requirement of a claim; `rewrite`: that of its exchange of files. The lease is added by the ledger."""
    return {
        **rewrite,
        "type": JOB_TYPE,
        "kind": ERASE_KIND,
        "erased-rows": claim.rewrite.erased_rows.text,
        **claim.stated.requirement(),
    }


def check_erase(
    claim: EraseClaim, changes: FileChanges, binding: Binding, before: ErasedRecord | None, now_ms: int
) -> ErasedRecord:
    """The erased offsets of the topic after an erasure. `before`: before it.

    Raises RangeRefused for one that does not fit the table any more, to be planned again, and Contradiction for one
    that would remove a row which the record does not count.
    """
    check_files(claim.rewrite, changes, binding)
    rows = claim.rewrite.erased_rows.rows
    return grown_record(claim.stated, binding, before, range(rows, rows + 1), now_ms)
