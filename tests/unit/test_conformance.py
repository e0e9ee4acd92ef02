"""Which suite of Danube a checkout is, and what is run in it; how cases of Paho are run and reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import paho
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


PAHO_MODULE = """
import time, unittest
class Test(unittest.TestCase):
    def test_good(self): assert (host, port) == ("127.0.0.1", 1)
    def test_bad(self): assert False, "a reason"
    def test_long(self): time.sleep(1000 if __name__ == "client_test5" else 0)
"""


@pytest.fixture
def paho_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "interoperability"
    place.mkdir()
    for module in paho.PROTOCOLS.values():
        (place / f"{module}.py").write_text(PAHO_MODULE)
    monkeypatch.setenv("PAHO_TESTING", str(tmp_path))
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1:1")
    monkeypatch.setattr(paho, "CASE_SECONDS_MAX", 4.0)
    return tmp_path


def test_cases_of_paho_that_fail_or_do_not_end_are_reported(
    paho_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paho, "WANTED", dict.fromkeys(paho.PROTOCOLS, 3))
    monkeypatch.setenv("PAHO_REPORT", str(paho_checkout / "report.json"))
    assert not paho.main()
    report = json.loads((paho_checkout / "report.json").read_text())
    assert (report["passed"], report["failed"]) == (3, 3)
    outcomes = {(case["protocol"], case["case"]): case for case in report["cases"]}
    assert outcomes["5.0", "test_good"]["outcome"] == "passed"
    assert outcomes["5.0", "test_long"]["outcome"] == "timed out"
    assert "a reason" in outcomes["3.1.1", "test_bad"]["output"]


def test_chosen_cases_of_paho_that_pass_are_a_success(paho_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paho, "WANTED", dict.fromkeys(paho.PROTOCOLS, 3))
    monkeypatch.setenv("PAHO_CASES", "good")
    assert paho.main()


def test_a_checkout_of_paho_with_fewer_cases_is_refused(paho_checkout: Path) -> None:
    with pytest.raises(Missing, match=r"client_test\.py has 3 cases, not 10"):
        paho.main()


def test_paho_without_a_checkout_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAHO_TESTING", raising=False)
    with pytest.raises(Missing, match="PAHO_TESTING names no checkout"):
        paho.main()
