"""CreditWindow: how many messages to request, so that the application never waits and little lies unused. Pure.

    credit = requested, not arrived;  buffered = arrived, not taken
    credit + buffered <= window,      buffered bytes <= buffer_bytes, as far as sizes can be predicted

The window begins small, doubles up to `prefetch` when a whole window was taken in a quarter of `drain_ns`, and halves
when messages wait longer than `drain_ns`: messages that wait here cannot go to other consumers, and a message that is
not acked in time counts as failed at the broker.
"""

from __future__ import annotations

from icestream import limits


class CreditWindow:
    """The credit of one consumer on its present connection."""

    def __init__(self, prefetch: int, buffer_bytes: int) -> None:
        self._prefetch = self._window_max = prefetch
        self._buffer_bytes = buffer_bytes
        self._row_bytes = 0.0  # of a message; a peak that decays to the average
        self.drain_ns = 7_500_000_000
        self.window = min(prefetch, limits.CLIENT_PREFETCH_START)
        self.credit = 0
        self.buffered = 0
        self.buffered_bytes = 0
        self._rows_taken = 0  # since `_measured_from_ns`
        self._measured_from_ns = 0

    def widen(self, window_max: int) -> None:
        """Lets the window grow to `window_max`, if messages are small: the application takes many at once."""
        self._window_max = max(self._window_max, window_max)

    def restart(self) -> None:
        """Begins with a new connection: nothing is requested or buffered."""
        self.credit = self.buffered = self.buffered_bytes = 0

    def arrived(self, rows: int, size: int) -> bool:
        """Accounts for messages that arrived. False if they are more than were requested."""
        if rows > self.credit:
            return False
        self.credit -= rows
        self.buffered += rows
        self.buffered_bytes += size
        # A peak at once, an average slowly: too small an estimate would overrun the buffer.
        average = size / rows
        self._row_bytes = max(average, self._row_bytes * 0.9 + average * 0.1)
        return True

    @property
    def is_over(self) -> bool:
        """True if more bytes are buffered than allowed."""
        return self.buffered_bytes > self._buffer_bytes

    def release(self, rows: int, size: int) -> None:
        """Accounts for messages that left the buffer."""
        self.buffered -= rows
        self.buffered_bytes -= size

    def adapt(self, rows: int, waited_ns: int, now_ns: int) -> None:
        """Adapts the window after `rows` messages were taken, which had waited for `waited_ns`."""
        # Shrinks at once, grows only after a whole window: messages that wait too long fail at the broker, whereas a
        # window that is too small only costs throughput.
        if waited_ns > self.drain_ns:
            self.window = max(1, self.window // 2)
            self._rows_taken, self._measured_from_ns = 0, now_ns
            return
        self._rows_taken += rows
        if self._rows_taken >= self.window:
            if (now_ns - self._measured_from_ns) * 4 < self.drain_ns:
                self.window = min(self._window_max, self.window * 2)
            self._rows_taken, self._measured_from_ns = 0, now_ns

    def grant(self) -> int:
        """Returns how many more messages to request, and counts them as credit. 0 until half of the window is used up,
        so that CREDIT frames are few."""
        window = self.window
        if window > self._prefetch:
            likely = limits.CLIENT_PREFETCH_BATCHES_SHARE * self._buffer_bytes / max(self._row_bytes, 1.0)
            window = max(self._prefetch, min(window, int(likely)))
        if self._row_bytes * window > self._buffer_bytes:  # one message at least, however large: else none would come
            window = max(1, int(self._buffer_bytes / self._row_bytes))
        used = self.credit + self.buffered
        if used * 2 > window:
            return 0
        more = window - used
        self.credit += more
        return more
