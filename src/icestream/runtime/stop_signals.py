"""The signals that request an orderly stop of a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which a terminal sends when it is closed.

    Not SIGHUP if the process was started to ignore it, as `nohup` does. SIGHUP does not reload settings: those that may
    change while a broker runs are changed with `icestream config set`.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT) if is_ignored else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def stopping_by_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Calls `stop` for each of these signals, on the running loop."""
    loop, numbers = asyncio.get_running_loop(), stop_signals()
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
