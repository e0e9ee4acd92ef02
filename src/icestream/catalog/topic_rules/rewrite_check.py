"""Checks a rewrite against the files of its table (hazards 75, 77, 83). Pure.

    a replaced file is not live any more              refused: another commit has removed it; plan it again
    a delete file may apply to a replaced file        refused: the delete came after the rewrite was planned
    the snapshot changes other files than the requirement names, or an added file was written under another epoch
                                                      Contradiction
    rows or bounds differ (rewritten_rows.py), or the digests of the rows, or a digest is of another number of rows
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
from icestream.catalog.topic_rules.rewritten_rows import FileChanges, check_same_rows, find_delete
from icestream.model.pipeline_file_name import PipelineFileKind, parse_pipeline_file


def check_files(claim: RewriteClaim, changes: FileChanges, binding: Binding | None = None) -> None:
    """Raises RangeRefused for a rewrite that does not fit the table any more, and Contradiction for one that never did.
    `changes`: by the manifests of its snapshot and of the parent. `binding`: for the details of a refusal."""
    removed = {file.location for file in changes.removed}
    if gone := claim.replaced - removed:
        raise range_refused(binding, "not_live", f"{min(gone)} is not a live file of the table any more")
    if delete := find_delete(changes):
        raise range_refused(
            binding, "deleted_rows", f"rows of {delete[1].location} may be deleted by {delete[0].location}"
        )
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
    check_same_rows(changes)
    rows = sum(file.rows for file in changes.removed)
    for digest in (claim.replaced_rows, claim.added_rows):
        if digest.rows != rows:
            raise _contradiction(f"a rewrite of {rows} rows has a digest of {digest.rows}")
    if claim.replaced_rows != claim.added_rows:
        raise _contradiction(
            f"a rewrite changes rows: their digest was {claim.replaced_rows.text} and is {claim.added_rows.text}"
        )


def _contradiction(problem: str) -> errors.Contradiction:
    return errors.Contradiction(problem, hint="this is a bug of the job that rewrites; the table is unchanged")
