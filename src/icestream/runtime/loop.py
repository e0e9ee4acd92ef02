"""The event loop of a process: uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Less CPU for single messages and requests, nothing else changes. None: the one of Python itself."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
