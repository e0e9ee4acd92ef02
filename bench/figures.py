"""Numbers of a run: percentiles, figures with their spread, rows with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from statistics import median


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(ceil(share * len(ordered) - 1e-9) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Figure:
    """One value per round; the median stands for them."""

    samples: list[float]
    unit: str = ""

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def low(self) -> float:
        return min(self.samples)

    @property
    def high(self) -> float:
        return max(self.samples)

    def __str__(self) -> str:
        text = f"{short(self.value)}{self.unit}"
        return text if len(self.samples) < 2 else f"{text} ({short(self.low)} to {short(self.high)})"


def short(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratios(above: Sequence[float], below: Sequence[float]) -> Figure:
    """Round by round: what disturbs a whole round disturbs both sides of its ratio."""
    return Figure([one / other for one, other in zip(above, below, strict=True)], "x")


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure, as the issue states it."""

    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def is_reached(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}{self.unit}" if self.at_least is not None else f"≤ {self.at_most:g}{self.unit}"


class Verdict(Enum):
    REACHED = "reached"
    MISSED = "missed"
    NOT_MEASURED = "not measured"
    NO_GOAL = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. `missing` says why there is no figure."""

    scenario: str
    what: str
    figure: Figure | None = None
    goal: Goal | None = None
    ours: str = ""
    peer: str = ""
    peer_version: str = ""
    note: str = ""
    missing: str = ""
    details: dict[str, Figure] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.figure is None:
            return Verdict.NOT_MEASURED
        if self.goal is None:
            return Verdict.NO_GOAL
        return Verdict.REACHED if self.goal.is_reached(self.figure.value) else Verdict.MISSED

    @property
    def command(self) -> str:
        return f'make bench ARGS="--only {self.scenario}"'
