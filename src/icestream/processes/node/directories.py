"""Checks and creates the directories that a broker writes to, before anything is opened in them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from icestream import errors
from icestream.processes.node.warehouse_mark import warehouse_directory
from icestream.runtime.files import make_directory
from icestream.settings import Settings

WAREHOUSE: Final = "storage.iceberg_config.warehouse"


def check_directories(settings: Settings) -> None:
    """Creates missing directories. Raises ConfigurationError for one that cannot be used, DiskFull without room."""
    for key, path in directories(settings):
        check_directory(key, path, _mode(settings, key))
    location = warehouse_directory(settings) if settings.storage.type != "memory" else ""
    if location:
        check_warehouse(Path(location.removeprefix("file:")), is_written=settings.lake.managed)


def check_warehouse(path: Path, *, is_written: bool) -> None:
    """Raises ConfigurationError for a warehouse directory that cannot be used.

    The directory is not created here: the lake process creates it with the right modes, and an empty directory would
    hide that a share is not mounted. `is_written`: processes of this account write to it; else only a file in its place
    is refused.
    """
    nearest = next(part for part in (path, *path.parents) if part.exists())
    if not nearest.is_dir():
        raise _is_a_file(WAREHOUSE, path, nearest, f"set {WAREHOUSE} to a directory, such as file:/srv/warehouse")
    if is_written and not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        problem = "cannot be written" if nearest == path else f"cannot be created: {nearest} cannot be written"
        raise errors.ConfigurationError(
            f"the directory {path} ({WAREHOUSE}) {problem} by this account",
            hint=f"start the broker with the account that owns it, mount its file system writable, or set {WAREHOUSE} "
            "to another directory",
        )


def directories(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Setting and path of each directory, parents first."""
    if settings.storage.type == "memory":
        if settings.lake.managed:  # for the local socket
            yield "data_dir", settings.data_dir
        return
    yield "data_dir", settings.data_dir
    yield "storage.iceberg_config.wal.base_path", Path(settings.wal.base_path)
    yield "meta_store.data_dir", Path(settings.meta_store.data_dir)


def _mode(settings: Settings, key: str) -> int:
    """The mode of a directory that is made: messages and keys are for this account only.

    Engines of other accounts must get through `data_dir` to a warehouse below it, if `file_access` lets them read it.
    """
    store = settings.storage.iceberg_config.object_store
    location = warehouse_directory(settings) if settings.storage.type != "memory" else ""
    below = location and Path(location.removeprefix("file:")).is_relative_to(settings.data_dir.absolute())
    passing = {"owner": 0, "group": 0o010, "all": 0o011}[store.file_access] if below and key == "data_dir" else 0
    return 0o700 | passing


def check_directory(key: str, path: Path, mode: int = 0o700) -> None:
    """Raises as `check_directories` does. `key`: the setting that names the directory."""
    try:
        make_directory(path, mode)
    except OSError as error:
        raise _creation_error(key, path, error) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise errors.ConfigurationError(
            f"the directory {path} ({key}) cannot be written by this account",
            hint=f"start the broker with the account that owns it, mount its file system writable, or set {key} to "
            "another directory",
        )


def _creation_error(key: str, path: Path, error: OSError) -> errors.IcestreamError:
    elsewhere = f"set {key} to a directory that this account may write, such as --set {key}=DIRECTORY"
    if error.errno == errno.ENOSPC:
        return errors.DiskFull(
            f"the directory {path} ({key}) cannot be created: {error.strerror}",
            hint="free some space, then start again",
        )
    file = next((part for part in (path, *path.parents) if part.exists() and not part.is_dir()), None)
    if file is not None:
        return _is_a_file(key, path, file, elsewhere)
    return errors.ConfigurationError(
        f"the directory {path} ({key}) cannot be created: {error.strerror or error}", hint=elsewhere
    )


def _is_a_file(key: str, path: Path, file: Path, hint: str) -> errors.ConfigurationError:
    """`file` is `path` itself or one of its parents."""
    problem = "is a file" if file == path else f"cannot be created: {file} is a file"
    return errors.ConfigurationError(f"{path} ({key}) {problem}, and must be a directory", hint=hint)
