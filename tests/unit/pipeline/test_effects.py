"""All external effects of a round are listed, and the process can be ended at each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.pipeline.driver.effects import CARE_EFFECTS, VARIABLE, Effect, Effects, Fault
from tests.support.pipeline_harness import PipelineHarness


def test_the_effect_named_by_a_file_is_interrupted_once(tmp_path: Path) -> None:
    assert Effects.of({})._fault_file is None
    fault_file, struck = tmp_path / "fault", list[str]()
    first, second = (Effects(strike=lambda name=name: struck.append(name), fault_file=fault_file) for name in "ab")  # type: ignore[misc]

    def pass_by(effects: Effects) -> None:
        with effects.happens(Effect.COMMIT), effects.happens(Effect.NOTE):
            pass

    pass_by(first)
    assert struck == []
    fault_file.write_text("after:note")
    pass_by(second)
    pass_by(first)
    assert (struck, fault_file.exists()) == (["b"], False)
    fault_file.write_text("before:commit")
    pass_by(first)
    assert struck == ["b", "a"]
    assert Effects.of({VARIABLE: str(fault_file)})._fault_file == fault_file


class EffectInterrupted(BaseException):
    """Instead of a signal."""


def strike() -> None:
    raise EffectInterrupted


async def rounds(pipeline: PipelineHarness) -> None:
    for _ in range(3):
        pipeline.broker.publish(1, 5)
        await pipeline.round()


# Of topics of MQTT nothing is learned here: there are no messages (test_effect_faults.py).
NOT_HERE = {Effect.EVOLVE_TABLE, Effect.ASK, Effect.LEARN, *CARE_EFFECTS}
ROUND = [effect for effect in Effect if effect not in NOT_HERE]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("effect", ROUND)
async def test_a_driver_that_ends_at_any_effect_is_followed_by_one_that_finishes(
    tmp_path: Path, effect: Effect, is_before: bool
) -> None:
    effects = Effects(Fault(is_before, effect, 2 if effect is not Effect.MAKE_TABLE else 1), strike)
    first = PipelineHarness(tmp_path / "w", effects=effects, owner="child")
    with pytest.raises(EffectInterrupted):
        await rounds(first)
    first.broker.publish(1, 1)
    if first.lease._renewing is not None:
        first.lease._renewing.cancel()
    second = PipelineHarness(tmp_path / "w", broker=first.broker, store=first.world.store, owner="child")
    await second.round()
    await second.round()
    end = first.broker.synced[1, 0]
    assert first.broker.floors == {(1, 0): end}
    table = second.topics[1]
    manifests = await second.world.reader.current_manifests(table.table)
    assert sum(manifest.live_rows for manifest in manifests) == end
    await second.close()
