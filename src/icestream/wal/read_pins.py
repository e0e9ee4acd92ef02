"""Pins keep a file from being recycled during one read, for at most 30 s.

An older pin is broken: its file is freed, and the reader, which checks its pin after it has copied the bytes, discards
the copy and resolves its position again (hazards 15, 33). All pins of a file that was due for freeing 30 s ago are
broken too: a series of readers, one after the other, delays freeing no longer than a single one.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.runtime.clock import Clock
from icestream.wal.file_summary import FileSummary


class ReadPin:
    """One read of file `number`. `broken`: the file was freed meanwhile, the copied bytes must be discarded."""

    __slots__ = ("broken", "number", "since_ns")

    def __init__(self, number: int, since_ns: int) -> None:
        self.number = number
        self.since_ns = since_ns
        self.broken = False


class ReadPins:
    """All pins of one log, by file number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pins: dict[int, set[ReadPin]] = {}
        self._due_since_ns: dict[int, int] = {}  # by file number: since when it is due for freeing

    def pin(self, number: int) -> ReadPin:
        """Pins a file; the caller must `release` the pin, and check `broken` after its read."""
        pin = ReadPin(number, self._clock.monotonic_ns())
        self._pins.setdefault(number, set()).add(pin)
        return pin

    def release(self, pin: ReadPin) -> None:
        """Ends a pin; does nothing if it was broken."""
        pins = self._pins.get(pin.number)
        if pins is not None:
            pins.discard(pin)
            if not pins:
                del self._pins[pin.number]

    def can_free(self, number: int) -> bool:
        """Whether a spill file may be freed now. Breaks its pins if all of them have expired."""
        oldest_ns = self._clock.monotonic_ns() - int(limits.PIN_SECONDS_MAX * 1e9)
        if any(pin.since_ns > oldest_ns for pin in self._pins.get(number, set())):
            return False
        self._break_pins(number)
        return True

    def unpinned_prefix(self, files: Sequence[FileSummary]) -> list[FileSummary]:
        """The files that are due for freeing, up to the first with a valid pin. Breaks expired pins of those before."""
        now_ns = self._clock.monotonic_ns()
        oldest_ns = now_ns - int(limits.PIN_SECONDS_MAX * 1e9)
        self._due_since_ns = {file.number: self._due_since_ns.get(file.number, now_ns) for file in files}
        free: list[FileSummary] = []
        for file in files:
            pins = self._pins.get(file.number, set())
            # Both limits: a single pin expires after its own 30 s, and a file is freed 30 s after it became due,
            # however many readers pinned it since. Producers wait for this room, so readers must not hold it (hazard
            # 33).
            if self._due_since_ns[file.number] > oldest_ns and any(pin.since_ns > oldest_ns for pin in pins):
                break
            self._break_pins(file.number)
            free.append(file)
        return free

    def _break_pins(self, number: int) -> None:
        for pin in self._pins.pop(number, set()):
            pin.broken = True
