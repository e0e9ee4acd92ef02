"""Symbolic links must not lead out of the warehouse: a purge would remove what lies there, such as the broker's log.

What lies in a root by its name must lie in one in truth. A descriptor that is open is asked where it is, so nobody can
change the way afterwards; whoever holds it reaches everything by it. A root may itself be a link, and be moved while
we run: then all of them are looked at again. What no root holds by its name is for others to judge (location.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import EXDEV
from pathlib import Path

from icestream.iceberg.location import is_inside, normalize_or_none


class SymlinkEscape(OSError):
    """Nothing was read, written or removed."""

    def __init__(self, path: Path, place: str) -> None:
        super().__init__(EXDEV, f"a symbolic link leads out of the warehouse, to {place}", str(path))


class SymlinkGuard:
    def __init__(self, roots: Sequence[str]) -> None:
        """`roots`: locations. Those that are no local directories do not matter here; others refuse what is none."""
        found = [normalize_or_none(root) for root in roots]
        self._roots = [one.removeprefix("file:") for one in found if one and one.startswith("file:/")]
        self._places: list[str] = []  # where the roots are in truth

    def check_open(self, fd: int, path: Path) -> None:
        self._check(path, place_of(fd, path))

    def check_new(self, path: Path) -> None:
        """Before it is made, with those above it."""
        self._check(path, os.path.realpath(path))

    def _check(self, path: Path, place: str) -> None:
        if any(is_inside(place, root) for root in self._places):
            return
        if not any(is_inside(str(path), root) for root in self._roots):
            return
        self._places = [os.path.realpath(root) for root in self._roots]
        if not any(is_inside(place, root) for root in self._places):
            raise SymlinkEscape(path, place)


def place_of(fd: int, path: Path) -> str:
    """Where an open file or directory is in truth; `path` is how it was called, for systems that cannot be asked."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  # on the way of every commit
    except OSError:
        return os.path.realpath(path)
