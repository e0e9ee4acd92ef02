"""Checks that the files which tasks wrote on other machines are visible here, before a commit refers to them (hazard
29).

Executors of a Spark cluster may be other machines. If the warehouse is a `file:` directory that they do not share, each
writes to its own disk: the table would refer to files that no other machine has, and the log would drop the messages.
So each file is looked up from here, where the commit is made: it must exist with the size that its task reported. An
object store is shared by all machines, and the tasks of a local master write to this machine's disks: neither is
checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from icestream import errors
from icestream.iceberg.file_io import TableFiles
from icestream.model.task_messages import WrittenFile


class FilePresenceCheck:
    """Checks that local files are on this machine."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files

    async def check(self, written: Sequence[WrittenFile]) -> None:
        """Raises ConfigurationError for a file that is not here as it was written."""
        local_files = [file for file in written if file.location.startswith("file:")]
        sizes = await asyncio.gather(*(self._files.size(file.location) for file in local_files))
        for file, size in zip(local_files, sizes, strict=True):
            if size != file.size_bytes:
                problem = f"it has {size} bytes of {file.size_bytes}" if size else "it does not exist"
                raise errors.ConfigurationError(
                    f"an executor wrote {file.location}, but on this machine {problem}",
                    hint="storage.iceberg_config.warehouse must be a directory that all machines of the Spark cluster "
                    "and this one share under the same path, or an object store (docs/pipeline.md)",
                )
