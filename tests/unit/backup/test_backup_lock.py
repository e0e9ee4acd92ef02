"""Locks of backups: for how long, and which objects a quick verification looks at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream.backup.backup_lock import LockOptions, lock_options, sampled
from icestream.settings import load


@given(st.sets(st.text()), st.integers(1, 200))
def test_a_sample_is_bounded_and_all_of_a_few_names(names: set[str], count_max: int) -> None:
    sample = sampled(names, count_max)
    assert len(sample) <= count_max
    assert {*sample} <= names
    if len(names) <= count_max:
        assert {*sample} == names


def test_a_lock_ends_at_a_whole_second_after_its_days() -> None:
    assert LockOptions("compliance", 2).retention(1_001) == ("compliance", 2 * 86_400_000 + 2_000)


def test_backups_are_not_locked_by_default() -> None:
    default = load(None, {}, []).settings.backup.object_lock
    assert lock_options(default.mode, default.days) is None
    assert lock_options("compliance", 7) == LockOptions("compliance", 7)
