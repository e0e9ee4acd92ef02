"""The planted bugs on the simulated disk: each checker is green on healthy code and red on the bug it is for."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from icestream import errors
from icestream.model.sync_mode import SyncMode
from tests.planted import checkers
from tests.planted.bugs import plant
from tests.planted.expectation import (
    ACKED_AND_GONE,
    ACKED_BEFORE_SYNC,
    BODY_FLIPPED,
    DOES_NOT_OPEN,
    FREED_TOO_EARLY,
    LENGTH_FLIPPED,
    PAST_IS_BACK,
    check_caught,
)
from tests.planted.messages import batch
from tests.planted.order import order_violations
from tests.planted.power_loss import loss_violations, spread
from tests.planted.stores import PlantedStore, SimulatedStore, StoreProcess, options

# A failing write leaves a part of its bytes, by the seed: in several of these runs whole records of it.
SEEDS = range(6)


def order_of_traffic(mode: SyncMode, seed: int = 1) -> list[str]:
    store = SimulatedStore(seed)
    return checkers.traffic(store, mode) + order_violations(store.recorded.events, mode)


def losses_of_traffic(mode: SyncMode, seed: int = 1) -> list[str]:
    store = SimulatedStore(seed)
    trouble, events = checkers.traffic(store, mode), store.recorded.events
    return trouble + loss_violations(events, mode, spread(events, 12), seeds=2)


def in_all_seeds(story: Callable[[PlantedStore], list[str]]) -> list[str]:
    return [text for seed in SEEDS for text in story(SimulatedStore(seed))]


CHECKERS: dict[str, Callable[[], list[str]]] = {
    "order": lambda: order_of_traffic(SyncMode.ALWAYS),
    "losses": lambda: losses_of_traffic(SyncMode.ALWAYS),
    "flips": lambda: checkers.flips(SimulatedStore(1)),
    "past": lambda: in_all_seeds(checkers.past),
    "reuse": lambda: checkers.reuse(SimulatedStore(1)),
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_healthy_code_is_green(checker: str) -> None:
    assert CHECKERS[checker]() == []


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
def test_healthy_code_is_green_where_acks_do_not_wait_for_syncs(mode: SyncMode) -> None:
    assert order_of_traffic(mode) + losses_of_traffic(mode) == []


CAUGHT = [
    ("ack_when_written", "order", ACKED_BEFORE_SYNC),
    ("ack_when_written", "losses", ACKED_AND_GONE),
    ("sync_left_out", "order", ACKED_BEFORE_SYNC),
    ("sync_left_out", "losses", ACKED_AND_GONE),
    ("crc_without_length", "flips", LENGTH_FLIPPED),
    ("recycled_accepted", "past", PAST_IS_BACK),
    ("freed_without_checkpoint", "order", FREED_TOO_EARLY),
    ("freed_without_checkpoint", "reuse", DOES_NOT_OPEN),
    ("checkpoint_not_written", "order", FREED_TOO_EARLY),
    ("checkpoint_not_written", "reuse", DOES_NOT_OPEN),
    ("checkpoint_name_not_synced", "order", FREED_TOO_EARLY),
    ("cut_instead_of_report", "flips", BODY_FLIPPED),
]


@pytest.mark.parametrize(("bug", "checker", "words"), CAUGHT, ids=[f"{bug} by {checker}" for bug, checker, _ in CAUGHT])
def test_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str, checker: str, words: str) -> None:
    plant(bug, monkeypatch.setattr)
    check_caught(CHECKERS[checker](), words)


@pytest.mark.parametrize("mode", list(SyncMode))
def test_hazard_16_a_failed_write_seals_only_synced_records(mode: SyncMode) -> None:
    """The seal that ends the file early is an ordinary seal: a power loss beside it must not look like damage."""
    store = SimulatedStore(1)

    async def fill_and_fail(life: StoreProcess) -> list[Any]:
        log = await life.open(options(mode))
        checkers.declare(log)
        for number in range(4):
            await log.append([batch(log, checkers.A, f"kept.{number}", 1000)])
        store.disk.fail("write", errno.ENOSPC)
        with pytest.raises(errors.OutcomeUnknown):
            await log.append([batch(log, checkers.A, "failed", 1000)])
        return []

    store.live(fill_and_fail)
    assert order_violations(store.recorded.events, mode) == []
