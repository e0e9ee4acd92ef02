"""Processes of a test, none of which outlives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.child_process import ChildProcess
from tests.support.small_disk import NoSmallDisk, SmallDisk
from tests.support.writer_plan import WriterPlan

Start = Callable[[WriterPlan], ChildProcess]
MakeDisk = Callable[[int], SmallDisk]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a writer process."""
    children: list[ChildProcess] = []

    def run(plan: WriterPlan) -> ChildProcess:
        children.append(ChildProcess(plan))
        return children[-1]

    yield run
    for child in children:
        child.close()


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Makes a file system of so many bytes, where the machine lets us."""
    disks: list[SmallDisk] = []

    def make(size_bytes: int) -> SmallDisk:
        try:
            disks.append(SmallDisk(tmp_path / f"disk{len(disks)}", size_bytes))
        except NoSmallDisk as reason:
            pytest.skip(str(reason))
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()
