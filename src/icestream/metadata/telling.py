"""When the other nodes hear that what they have stored is committed.

A leader's entries carry how far the log is committed, and so do its heartbeats. While commands follow each other that
is soon enough, and a message of its own for each commit would cost every node as much as the commands do. So:

    told --commands were applied here--> untold --the next entries leave--> told
                                           └── METADATA_TELL_SECONDS later, or somebody waits for it: a message --> told
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import limits
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks


class Telling:
    def __init__(self, clock: Clock, tasks: Tasks, tell: Callable[[], None]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._tell = tell
        self._is_untold = False
        self._is_waiting = False

    def committed(self) -> None:
        """The others may not know of it."""
        self._is_untold = True
        if not self._is_waiting:
            self._is_waiting = True
            self._tasks.start(self._tell_later(), "metadata-tell")

    def entries_sent(self) -> None:
        self._is_untold = False

    def now(self) -> None:
        """Another node waits for it."""
        if self._is_untold:
            self._is_untold = False
            self._tell()

    async def _tell_later(self) -> None:
        await self._clock.sleep(limits.METADATA_TELL_SECONDS)
        self._is_waiting = False
        self.now()
