"""How many messages to ask for: enough that the application never waits, no more than it takes soon. Pure.

    credit = what was asked for and has not come;  held = what came and was not taken
    credit + held <= window,                       held bytes <= buffer_bytes, as far as sizes can be foreseen

The window begins small, doubles up to `prefetch` when a whole window was taken in a quarter of `drain_ns`, and halves
when messages wait longer than that: what waits here cannot be given to others, and what is not acked in time counts as
failed at the broker.
"""

from __future__ import annotations

from icestream import limits


class CreditWindow:
    def __init__(self, prefetch: int, buffer_bytes: int) -> None:
        self._prefetch = self._most = prefetch
        self._buffer_bytes = buffer_bytes
        self._row_bytes = 0.0  # of a message, lately
        self.drain_ns = 7_500_000_000
        self.window = min(prefetch, limits.CLIENT_PREFETCH_START)
        self.credit = 0
        self.held = 0
        self.held_bytes = 0
        self._taken = 0  # since then
        self._since_ns = 0

    def widen(self, most: int) -> None:
        """The application takes many at once: the window may grow to this, as far as messages are small."""
        self._most = max(self._most, most)

    def restart(self) -> None:
        """A new connection: nothing was asked for, nothing is held."""
        self.credit = self.held = self.held_bytes = 0

    def came(self, rows: int, size: int) -> bool:
        """False: more than was asked for."""
        if rows > self.credit:
            return False
        self.credit -= rows
        self.held += rows
        self.held_bytes += size
        average = size / rows
        self._row_bytes = max(average, self._row_bytes * 0.9 + average * 0.1)
        return True

    @property
    def is_over(self) -> bool:
        """More bytes wait than may."""
        return self.held_bytes > self._buffer_bytes

    def took(self, rows: int, size: int) -> None:
        """The application took some."""
        self.held -= rows
        self.held_bytes -= size

    def adapt(self, rows: int, waited_ns: int, now_ns: int) -> None:
        """So many were taken now, which had waited here so long."""
        if waited_ns > self.drain_ns:
            self.window = max(1, self.window // 2)
            self._taken, self._since_ns = 0, now_ns
            return
        self._taken += rows
        if self._taken >= self.window:
            if (now_ns - self._since_ns) * 4 < self.drain_ns:
                self.window = min(self._most, self.window * 2)
            self._taken, self._since_ns = 0, now_ns

    def grant(self) -> int:
        """How many more to ask for: in large portions, when half of the window is used up."""
        window = self.window
        if window > self._prefetch:
            likely = limits.CLIENT_PREFETCH_BATCHES_SHARE * self._buffer_bytes / max(self._row_bytes, 1.0)
            window = max(self._prefetch, min(window, int(likely)))
        if self._row_bytes * window > self._buffer_bytes:
            window = max(1, int(self._buffer_bytes / self._row_bytes))
        used = self.credit + self.held
        if used * 2 > window:
            return 0
        more = window - used
        self.credit += more
        return more
