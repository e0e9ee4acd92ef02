"""The mark of a warehouse directory, by which the nodes of a cluster prove that they see the same directory.

    {warehouse}/.icestream-warehouse    32 random hexadecimal digits and a newline; written once, then only read

A node that finds no mark creates one. Of two nodes that do so at once, only one can create the file; the other waits
until it is written, which may become visible later on another machine.
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
    """The location of the warehouse if it is a directory in which this node creates tables; else empty."""
    location = normalize(settings.storage.iceberg_config.warehouse)
    is_ours = (
        settings.catalog_embedded or settings.catalog.type != "rest"
    )  # another catalog server chooses locations itself
    return location if is_ours and location.startswith("file:/") else ""


async def read_or_create_mark(location: str, clock: Clock, randomness: Randomness) -> str:
    """Raises ConfigurationError for a directory that cannot be used, and for a file that is not a mark."""
    path = Path(location.removeprefix("file:"))
    for _ in range(limits.WAREHOUSE_MARK_LOOKS):
        content = await asyncio.to_thread(_read_or_create, path, randomness)
        if (mark := _MARK.fullmatch(content)) is not None:
            return mark[1].decode()
        if len(content) >= _BYTES:
            break
        await clock.sleep(limits.WAREHOUSE_MARK_LOOK_SECONDS)
    raise errors.ConfigurationError(
        f"{path / MARK_NAME} is not the mark of a warehouse",
        hint="restore it from another copy of this directory; if no node of a cluster uses it yet, remove it",
    )


def _read_or_create(path: Path, randomness: Randomness) -> bytes:
    directory = open_directory(path)
    try:
        return _read(path) or _create(directory, randomness)
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path / MARK_NAME} cannot be read or written: {error.strerror}",
            hint="check the owner of the warehouse, and the account of this process",
        ) from error
    finally:
        directory.close()


def _read(path: Path) -> bytes:
    """Empty if there is no mark, or another node is about to write it."""
    try:
        with (path / MARK_NAME).open("rb") as file:
            return file.read(_BYTES + 1)
    except FileNotFoundError:
        return b""


def _create(directory: LocalDirectory, randomness: Randomness) -> bytes:
    mark = randomness.token(16).hex().encode() + b"\n"
    try:
        file = directory.create(MARK_NAME)
    except FileExistsError:
        return b""  # another node created it first: read it again
    try:
        file.write_at(0, mark)
        file.sync()
    finally:
        file.close()
    directory.sync()
    return mark
