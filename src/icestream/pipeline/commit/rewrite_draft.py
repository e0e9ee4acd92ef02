"""The part of a commit that replaces or removes files: where these files are, and whether the commit may go on.

Our own catalog judges a job again, in the transaction of its commit. Another catalog does not, so this check runs
before every attempt, on the manifests of the snapshot that the attempt requires to be main.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.catalog.topic_rules.retention_claim import is_below
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
from icestream.iceberg.delete_manifests import DeleteRemoval
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_rewrite import FilesRemoval
from icestream.iceberg.manifests import DATA_CONTENT, ManifestFile, ManifestLayout
from icestream.iceberg.table_metadata import TableMetadata
from icestream.pipeline.commit import manifest_merge
from icestream.pipeline.commit.offset_ledger import TopicCommit, rewrite_claim
from icestream.pipeline.commit.snapshot_builder import ManifestChange, Operation


async def check_rewrite(commit: TopicCommit, manifests: ManifestCache) -> None:
    """Checks a rewrite against the files of its table, whose manifests are loaded.

    Raises RangeRefused if the table has changed so that the rewrite must be planned again; Contradiction if the new
    files cannot hold the rows of the replaced ones.
    """
    changes = await _file_changes(commit, manifests)
    check_files(rewrite_claim(commit), changes)
    await _check_moved(commit, manifests, changes)


async def _check_moved(commit: TopicCommit, manifests: ManifestCache, changes: FileChanges) -> None:
    """Raises RangeRefused for files that change their partition spec, if a delete by value came after they were read.
    It applies to a partition of the former spec: the rows that it deletes would come back."""
    specs, replaced = {file.spec_id for file in commit.files}, set(commit.removed_files)
    others = [
        manifest
        for manifest in commit.table.manifests or ()
        if specs and manifest.content == DATA_CONTENT and manifest.spec_id not in specs
    ]
    younger = [
        delete for delete in changes.deletes if delete.is_by_value and delete.sequence_number > commit.sequence_number
    ]
    if not younger:
        return
    for manifest in others:
        if any(entry.file_path in replaced for entry in await manifests.live_entries(manifest)):
            raise range_refused(
                None, "deleted_rows", f"rows of {manifest.path} may be deleted by {younger[0].location}"
            )


async def check_retention(commit: TopicCommit, manifests: ManifestCache) -> None:
    """Checks a retention against the files of its table, whose manifests are loaded.

    Raises RangeRefused if the table has changed so that it must be planned again; Contradiction if a removed file may
    hold rows that are kept.
    """
    changes, committed = await _file_changes(commit, manifests), commit.table.next_offsets
    if not_live := set(commit.removed_files) - {file.location for file in changes.removed}:
        raise range_refused(None, "not_live", f"{min(not_live)} is not a live file of the table any more")
    for shard, offset in commit.first.items():
        if offset > committed.get(shard, 0):
            raise range_refused(None, "not_committed", f"shard {shard} is not committed up to {offset}")
    if not_expired := [file.location for file in changes.removed if not is_below(file, commit.first)]:
        raise errors.Contradiction(f"a retention removes {not_expired[0]}, which may hold rows that are kept")


def layouts(table: TableMetadata, manifests: Sequence[ManifestFile], cache: ManifestCache) -> list[ManifestLayout]:
    """The layouts of manifests that a commit without new files may have to write again: one of each partition spec."""
    used = {manifest.spec_id for manifest in manifests if manifest.content == DATA_CONTENT}
    specs = [spec for spec in table.fields["partition-specs"] if spec["spec-id"] in used]
    return [cache.layout(table, table.current_schema, spec) for spec in specs]


async def _file_changes(commit: TopicCommit, manifests: ManifestCache) -> FileChanges:
    """The files that the job removes and adds, and the delete files of the table. A replaced file that is not live is
    left out, which `check_files` refuses."""
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
    added = [data_file_of_written(file, columns, commit.sequence_number) for file in commit.files]
    return FileChanges(removed, added, deletes)


async def removed_deletes(commit: TopicCommit, manifests: ManifestCache) -> list[DeleteRemoval]:
    """The manifests of delete files that a rewrite changes, without the delete files that no file needs after it: of
    those that it has applied. Any file of the table may need one, whatever its partition spec, so all are looked at."""
    if not commit.applied_deletes:
        return []
    columns, replaced = bound_columns(commit.table.table), set(commit.removed_files)
    live = [data_file_of_written(file, columns, commit.sequence_number) for file in commit.files]
    deletes: list[tuple[ManifestFile, DeleteFile]] = []
    for manifest in commit.table.manifests or ():
        for entry in await manifests.live_entries(manifest):
            if manifest.content != DATA_CONTENT:
                deletes.append((manifest, delete_file_of_entry(entry, manifest.sequence_number)))
            elif entry.file_path not in replaced:
                live.append(data_file_of_entry(entry, columns, manifest.sequence_number))
    unneeded: dict[str, tuple[ManifestFile, set[str]]] = {}
    for manifest, delete in deletes:
        if delete.name in commit.applied_deletes and not any(map(delete.may_apply_to, live)):
            unneeded.setdefault(manifest.path, (manifest, set()))[1].add(delete.name)
    return [
        await manifests.without_deletes(manifest, names, commit.snapshot_id) for manifest, names in unneeded.values()
    ]


async def foreign_removals(commit: TopicCommit, manifests: ManifestCache) -> list[FilesRemoval]:
    """The manifests of other writers that hold files which an erasure removes, without these. Raises CommitConflict
    for a file that no manifest has."""
    removed = set(commit.removed_files)
    removals: list[FilesRemoval] = []
    for manifest in commit.table.manifests or ():
        if manifest.content != DATA_CONTENT:
            continue
        matches = {entry.file_path for entry in await manifests.live_entries(manifest)} & removed
        removed -= matches
        if matches and not manifest_merge.is_ours(manifest):
            removals.append(await manifests.without_files(commit.table.table, manifest, matches))
    if removed:
        raise errors.CommitConflict(f"{commit.table.identifier}: {min(removed)} is not a live file of the table")
    return removals


async def with_removals(
    commit: TopicCommit, changes: Sequence[ManifestChange], manifests: ManifestCache
) -> list[ManifestChange]:
    """The changes of a job, each of which also rewrites the manifests that hold removed files of its spec. Those that
    change nothing are left out. Raises CommitConflict for a removed file in a manifest that is not rewritten."""
    remaining = set(commit.removed_files)
    extended = []
    for change in changes:
        merged, removed = list(change.merged), set()
        for manifest in commit.table.manifests or ():
            is_of_spec = manifest.content == DATA_CONTENT and manifest.spec_id == change.layout.spec_id
            if not remaining or not is_of_spec or not manifest_merge.is_ours(manifest):
                continue
            entries = (await manifests.entries(change.layout, [manifest]))[manifest.path]
            matches = remaining.intersection(entry.file_path for entry in entries)
            if matches and manifest not in merged:
                merged.append(manifest)
            removed |= matches
            remaining -= matches
        extended.append(change._replace(merged=merged, removed=frozenset(removed)))
    if remaining and commit.operation is not Operation.OVERWRITE:
        # A manifest of another engine may have fields that this code does not write. An erasure writes its records
        # again as they are (`foreign_removals`).
        raise errors.CommitConflict(f"{commit.table.identifier}: {min(remaining)} is in a manifest of another engine")
    return [change for change in extended if change.added or change.removed]
