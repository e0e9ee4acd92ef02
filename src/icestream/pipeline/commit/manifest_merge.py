"""Which of a table's manifests are written together with the new files, so that a table never has many. Pure.

One manifest for each commit would be 17,000 in a day, and each is a request of whoever plans a query. As in a counter
to the base of MANIFESTS_MERGED: that many of about the same size become one of the next size. So a table has a few
manifests of each size, and each entry is copied about four times in its life.

    newest                                                  oldest
    1 1 1 1 1 1 1 | 8 8 8 | 64 64 | 512 …                   files in each
    the eighth of 1 comes: one of 8; the eighth of 8: one of 64, in the same commit

Only manifests that we wrote are touched, of the spec that new files have: those of others stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.iceberg.manifests import DATA_CONTENT, ManifestFile
from icestream.model.pipeline_file_name import PREFIX


def is_ours(manifest: ManifestFile) -> bool:
    return manifest.path.rpartition("/")[2].startswith(PREFIX)


def merged(manifests: Sequence[ManifestFile], spec_id: int, added: int) -> list[ManifestFile]:
    """`manifests`: of the table, the newest first. `added`: files that are new. Those to merge with them."""
    able = [one for one in manifests if one.spec_id == spec_id and one.content == DATA_CONTENT and is_ours(one)]
    taken = 0
    total = added
    while True:
        size = _size(total)
        end = taken
        while end < len(able) and _size(able[end].live_files) <= size:
            end += 1
        together = total + sum(one.live_files for one in able[taken:end])
        if end - taken < limits.MANIFESTS_MERGED - 1 or together > limits.MANIFEST_FILES_MAX:
            return able[:taken]
        taken, total = end, together


def _size(files: int) -> int:
    size = 0
    while files >= limits.MANIFESTS_MERGED:
        files //= limits.MANIFESTS_MERGED
        size += 1
    return size
