"""Whether what tasks wrote elsewhere is there for everybody, looked at before a commit names it (hazard 29).

Executors of a cluster may be other machines. A warehouse of `file:` that these do not share takes their files on a disk
of each of them: the table would name files that nobody else has, and the log would let the messages go. So each file is
looked at from here, where the commit is made: that it is there, and as long as its task said. An object store is one
place for all, and tasks of a local master write to the disks that we see: there nothing is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from icestream import errors
from icestream.iceberg.file_io import TableFiles
from icestream.model.task_messages import WrittenFile


class FilePresenceCheck:
    def __init__(self, files: TableFiles) -> None:
        self._files = files

    async def check(self, written: Sequence[WrittenFile]) -> None:
        """Raises ConfigurationError for a file that is not here as it was written."""
        local = [one for one in written if one.location.startswith("file:")]
        sizes = await asyncio.gather(*(self._files.size(one.location) for one in local))
        for file, size in zip(local, sizes, strict=True):
            if size != file.size_bytes:
                there = f"it has {size} bytes of {file.size_bytes}" if size else "it is not there"
                raise errors.ConfigurationError(
                    f"an executor wrote {file.location}, and on this machine {there}",
                    hint="storage.iceberg_config.warehouse must be a directory that all machines of the Spark cluster "
                    "and this one share under the same path, or an object store (docs/pipeline.md)",
                )
