"""When the leader sends the commit index to its followers.

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


class CommitNotice:
    def __init__(self, clock: Clock, tasks: Tasks, send: Callable[[], None]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._send = send
        self._is_pending = False
        self._is_waiting = False

    def committed(self) -> None:
        """Notes that the followers may not know the commit index."""
        self._is_pending = True
        if not self._is_waiting:
            self._is_waiting = True
            self._tasks.start(self._send_later(), "metadata-commit-notice")

    def entries_sent(self) -> None:
        self._is_pending = False

    def send_now(self) -> None:
        """Sends it now: another node waits for it."""
        if self._is_pending:
            self._is_pending = False
            self._send()

    async def _send_later(self) -> None:
        await self._clock.sleep(limits.METADATA_TELL_SECONDS)
        self._is_waiting = False
        self.send_now()
