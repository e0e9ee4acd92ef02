"""A child's side of supervision: its stdin is a pipe that only the parent holds (hazard 39).

When the pipe ends, the child stops in order. The parent also uses it to stop the child. A child that hangs is killed by
the kernel instead (processes/child_main.py).
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable

from icestream import errors


class ParentPipe(asyncio.Protocol):
    """Calls `on_end` once, when the parent closes the pipe or is gone."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end()


async def watch_parent(on_end: Callable[[], None]) -> asyncio.ReadTransport:
    """Watches stdin; returns the transport, which must be kept. Raises ConfigurationError if stdin is not a pipe."""
    mode = os.fstat(0).st_mode
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        raise errors.ConfigurationError("a child process needs a pipe as its stdin", hint="icestream lake serve")
    pipe = os.fdopen(os.dup(0), "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: ParentPipe(on_end), pipe)
    return transport
