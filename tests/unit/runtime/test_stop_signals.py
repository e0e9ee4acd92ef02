"""Which signals stop a process in order."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from icestream.runtime.stop_signals import stop_signals, stopping_by_signal


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_each_signal_requests_a_stop(number: signal.Signals) -> None:
    stop = asyncio.Event()
    with stopping_by_signal(stop.set):
        os.kill(os.getpid(), number)
        async with asyncio.timeout(30):
            await stop.wait()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == (signal.SIGTERM, signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in stop_signals()
