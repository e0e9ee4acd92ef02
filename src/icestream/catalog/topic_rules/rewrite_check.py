"""Checks a rewrite against the files of its table (hazards 75, 77, 83). Pure.

    a replaced file is not live any more              refused: another commit has removed it; plan it again
    a delete file may apply to a replaced file, and the rewrite has not applied it
                                                      refused: the delete came after the rewrite was planned. Not a
                                                      delete by value: it goes on to apply to the added files
    a delete file that the rewrite has applied is not live any more
                                                      refused: its rows may have come back, such as by a rollback
    a delete file goes, and a live file may need it   refused: the file came after the snapshot was built
    the snapshot changes other files than the requirement names; an added file was written under another epoch, or has
    another data sequence number than the requirement, or the requirement a lower one than a replaced file
                                                      Contradiction
    rows or bounds differ (rewritten_rows.py), or the digest of the added rows is not that of the replaced ones without
    the deleted ones, or a digest is of another number of rows, or more rows are left out than delete files state
                                                      Contradiction

A refusal is an answer to the state of the table, and may be different later. A contradiction is a mistake of the job,
whatever the table looks like.

The name of an added file must carry the epoch under which it is committed: the clean-up removes files of lower epochs
that no snapshot refers to, and may do so while their rewrite is still in flight (removal_rule.py).
"""

from __future__ import annotations

from icestream import errors
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.catalog.topic_rules.rewrite import RewriteClaim
from icestream.catalog.topic_rules.rewritten_rows import (
    FileChanges,
    check_same_rows,
    find_needed,
    find_unapplied,
)
from icestream.model.pipeline_file_name import PipelineFileKind, parse_pipeline_file


def check_files(claim: RewriteClaim, changes: FileChanges, binding: Binding | None = None) -> None:
    """Raises RangeRefused for a rewrite that does not fit the table any more, and Contradiction for one that never did.
    `changes`: by the manifests of its snapshot and of the parent. `binding`: for the details of a refusal."""
    # First what may have become wrong since the job was planned: RangeRefused, which plans it again. Then what no plan
    # may contain: Contradiction, which is not retried.
    removed = {file.location for file in changes.removed}
    if not_live := claim.replaced - removed:
        raise range_refused(binding, "not_live", f"{min(not_live)} is not a live file of the table any more")
    if delete := find_unapplied(changes, claim.sequence_number, claim.deletes):
        raise range_refused(
            binding, "deleted_rows", f"rows of {delete[1].location} may be deleted by {delete[0].location}"
        )
    if undone := claim.deletes - {delete.name for delete in changes.deletes}:
        raise range_refused(binding, "not_live", f"{min(undone)} is not a live delete file of the table any more")
    if needed := find_needed(changes):
        raise range_refused(binding, "needed", f"rows of {needed[1].location} may be deleted by {needed[0].location}")
    if others := removed - claim.replaced:
        raise _contradiction(f"a rewrite removes {min(others)}, which its requirement does not name")
    added = {file.location for file in changes.added}
    if added != claim.added:
        raise _contradiction(
            f"a rewrite adds other files than its requirement names, such as {min(added ^ claim.added)}"
        )
    for location in sorted(added):
        file = parse_pipeline_file(location)
        if file is None or file.kind is not PipelineFileKind.DATA or file.epoch != claim.pipeline_epoch:
            raise _contradiction(
                f"a rewrite under pipeline epoch {claim.pipeline_epoch} adds {location}, whose name says otherwise"
            )
    check_same_rows(changes, claim.deletes, is_erasing=bool(claim.erased_rows.rows))
    _check_sequence_numbers(claim, changes)
    _check_digests(claim, changes)


def _check_sequence_numbers(claim: RewriteClaim, changes: FileChanges) -> None:
    """Raises Contradiction for data sequence numbers with which engines would apply other deletes than before."""
    for file in changes.added:
        if file.sequence_number != claim.sequence_number:
            raise _contradiction(
                f"{file.location} has the data sequence number {file.sequence_number}, its rewrite was planned at "
                f"{claim.sequence_number}"
            )
    if newer := [file.location for file in changes.removed if file.sequence_number > claim.sequence_number]:
        raise _contradiction(f"a rewrite replaces {newer[0]}, which is newer than the snapshot that it was planned on")


def _check_digests(claim: RewriteClaim, changes: FileChanges) -> None:
    """Raises Contradiction unless the added rows are the replaced ones without the deleted ones."""
    replaced, added = (sum(file.rows for file in files) for files in (changes.removed, changes.added))
    for digest, rows in ((claim.replaced_rows, replaced), (claim.added_rows, added)):
        if digest.rows != rows:
            raise _contradiction(f"a rewrite of {rows} rows has a digest of {digest.rows}")
    if claim.replaced_rows.minus(claim.deleted_rows).minus(claim.erased_rows) != claim.added_rows:
        erased = f" and {claim.erased_rows.text}" if claim.erased_rows.rows else ""
        raise _contradiction(
            f"a rewrite changes rows: their digest was {claim.replaced_rows.text}, "
            f"less {claim.deleted_rows.text}{erased}, and is {claim.added_rows.text}"
        )
    applied = [delete for delete in changes.deletes if delete.name in claim.deletes]
    # A delete by value states how many values it compares, not how many rows have them.
    if all(not delete.is_by_value for delete in applied):
        stated = sum(delete.rows for delete in applied)
        if claim.deleted_rows.rows > stated:
            raise _contradiction(f"a rewrite leaves out {claim.deleted_rows.rows} rows, its deletes state {stated}")


def _contradiction(problem: str) -> errors.Contradiction:
    return errors.Contradiction(problem, hint="this is a bug of the job that rewrites; the table is unchanged")
