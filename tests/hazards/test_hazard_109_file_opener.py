"""Hazard 109: readers open what a table names with the rights of this process: regular files, no link out of a root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icestream import errors
from icestream.iceberg.file_io import LocalFiles, open_inside
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.tasks import InlineOffload

pytestmark = pytest.mark.asyncio


def hostile_paths(root: Path) -> dict[str, str]:
    """A pipe, a directory, links out of the root to a file and to a directory, and an escape."""
    warehouse, outside = root / "warehouse", root / "outside"
    (warehouse / "folder").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (warehouse / "plain").write_bytes(b"plain")
    os.mkfifo(warehouse / "pipe")
    (warehouse / "link").symlink_to(outside / "secret")
    (warehouse / "linked").symlink_to(outside)
    names = ("pipe", "folder", "link", "linked/secret", "folder/%2e%2e/plain", "folder/../plain")
    return {name: f"file:{warehouse}/{name}" for name in names}


async def test_hazard_109_a_reader_opens_regular_files_of_the_root_only(tmp_path: Path) -> None:
    hostile = hostile_paths(tmp_path)
    root = f"file:{tmp_path}/warehouse"
    open_file = file_opener(LocalFiles(open_inside([root]), InlineOffload()), [root])
    with open_file(f"{root}/plain") as file:
        assert file.read() == b"plain"
    for path in hostile.values():
        with pytest.raises((OSError, errors.InvalidInput)):
            open_file(path)


async def test_hazard_109_metadata_files_are_regular_files_of_the_root_only(tmp_path: Path) -> None:
    hostile = hostile_paths(tmp_path)
    files = LocalFiles(open_inside([f"file:{tmp_path}/warehouse"]), InlineOffload())
    assert await files.read(f"file:{tmp_path}/warehouse/plain") == b"plain"
    for path in hostile.values():
        with pytest.raises(errors.IcestreamError) as refused:
            await files.read(path)
        assert b"secret" not in str(refused.value).encode().replace(path.encode(), b"").replace(b"outside/secret", b"")
