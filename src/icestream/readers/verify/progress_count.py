"""How far a verifier has come, of what it knows so far that there is to do. Pure."""

from __future__ import annotations

from icestream.readers.verify.report import Progress


class ProgressCount:
    def __init__(self) -> None:
        self._done = 0
        self._all = 0

    def more(self, found: int) -> Progress:
        """There is more to do than was known."""
        self._all += found
        return self.now()

    def further(self, done: int) -> Progress:
        self._done += done
        return self.now()

    def now(self) -> Progress:
        return Progress(min(self._done, self._all), self._all)

    def end(self) -> Progress:
        return Progress(self._all, self._all)
