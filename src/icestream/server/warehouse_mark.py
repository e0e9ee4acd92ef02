"""The mark of a warehouse that is a directory: by it the nodes of a cluster prove that they see the same one.

    {warehouse}/.icestream-warehouse    32 hexadecimal digits by chance and a new line; written once, then only read

Whoever finds none writes one. Two nodes that do so at once meet in the name, which only one of them can make; the other
one waits until it is written, which another machine may see later.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.cluster.shared_warehouse import MARK_NAME
from icestream.iceberg.location import normalize
from icestream.runtime.clock import Clock
from icestream.runtime.files import LocalDirectory, open_directory
from icestream.runtime.randomness import Randomness
from icestream.settings import Settings

_MARK: Final = re.compile(rb"([0-9a-f]{32})\n")
_BYTES: Final = 33


def warehouse_directory(settings: Settings) -> str:
    """The location of the warehouse, where it is a directory in which this node places tables; else empty."""
    location = normalize(settings.storage.iceberg_config.warehouse)
    is_ours = settings.catalog_embedded or settings.catalog.type != "rest"  # another server places them itself
    return location if is_ours and location.startswith("file:/") else ""


async def read_or_create_mark(location: str, clock: Clock, randomness: Randomness) -> str:
    """Raises ConfigurationError for a directory that cannot be used, and for a file that is no mark."""
    path = Path(location.removeprefix("file:"))
    for _ in range(limits.WAREHOUSE_MARK_LOOKS):
        found = await asyncio.to_thread(_found_or_made, path, randomness)
        if (mark := _MARK.fullmatch(found)) is not None:
            return mark[1].decode()
        if len(found) >= _BYTES:
            break
        await clock.sleep(limits.WAREHOUSE_MARK_LOOK_SECONDS)
    raise errors.ConfigurationError(
        f"{path / MARK_NAME} is not the mark of a warehouse",
        hint="restore it from another copy of this directory; if no node of a cluster uses it yet, remove it",
    )


def _found_or_made(path: Path, randomness: Randomness) -> bytes:
    directory = open_directory(path)
    try:
        return _read(path) or _made(directory, randomness)
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path / MARK_NAME} cannot be read or written: {error.strerror}",
            hint="check who owns the warehouse, and which account runs this",
        ) from error
    finally:
        directory.close()


def _read(path: Path) -> bytes:
    """Empty: there is none, or somebody is about to write it."""
    try:
        with (path / MARK_NAME).open("rb") as file:
            return file.read(_BYTES + 1)
    except FileNotFoundError:
        return b""


def _made(directory: LocalDirectory, randomness: Randomness) -> bytes:
    mark = randomness.token(16).hex().encode() + b"\n"
    try:
        file = directory.create(MARK_NAME)
    except FileExistsError:
        return b""  # somebody else was faster: looked at again
    try:
        file.write_at(0, mark)
        file.sync()
    finally:
        file.close()
    directory.sync()
    return mark
