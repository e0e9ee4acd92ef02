"""Work beside the loop: blocking calls do not block it, and no failure is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from icestream.runtime.clock import SimulatedClock
from icestream.runtime.tasks import InlineOffload, Offload, ShortOffload, Tasks, ThreadOffload


@pytest.mark.asyncio
async def test_a_thread_runs_beside_the_loop() -> None:
    """The call waits for something that only the loop does."""
    offload = ThreadOffload("test")
    released = threading.Event()
    asyncio.get_running_loop().call_soon(released.set)
    names: list[str] = []

    def call() -> bool:
        names.append(threading.current_thread().name)
        return released.wait(60)

    assert await offload.run(call)
    offload.close()
    assert names[0].startswith("test")


@pytest.mark.asyncio
@pytest.mark.parametrize("offload", [ThreadOffload("test"), InlineOffload()], ids=["thread", "inline"])
async def test_results_and_errors_are_returned(offload: Offload) -> None:
    assert await offload.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0)
    offload.close()


@pytest.mark.asyncio
async def test_inline_happens_here_and_now() -> None:
    assert await InlineOffload().run(threading.get_ident) == threading.get_ident()


class ShortOffloadHarness:
    """An offload whose calls take as long as a test says; 1 ms is too long."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.threads = ThreadOffload("test", 4)
        self.is_alone = True
        self.subject = ShortOffload(self.threads, self.clock, lambda: self.is_alone, 1_000_000)

    async def is_here(self, seconds: float = 0.0) -> bool:
        def call() -> bool:
            self.clock.advance(seconds)
            return threading.current_thread() is threading.main_thread()

        is_inline = await self.subject.run(call)
        await asyncio.sleep(0)
        return is_inline


@pytest.mark.asyncio
async def test_short_calls_of_one_caller_happen_here_until_one_is_slow() -> None:
    short = ShortOffloadHarness()
    assert await short.is_here()
    short.is_alone = False
    assert not await short.is_here()
    short.is_alone = True
    assert await short.is_here(0.005), "the first slow call runs inline: its duration was not known"
    later = [await short.is_here() for _ in range(3)]
    assert later == [False, False, True], "its time is forgotten again"
    with pytest.raises(ZeroDivisionError):
        await short.subject.run(lambda: 1 // 0)
    await asyncio.sleep(0)
    assert await short.is_here()
    short.subject.close()
    short.threads.close()


@pytest.mark.asyncio
async def test_of_several_concurrent_calls_one_runs_inline() -> None:
    short = ShortOffloadHarness()
    results = await asyncio.gather(*(short.is_here() for _ in range(4)))
    assert sorted(results) == [False, False, False, True]
    assert await short.is_here()
    short.threads.close()


@pytest.mark.asyncio
async def test_a_task_that_fails_is_handed_over() -> None:
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)

    async def fail() -> None:
        raise OSError("disk")

    async def end() -> None: ...

    tasks.start(fail(), "fails")
    tasks.start(end(), "ends")
    for _ in range(3):
        await asyncio.sleep(0)
    assert [str(failure) for failure in failures] == ["disk"]
    await tasks.stop()
    assert len(failures) == 1


@pytest.mark.asyncio
async def test_stop_waits_for_all_tasks() -> None:
    failures: list[BaseException] = []
    ended: list[str] = []
    tasks = Tasks(failures.append)

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # it has something to put away first
            ended.append(name)

    for name in ("a", "b"):
        tasks.start(work(name), name)
    await asyncio.sleep(0)
    await tasks.stop()
    assert sorted(ended) == ["a", "b"]
    assert failures == []
    await tasks.stop()


@pytest.mark.asyncio
async def test_a_failure_while_stopping_is_not_lost() -> None:
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("at the end")

    tasks.start(work(), "work")
    await asyncio.sleep(0)
    await tasks.stop()
    assert [str(failure) for failure in failures] == ["at the end"]
