"""Metadata files that a commit let go of, until they are old enough to be removed (hazards 13, 23, 27).

A table may say that its old metadata files go (`write.metadata.delete-after-commit.enabled`). An engine that loaded the
table, or a node with an older look at the pointer, may still read one of them: it goes an hour later. What is kept here
is lost with the process; then it is found among the left-overs (leftovers.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from icestream import limits


class RetiredFiles:
    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str]] = deque(maxlen=limits.CATALOG_RETIRED_MAX)  # due at, location
        self.on_first: Callable[[], None] | None = None  # called when there is something to wait for

    def add(self, locations: Iterable[str], now_ms: int) -> None:
        was_empty = not self._waiting
        self._waiting.extend((now_ms + limits.CATALOG_FILE_GRACE_MS, location) for location in locations)
        if was_empty and self._waiting and self.on_first is not None:
            self.on_first()

    @property
    def next_due_ms(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def take(self, now_ms: int) -> str | None:
        """One that is due, which the caller removes."""
        if not self._waiting or self._waiting[0][0] > now_ms:
            return None
        return self._waiting.popleft()[1]
