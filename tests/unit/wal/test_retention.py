"""What a retention drops: pure decisions over what the files hold of a topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model import ShardKey
from icestream.runtime.clock import SimulatedClock
from icestream.wal.file_summary import ShardRange
from icestream.wal.retention import Retention, to_drop
from icestream.wal.retention_job import BoundedWallClock

A, B = ShardKey(1, 0), ShardKey(1, 1)


def stretch(size: int, time_us: int, key: ShardKey = A) -> dict[ShardKey, ShardRange]:
    return {key: ShardRange(0, 10, size, time_us)}


FILES = [stretch(100, 10), stretch(100, 20), stretch(100, 30), stretch(100, 40)]


def dropped(retention: Retention, now_us: int = 0, held_bytes: int = 450, share: float = 1.0) -> int:
    gone = to_drop(retention, held_bytes, FILES, now_us, share)
    assert gone == FILES[: len(gone)], "from the oldest on, without a hole"
    return len(gone)


def test_without_retention_everything_is_kept() -> None:
    assert dropped(Retention(), now_us=2**62) == 0


@pytest.mark.parametrize(("bytes_max", "count"), [(450, 0), (351, 0), (350, 1), (151, 2), (150, 3), (50, 4), (1, 4)])
def test_by_size_at_least_the_allowed_bytes_are_kept(bytes_max: int, count: int) -> None:
    assert dropped(Retention(bytes_max=bytes_max)) == count


@pytest.mark.parametrize(("now_us", "count"), [(0, 0), (110, 0), (111, 1), (140, 3), (141, 4), (2**62, 4)])
def test_by_age_a_file_is_dropped_when_its_newest_message_is_too_old(now_us: int, count: int) -> None:
    assert dropped(Retention(age_max_us=100), now_us) == count


def test_the_newest_message_of_all_shards_counts() -> None:
    both = {A: ShardRange(0, 10, 50, 10), B: ShardRange(0, 10, 50, 500)}
    assert to_drop(Retention(age_max_us=100), 100, [both], 600, 1.0) == []
    assert to_drop(Retention(age_max_us=100), 100, [both], 601, 1.0) == [both]


def test_either_bound_is_enough() -> None:
    assert dropped(Retention(bytes_max=350, age_max_us=100), now_us=125) == 2
    assert dropped(Retention(bytes_max=250, age_max_us=100), now_us=111) == 2


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.4, 1), (0.45, 2), (0.5, 2), (0.9, 4)])
def test_hazard_32_one_step_drops_by_age_at_most_a_share(share: float, count: int) -> None:
    assert dropped(Retention(age_max_us=1), now_us=2**62, share=share) == count
    assert dropped(Retention(bytes_max=1), now_us=2**62, share=share) == 4, "sizes do not come from a clock"


@given(
    sizes=st.lists(st.integers(1, 1000), max_size=12),
    active=st.integers(0, 1000),
    bytes_max=st.integers(0, 5000),
    age=st.integers(0, 100),
    now_us=st.integers(-50, 150),
    share=st.floats(0.01, 1.0),
)
def test_enough_is_kept_and_only_necessary_files_are_dropped(
    sizes: list[int], active: int, bytes_max: int, age: int, now_us: int, share: float
) -> None:
    files = [stretch(size, at) for at, size in enumerate(sizes)]
    log_bytes = sum(sizes) + active
    gone = len(to_drop(Retention(bytes_max, age), log_bytes, files, now_us, share))
    for at in range(gone):
        left = log_bytes - sum(sizes[: at + 1])
        assert (bytes_max and left >= bytes_max) or (age and at < now_us - age)
    if gone < len(files):
        left = log_bytes - sum(sizes[: gone + 1])
        assert not bytes_max or left < bytes_max


def test_hazard_32_a_forward_clock_jump_makes_nothing_older() -> None:
    clock = SimulatedClock()
    calendar = BoundedWallClock(clock)
    start = calendar.now_us()
    clock.step(365 * 86400)
    clock.advance(60)
    assert calendar.now_us() - start == 60_000_000
    clock.step(-2 * 365 * 86400)
    assert calendar.now_us() == clock.wall_us() < start, "a step back is believed at once: it drops nothing"
