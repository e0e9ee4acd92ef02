"""How far a verifier has come, of what it knows so far that there is to do. Pure."""

from __future__ import annotations

from icestream.readers.verify.verify_report import VerifyProgress


class ProgressCount:
    def __init__(self) -> None:
        self._done = 0
        self._all = 0

    def more(self, found: int) -> VerifyProgress:
        """There is more to do than was known."""
        self._all += found
        return self.now()

    def further(self, done: int) -> VerifyProgress:
        self._done += done
        return self.now()

    def now(self) -> VerifyProgress:
        return VerifyProgress(min(self._done, self._all), self._all)

    def end(self) -> VerifyProgress:
        return VerifyProgress(self._all, self._all)
