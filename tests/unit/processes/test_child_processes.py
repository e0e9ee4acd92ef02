"""A child process of the broker: restarted with a growing backoff, and stopped by the broker."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from icestream import limits
from icestream.processes.node.child_processes import ChildProcess
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.connection_room import RoomState

Found = TypeVar("Found")
HANGS_SECONDS = 20.0
READY = "print('{\"port\": 7}', flush=True); "
UNTIL_ASKED = READY + "import sys; sys.stdin.read()"
DEAF = READY + "import time; time.sleep(1000)"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(HANGS_SECONDS):
        while not is_true():  # noqa: ASYNC110 (another process does it)
            await asyncio.sleep(0.001)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def lived(child: ChildProcess, work: Awaitable[Found]) -> Found:
    running = asyncio.create_task(child.run())
    try:
        return await work
    finally:
        await child.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_pause_doubles_and_has_an_end() -> None:
    first, last = limits.CHILD_RETRY_SECONDS_MIN, limits.CHILD_RETRY_SECONDS_MAX
    assert [backoff_seconds(failures, first, last) for failures in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert {backoff_seconds(failures, first, last) for failures in range(7, 2000)} == {last}


def test_a_child_is_up_when_it_reports_so_and_down_after_a_stop() -> None:
    child = ChildProcess("lake", python(UNTIL_ASKED), SimulatedClock())

    async def look() -> int:
        assert child.check() == ("lake", False, "starting", False)
        await until(lambda: child.is_up)
        assert child.check() == ("lake", True, "listens on port 7", False)
        assert child.pid is not None
        return child.pid

    async def run() -> None:
        pid = await lived(child, look())
        assert not is_running(pid)
        assert (child.is_up, child.restarts) == (False, 0)

    asyncio.run(run())


def test_an_ended_child_is_restarted_with_growing_pauses() -> None:
    clock = SimulatedClock()
    child = ChildProcess("lake", python("raise SystemExit(3)"), clock)

    async def look() -> None:
        for restarts, pause in enumerate((0.5, 1.0, 2.0)):
            await until(lambda: "next start" in child.check().reason and clock._sleepers)
            assert child.check().reason == f"ended with exit code 3; next start in {pause:g} s"
            assert child.restarts == restarts
            clock.advance(pause - 0.01)
            await asyncio.sleep(0.01)
            assert child.restarts == restarts
            clock.advance(0.02)
            await until(lambda: not clock._sleepers)

    asyncio.run(lived(child, look()))


def test_good_work_is_rewarded_with_a_short_pause() -> None:
    clock = SimulatedClock()
    child = ChildProcess("lake", python(UNTIL_ASKED), clock)

    async def look() -> None:
        for _ in range(3):
            await until(lambda: child.is_up)
            clock.advance(limits.CHILD_STEADY_SECONDS + 1)
            assert child.pid is not None
            os.kill(child.pid, 9)
            await until(lambda: clock._sleepers)
            assert child.check().reason == "ended with exit code -9; next start in 0.5 s"
            clock.advance(0.6)

    asyncio.run(lived(child, look()))


def test_a_stop_asks_before_it_kills(tmp_path: Path) -> None:
    note = tmp_path / "ended in order"
    child = ChildProcess("lake", python(f"{UNTIL_ASKED}; open({str(note)!r}, 'w').close()"), SimulatedClock())

    async def look() -> None:
        await until(lambda: child.is_up)

    asyncio.run(lived(child, look()))
    assert note.exists()


def test_a_child_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHILD_STOP_SECONDS", 0.1)
    child = ChildProcess("lake", python(DEAF), SimulatedClock())

    async def look() -> int:
        await until(lambda: child.is_up)
        assert child.pid is not None
        return child.pid

    assert not is_running(asyncio.run(lived(child, look())))


def test_a_missing_program_is_reported_and_retried() -> None:
    clock = SimulatedClock()
    child = ChildProcess("lake", ["/nowhere/at/all"], clock)

    async def look() -> None:
        await until(lambda: clock._sleepers)
        assert child.check().reason.startswith("cannot be started: ")

    asyncio.run(lived(child, look()))


def test_a_child_that_cannot_run_here_is_not_restarted() -> None:
    """The child reports what is missing and ends: callers get that reason, and no restart is awaited."""
    script = r"""print('{"missing": "no Java was found"}'); raise SystemExit(3)"""
    child = ChildProcess("pipeline", python(script), SimulatedClock())

    async def run() -> None:
        async with asyncio.timeout(HANGS_SECONDS):
            await child.run()

    asyncio.run(run())
    assert child.check() == ("pipeline", False, "no Java was found", False)
    assert (child.restarts, child.pid) == (0, None)


@pytest.mark.parametrize("script", ["print('hello', flush=True)", "print('x' * 300000, flush=True)", "pass"])
def test_a_child_with_unexpected_output_is_not_up_and_does_not_block(script: str) -> None:
    child = ChildProcess("lake", python(f"{script}; import sys; sys.stdin.read()"), SimulatedClock())

    async def look() -> None:
        await until(lambda: child.pid is not None)
        await asyncio.sleep(0.05)
        assert not child.is_up

    asyncio.run(lived(child, look()))


@pytest.mark.parametrize("is_critical", [True, False])
def test_a_child_that_refuses_its_configuration_reports_why_and_is_restarted(is_critical: bool) -> None:
    refusing = 'print(\'{"refused": "port 8181 is taken"}\', flush=True); raise SystemExit(3)'
    child = ChildProcess("lake", python(refusing), SimulatedClock(), is_refusal_critical=is_critical)

    async def look() -> None:
        await until(lambda: "port 8181 is taken; next start in" in child.check().reason)
        assert (child.check().ok, child.check().is_needed) == (False, is_critical)

    asyncio.run(lived(child, look()))


def test_a_child_reports_when_its_connections_are_in_use() -> None:
    later = """print('no json'); print('{"connections": ["lake", 4, 4, 1, 9, 0]}', flush=True); """
    child = ChildProcess("lake", python(READY + later + "import sys; sys.stdin.read()"), SimulatedClock())
    room = asyncio.run(lived(child, told_room(child)))
    assert room == RoomState("lake", 4, 4, 1, 9, 0)
    assert child.room is None, "it is gone"


async def told_room(child: ChildProcess) -> RoomState | None:
    await until(lambda: child.room is not None)
    return child.room
