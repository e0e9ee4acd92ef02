"""The numbers of the benchmark: what stands for many samples, and when a goal counts as reached."""

from __future__ import annotations

import pytest

from bench.figures import Figure, Goal, Row, Verdict, percentile, ratios, short


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.51, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 1.0, 4.0),
        ([float(number) for number in range(1, 1001)], 0.99, 990.0),
    ],
)
def test_a_percentile_is_the_smallest_sample_that_enough_do_not_exceed(
    samples: list[float], share: float, expected: float
) -> None:
    assert percentile(samples, share) == expected


def test_a_figure_is_the_median_with_its_spread() -> None:
    figure = Figure([3.0, 1.0, 250.0], " us")
    assert (figure.value, figure.low, figure.high) == (3.0, 1.0, 250.0)
    assert str(figure) == "3 us (1 to 250)"
    assert str(Figure([3.0], " us")) == "3 us"


def test_a_ratio_is_computed_within_each_round() -> None:
    """The slow round slows both sides: the ratio does not see it, the quotient of the medians would."""
    ratio = ratios([100.0, 10.0, 90.0], [50.0, 5.0, 30.0])
    assert ratio.samples == [2.0, 2.0, 3.0]
    assert ratio.value == 2.0
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.01234, "0.0123"), (12.345, "12.3"), (99.99, "100"), (12_345.6, "12,346"), (12_345_678.0, "12.3 M"), (0.0, "0")],
)
def test_three_digits_count(value: float, expected: str) -> None:
    assert short(value) == expected


@pytest.mark.parametrize(
    ("goal", "reached", "missed", "shown"),
    [
        (Goal(at_least=60), [60.0, 61.0], [59.9], "≥ 60x"),
        (Goal(at_most=1.1), [1.1, 0.5], [1.11], "≤ 1.1x"),
        (Goal(at_most=0, unit=" B"), [0.0], [1.0], "≤ 0 B"),
    ],
)
def test_a_goal_is_a_bound(goal: Goal, reached: list[float], missed: list[float], shown: str) -> None:
    assert [goal.is_reached(value) for value in reached] == [True] * len(reached)
    assert [goal.is_reached(value) for value in missed] == [False] * len(missed)
    assert str(goal) == shown


def test_a_row_shows_whether_its_goal_is_met() -> None:
    goal = Goal(at_least=2)
    assert Row("frames", "x", Figure([1.0, 2.0, 3.0]), goal).verdict is Verdict.REACHED
    assert Row("frames", "x", Figure([1.0, 1.5, 3.0]), goal).verdict is Verdict.MISSED
    assert Row("frames", "x", Figure([1.0])).verdict is Verdict.NO_GOAL
    assert Row("frames", "x", goal=goal, missing="no peer").verdict is Verdict.NOT_MEASURED
    assert Row("frames", "x").command == 'make bench ARGS="--only frames"'
