"""Rounds in turn, and what happens when a peer is missing or a run fails."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bench.figures import Figure, Goal, Row, Verdict
from bench.generator import Load, generator_note
from bench.harness import Bench, MissingPeer, RunFailed


def test_sides_alternate_in_empty_directories(tmp_path: Path) -> None:
    order: list[str] = []

    def side(name: str, path: Path) -> int:
        order.append(name)
        assert list(path.iterdir()) == []
        (path / "data").write_text("x")
        return len(order)

    runs = Bench(tmp_path).interleave(
        2, {"ours": lambda path: side("ours", path), "peer": lambda path: side("p", path)}
    )
    assert order == ["ours", "p", "ours", "p"]
    assert runs == {"ours": [1, 3], "peer": [2, 4]}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reason", [MissingPeer("apt-get install x"), RunFailed("it ended with 1")])
def test_an_impossible_measurement_is_a_row_with_the_reason(tmp_path: Path, reason: Exception) -> None:
    warnings: list[str] = []
    bench = Bench(tmp_path, warn=warnings.append)

    def measure() -> list[Row]:
        raise reason

    (row,) = bench.attempt("frames", "against NATS", Goal(at_least=60), measure)
    assert (row.verdict, row.missing) == (Verdict.NOT_MEASURED, str(reason))
    assert warnings == [f"frames: {reason}"]


def test_our_own_errors_are_not_reported_as_a_missing_peer(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Bench(tmp_path).attempt("frames", "x", None, lambda: [Row("frames", "x", Figure([1 / 0]))])


LOAD = Load(
    messages=2_000, seconds=2.0, cpu_seconds=0.5, server_cpu_seconds=1.0, p50_us=1, p99_us=2, max_us=3, checked=2_000
)


def test_the_output_of_a_load_is_parsed() -> None:
    assert (LOAD.rate, LOAD.server_us) == (1_000.0, 500.0)
    assert generator_note([LOAD]) == "generator 25 % of a core"


def test_a_generator_that_was_the_bound_is_named() -> None:
    busy = Load(**{**asdict(LOAD), "cpu_seconds": 1.9})
    assert generator_note([LOAD, busy]) == "generator 95 % of a core: it may be the bound"
