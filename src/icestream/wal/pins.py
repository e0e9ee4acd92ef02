"""Keeps a file from being recycled while one read is under way; never for longer, and never against the log's will.

A pin is for one read and at most 30 s. An older one is broken: its file is freed, and the reader, which looks at its
pin after it has copied the bytes, throws the copy away and resolves its position again (hazards 15, 33). So is every
pin of a file that was to be freed 30 s ago: readers that come one after the other hold it no longer than one.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.runtime.clock import Clock
from icestream.wal.summary import FileSummary


class Pin:
    __slots__ = ("broken", "number", "since_ns")

    def __init__(self, number: int, since_ns: int) -> None:
        self.number = number
        self.since_ns = since_ns
        self.broken = False


class Pins:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pins: dict[int, set[Pin]] = {}
        self._wanted_ns: dict[int, int] = {}  # since when a file is to be freed

    def take(self, number: int) -> Pin:
        pin = Pin(number, self._clock.monotonic_ns())
        self._pins.setdefault(number, set()).add(pin)
        return pin

    def release(self, pin: Pin) -> None:
        held = self._pins.get(pin.number)
        if held is not None:
            held.discard(pin)
            if not held:
                del self._pins[pin.number]

    def let_go(self, number: int) -> bool:
        """Whether a file that is not one of the log's own may go now; pins that held it too long are broken."""
        oldest_ns = self._clock.monotonic_ns() - int(limits.PIN_SECONDS_MAX * 1e9)
        pins = self._pins.get(number, set())
        if any(pin.since_ns > oldest_ns for pin in pins):
            return False
        for pin in pins:
            pin.broken = True
        self._pins.pop(number, None)
        return True

    def without_pinned(self, files: Sequence[FileSummary]) -> list[FileSummary]:
        """The files up to the first that is really pinned; pins that held it too long are broken on the way."""
        now_ns = self._clock.monotonic_ns()
        oldest_ns = now_ns - int(limits.PIN_SECONDS_MAX * 1e9)
        self._wanted_ns = {file.number: self._wanted_ns.get(file.number, now_ns) for file in files}
        free: list[FileSummary] = []
        for file in files:
            pins = self._pins.get(file.number, set())
            if self._wanted_ns[file.number] > oldest_ns and any(pin.since_ns > oldest_ns for pin in pins):
                break
            for pin in pins:
                pin.broken = True
            self._pins.pop(file.number, None)
            free.append(file)
        return free
