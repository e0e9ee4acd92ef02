"""The disk of the broker's log, as another process sees it: is it this one, and do producers write to it now?

The log's newest files are looked at, by number: one of them is written with every message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PATTERN: Final = "log-*.wal"
_NEWEST: Final = 3  # the one that is written, the next one, and one that was sealed just now


class LogDiskMonitor:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: list[tuple[str, int]] = []

    def is_busy(self, disks: set[int]) -> bool:
        """Whether it is one of these, and the log was written since somebody asked last."""
        try:
            if self._folder.stat().st_dev not in disks:
                return False
            newest = sorted((one.name for one in self._folder.glob(_PATTERN)), reverse=True)[:_NEWEST]
            now = [(name, (self._folder / name).stat().st_mtime_ns) for name in newest]
        except OSError:
            return False
        before, self._seen = self._seen, now
        return bool(before) and now != before
