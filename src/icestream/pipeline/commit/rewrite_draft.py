"""The part of a commit that replaces files: where the replaced files are, and whether the new ones hold their rows.

Our own catalog judges a rewrite again, in the transaction of its commit. Another catalog does not, so this check runs
before every attempt, on the manifests of the snapshot that the attempt requires to be main.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors
from icestream.catalog.topic_rules.rewrite_check import check_files
from icestream.catalog.topic_rules.rewritten_rows import (
    DataFile,
    DeleteFile,
    FileChanges,
    bound_columns,
    data_file_of_entry,
    data_file_of_written,
    delete_file_of_entry,
)
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import DATA_CONTENT
from icestream.pipeline.commit import manifest_merge
from icestream.pipeline.commit.offset_ledger import TopicCommit, rewrite_claim
from icestream.pipeline.commit.snapshot_builder import ManifestChange


async def check_rewrite(commit: TopicCommit, manifests: ManifestCache) -> None:
    """Checks a rewrite against the files of its table, whose manifests are loaded.

    Raises RangeRefused if the table has changed so that the rewrite must be planned again; Contradiction if the new
    files cannot hold the rows of the replaced ones.
    """
    check_files(rewrite_claim(commit), await _file_changes(commit, manifests))


async def _file_changes(commit: TopicCommit, manifests: ManifestCache) -> FileChanges:
    """The files that the rewrite removes and adds, and the delete files of the table. A replaced file that is not live
    is left out, which `check_files` refuses."""
    columns, replaced = bound_columns(commit.table.table), set(commit.removed_files)
    removed: list[DataFile] = []
    deletes: list[DeleteFile] = []
    for manifest in commit.table.manifests or ():
        if manifest.content != DATA_CONTENT:
            deletes += [
                delete_file_of_entry(entry, manifest.sequence_number)
                for entry in await manifests.live_entries(manifest)
            ]
        elif len(removed) < len(replaced):
            removed += [
                data_file_of_entry(entry, columns, manifest.sequence_number)
                for entry in await manifests.live_entries(manifest)
                if entry.file_path in replaced
            ]
    sequence_number = commit.table.table.fields["last-sequence-number"] + 1
    return FileChanges(
        removed, [data_file_of_written(file, columns, sequence_number) for file in commit.files], deletes
    )


async def with_removals(
    commit: TopicCommit, changes: Sequence[ManifestChange], manifests: ManifestCache
) -> list[ManifestChange]:
    """The changes of a rewrite, each of which also rewrites the manifests that hold replaced files of its spec. Raises
    CommitConflict for a replaced file in a manifest that the pipeline does not rewrite."""
    remaining = set(commit.removed_files)
    extended = []
    for change in changes:
        merged, removed = list(change.merged), set()
        for manifest in commit.table.manifests or ():
            if manifest.spec_id != change.layout.spec_id or not manifest_merge.is_ours(manifest):
                continue
            entries = (await manifests.entries(change.layout, [manifest]))[manifest.path]
            matches = remaining.intersection(entry.file_path for entry in entries)
            if matches and manifest not in merged:
                merged.append(manifest)
            removed |= matches
            remaining -= matches
        extended.append(change._replace(merged=merged, removed=frozenset(removed)))
    if remaining:
        # A manifest of another engine may have fields that this code does not write, and a file of another partition
        # spec needs a manifest of its own.
        raise errors.CommitConflict(
            f"{commit.table.identifier}: {min(remaining)} is in a manifest of another engine, or of another partition "
            "spec than the files that replace it"
        )
    return extended
