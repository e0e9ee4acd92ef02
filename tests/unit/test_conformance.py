"""Which suite of Danube a checkout is, and what is run in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.danube import SUITES, suite_of
from conformance.kit import Missing


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_checkout_is_recognised_by_a_file(tmp_path: Path, suite: object) -> None:
    mark = tmp_path / suite.mark  # type: ignore[attr-defined]
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    assert suite_of(tmp_path) is suite


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no checkout of danube-go, danube-java"):
        suite_of(tmp_path)


def test_suites_without_a_counterpart_are_left_out(tmp_path: Path) -> None:
    tests = tmp_path / "danube-broker" / "tests"
    tests.mkdir(parents=True)
    for name in ("subscription_basic", "security_e2e", "test_utils"):
        (tests / f"{name}.rs").touch()
    (tmp_path / "danube-broker" / "Cargo.toml").touch()
    command = suite_of(tmp_path).command(tmp_path)
    assert command.count("--test") == 1
    assert command[command.index("--test") + 1] == "subscription_basic"
