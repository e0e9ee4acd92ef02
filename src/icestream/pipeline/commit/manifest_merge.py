"""Which of a table's manifests are merged with the new files, so that a table never has many manifests. Pure.

One manifest per commit would be 17,000 in a day, and each is a request for every query planner. Manifests are merged
like the digits of a counter to the base of MANIFESTS_MERGED: that many of about the same size become one of the next
size. So a table has a few manifests of each size, and each entry is copied about four times in its life.

    newest                                                  oldest
    1 1 1 1 1 1 1 | 8 8 8 | 64 64 | 512 …                   files in each
    the eighth 1 becomes an 8; the eighth 8 becomes a 64, in the same commit

Only manifests that this pipeline wrote are merged, and only those of the spec of the new files: manifests of other
engines stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.iceberg.manifests import DATA_CONTENT, ManifestFile
from icestream.model.pipeline_file_name import PREFIX


def is_ours(manifest: ManifestFile) -> bool:
    return manifest.path.rpartition("/")[2].startswith(PREFIX)


def select_merged(manifests: Sequence[ManifestFile], spec_id: int, added: int) -> list[ManifestFile]:
    """Returns the manifests to merge with `added` new files. `manifests`: of the table, the newest first."""
    candidates = [
        manifest
        for manifest in manifests
        if manifest.spec_id == spec_id and manifest.content == DATA_CONTENT and is_ours(manifest)
    ]
    count = 0
    total_files = added
    while True:
        magnitude = _magnitude(total_files)
        end = count
        # Smaller ones, too: a later merge would otherwise stop at them.
        while end < len(candidates) and _magnitude(candidates[end].live_files) <= magnitude:
            end += 1
        merged_files = total_files + sum(manifest.live_files for manifest in candidates[count:end])
        if end - count < limits.MANIFESTS_MERGED - 1 or merged_files > limits.MANIFEST_FILES_MAX:
            return candidates[:count]
        count, total_files = end, merged_files


def _magnitude(files: int) -> int:
    magnitude = 0
    while files >= limits.MANIFESTS_MERGED:
        files //= limits.MANIFESTS_MERGED
        magnitude += 1
    return magnitude
