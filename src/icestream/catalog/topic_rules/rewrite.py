"""`assert-icestream-job`: what a commit of the pipeline that adds no offsets does to a table (hazard 75).

    {"type": "assert-icestream-job", "kind": "rewrite", "topic-id": 12, "round-id": "<UUID>", "pipeline-epoch": 3,
     "replaced": ["file:/…/a.parquet", "file:/…/b.parquet"], "added": ["file:/…/c.parquet"],
     "sequence-number": 17, "deletes": ["file:/…/d.parquet"],
     "replaced-rows": "1:21:<digest>", "deleted-rows": "1:1:<digest>", "added-rows": "1:20:<digest>",
     "lease": "<id of a node>"}

kind        `rewrite`: the added files hold the rows of the replaced ones that no delete file deletes. The other kinds
            are in retention_claim.py, erase_claim.py and history_claim.py
replaced    data files that are live in the table before the commit, and in no later snapshot
added       data files that are live after it. Their names carry `pipeline-epoch` (model/pipeline_file_name.py)
sequence-number
            of the snapshot that the rewrite was planned on: the data sequence number of the added files. Younger
            deletes by value go on to apply to them (hazard 77, docs/adr/0087)
deletes     names of the delete files that were applied to the replaced files, whether they hit a row or not
…-rows      the digest of the rows (model/row_digest.py): of the replaced files as ingest wrote it into their footers,
            of the rows that were left out, of the added files as they were read back from the storage (docs/adr/0064)
lease       as in a claim (claim.py)

It is a requirement of a commit, beside those of Iceberg's protocol. Without it the catalog takes a snapshot with the
operation `replace` for the compaction of another engine: no lease is compared, and a repeat is not recognised.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog.topic_rules.claim import not_negative, read_lease, read_round_id
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr
from icestream.model.row_digest import RowDigest, parse_digest
from icestream.runtime.checksum import crc32

JOB_TYPE: Final = "assert-icestream-job"
REWRITE_KIND: Final = "rewrite"


class RewriteClaim(NamedTuple):
    """A rewrite: which pipeline commits it, and which files it exchanges."""

    round_id: bytes
    topic_id: int
    pipeline_epoch: int
    replaced: frozenset[str]  # locations
    added: frozenset[str]
    lease: str = ""
    replaced_rows: RowDigest = RowDigest()
    added_rows: RowDigest = RowDigest()
    sequence_number: int = 0
    deletes: frozenset[str] = frozenset()
    deleted_rows: RowDigest = RowDigest()
    erased_rows: RowDigest = RowDigest()  # of an erasure (erase_claim.py)

    @property
    def sum(self) -> int:
        """A checksum over topic and files, which tells a repeat from another commit with the same id."""
        return crc32(repr((self.topic_id, REWRITE_KIND, sorted(self.replaced), sorted(self.added))).encode())


def read_rewrite(requirement: Object) -> RewriteClaim:
    """Raises InvalidInput for a requirement that could not hold for any table."""
    kind = values.text(requirement, "kind")
    if kind != REWRITE_KIND:
        raise errors.InvalidInput(
            f"unknown kind of job: {short_repr(kind)}", hint="this catalog knows rewrite, retention, erase and history"
        )
    return read_replacement(requirement, added_min=1)


def read_replacement(requirement: Object, added_min: int) -> RewriteClaim:
    """The exchange of files that a rewrite or an erasure makes. `added_min`: so many files are added, unless delete
    files are applied. Raises InvalidInput."""
    deletes = read_locations(requirement, "deletes", count_min=0)
    # A file whose rows are all deleted goes, and none comes.
    replaced, added = (
        read_locations(requirement, "replaced"),
        read_locations(requirement, "added", 0 if deletes else added_min),
    )
    if common := replaced & added:
        raise errors.InvalidInput(f"a rewrite both replaces and adds {min(common)}")
    return RewriteClaim(
        read_round_id(values.text(requirement, "round-id")),
        values.long(requirement, "topic-id"),
        not_negative(requirement, "pipeline-epoch"),
        replaced,
        added,
        read_lease(requirement),
        parse_digest(values.text(requirement, "replaced-rows")),
        parse_digest(values.text(requirement, "added-rows")),
        not_negative(requirement, "sequence-number"),
        deletes,
        parse_digest(values.text(requirement, "deleted-rows")),
    )


def read_locations(requirement: Object, name: str, count_min: int = 1) -> frozenset[str]:
    """The files of a list in the requirement. Raises InvalidInput for a list that is too short or too long, or names a
    file twice."""
    listed = values.texts(requirement, name)
    locations = frozenset(listed)
    if len(locations) < len(listed):
        raise errors.InvalidInput(f"a commit of a job names each file in {name!r} once")
    if len(locations) < count_min:
        raise errors.InvalidInput(f"a commit of a job names no file in {name!r}, at least one is needed")
    if len(locations) > limits.CATALOG_REWRITE_FILES_MAX:
        raise errors.InvalidInput(
            f"a commit of a job names {len(locations)} files in {name!r}, at most {limits.CATALOG_REWRITE_FILES_MAX}",
            hint="commit it in several parts",
        )
    return locations
