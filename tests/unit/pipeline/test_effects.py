"""Everything a round does to the world is in the list, and the process can be ended at each of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.pipeline.driver.effects import VARIABLE, Effect, Effects, Fault
from tests.support.paper_pipeline import PaperPipeline


def test_whoever_comes_to_the_place_that_a_file_names_takes_it_and_is_struck(tmp_path: Path) -> None:
    assert Effects.of({})._fault_file is None
    asked, struck = tmp_path / "fault", list[str]()
    first, second = (Effects(strike=lambda name=name: struck.append(name), fault_file=asked) for name in "ab")  # type: ignore[misc]

    def pass_by(one: Effects) -> None:
        with one.happens(Effect.COMMIT), one.happens(Effect.NOTE):
            pass

    pass_by(first)
    assert struck == []
    asked.write_text("after:note")
    pass_by(second)
    pass_by(first)
    assert (struck, asked.exists()) == (["b"], False)
    asked.write_text("before:commit")
    pass_by(first)
    assert struck == ["b", "a"]
    assert Effects.of({VARIABLE: str(asked)})._fault_file == asked


class Struck(BaseException):
    """Instead of a signal."""


def strike() -> None:
    raise Struck


async def rounds(pipeline: PaperPipeline) -> None:
    for _ in range(3):
        pipeline.broker.publish(1, 5)
        await pipeline.round()


ROUND = [one for one in Effect if one not in (Effect.EVOLVE_TABLE, Effect.ASK)]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("effect", ROUND)
async def test_a_driver_that_ends_anywhere_is_followed_by_one_that_finishes(
    tmp_path: Path, effect: Effect, is_before: bool
) -> None:
    effects = Effects(Fault(is_before, effect, 2 if effect is not Effect.MAKE_TABLE else 1), strike)
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
    found = await second.world.reader.current_manifests(table.table)
    assert sum(one.live_rows for one in found) == end
    await second.close()
