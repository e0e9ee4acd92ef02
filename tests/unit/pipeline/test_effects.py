"""Everything a round does to the world is in the list, and the process can be ended at each of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from icestream import errors
from icestream.pipeline.driver.effects import VARIABLE, Effect, Effects, Fault, read_fault
from tests.support.paper_pipeline import PaperPipeline


def test_faults_are_read_from_the_environment() -> None:
    assert read_fault({}) is None
    assert read_fault({VARIABLE: "before:commit:kill"}) == Fault(True, Effect.COMMIT, signal.SIGKILL, 1)
    assert read_fault({VARIABLE: "after:hold_files:stop:3"}) == Fault(False, Effect.HOLD_FILES, signal.SIGSTOP, 3)
    for wrong in ("commit", "before:nothing:kill", "before:commit:hit", "before:commit:kill:0"):
        with pytest.raises(errors.ConfigurationError):
            read_fault({VARIABLE: wrong})


class Struck(BaseException):
    """Instead of a signal."""


def strike(number: int) -> None:
    raise Struck


async def rounds(pipeline: PaperPipeline) -> None:
    for _ in range(3):
        pipeline.broker.publish(1, 5)
        await pipeline.round()


ROUND = [one for one in Effect if one not in (Effect.EVOLVE_TABLE, Effect.CLEAN_UP, Effect.ASK)]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("effect", ROUND)
async def test_a_driver_that_ends_anywhere_is_followed_by_one_that_finishes(
    tmp_path: Path, effect: Effect, is_before: bool
) -> None:
    effects = Effects(Fault(is_before, effect, signal.SIGKILL, 2 if effect is not Effect.MAKE_TABLE else 1), strike)
    first = PaperPipeline(tmp_path / "w", effects=effects, owner="child")
    with pytest.raises(Struck):
        await rounds(first)
    first.broker.publish(1, 1)
    if first.lease._renewing is not None:
        first.lease._renewing.cancel()
    second = PaperPipeline(tmp_path / "w", broker=first.broker, store=first.world.store, owner="child")
    await second.round()
    await second.round()
    end = first.broker.synced[1, 0]
    assert first.broker.floors == {(1, 0): end}
    table = second.topics[1]
    found = await second.world.reader.manifests(table.table)
    assert sum(one.rows for one in found) == end
    await second.close()
