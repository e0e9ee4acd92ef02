"""Reading a range of a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

native = pytest.importorskip("icestream_native", reason="the native extension is not built (make native)")
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(CONTENT)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("position", "length"), [(0, 0), (0, 1), (7, 1000), (0, len(CONTENT)), (255_999, 1)])
def test_reads_a_range(fd: int, position: int, length: int) -> None:
    assert native.read_at(fd, position, length) == CONTENT[position : position + length]


@pytest.mark.parametrize(("position", "length"), [(0, 10**6), (255_990, 100), (256_000, 5), (10**9, 5)])
def test_is_short_only_at_the_end(fd: int, position: int, length: int) -> None:
    assert native.read_at(fd, position, length) == CONTENT[position:]


def test_errors_are_those_of_the_operating_system(fd: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="descriptor") as caught:
        native.read_at(10**6, 0, 10)
    assert caught.value.errno == errno.EBADF
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        native.read_at(directory, 0, 10)
    os.close(directory)
    with pytest.raises(OSError, match="Invalid argument"):
        native.read_at(fd, -1, 10)
    with pytest.raises(OverflowError):
        native.read_at(fd, 0, -1)
