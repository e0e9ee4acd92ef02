"""Every scenario of Danube's and EMQX's own tests has a test that exists, or says why it has none; every requirement of
durable sessions has a test that carries its number (R01 to R38)."""

from __future__ import annotations

import re

import pytest

from tests.tidy.tree import read, repository_files


@pytest.mark.parametrize(("path", "least"), [("tests/danube/scenarios.txt", 50), ("tests/mqtt/scenarios.txt", 50)])
def test_every_scenario_names_an_existing_test(path: str, least: int) -> None:
    missing = []
    lines = [line for line in read(path).splitlines() if line and not line.startswith("#")]
    assert len(lines) >= least
    for line in lines:
        scenario, target = re.split(r" {4}", line, maxsplit=1)
        if target.startswith(("not yet: ", "not here: ")):
            continue
        module, _, name = target.partition("::")
        if not re.search(rf"^(async )?def {re.escape(name)}\(", read(f"tests/{module}"), re.MULTILINE):
            missing.append(scenario)
    assert not missing


def test_every_requirement_of_durable_sessions_is_in_the_name_of_a_test() -> None:
    """R01 to R31 and R33 to R38; R32 asks for runs on record, which are looked at below."""
    sources = [path for path in repository_files() if path.name.startswith("test_") and path.suffix == ".py"]
    names = re.findall(
        r"^ *(?:async )?def (test_\w+)", "\n".join(path.read_text(encoding="utf-8") for path in sources), re.MULTILINE
    )
    numbers = {int(number) for name in names for number in re.findall(r"_r(\d\d)(?=_|$)", name)}
    assert set(range(1, 39)) <= numbers, sorted(set(range(1, 39)) - numbers)


def test_r32_the_runs_of_performance_and_consistency_are_on_record() -> None:
    """Every goal of `make bench ARGS="--only mqtt"` has a row, and every consistency run its date and outcome."""
    page = read("docs/benchmarks.md")
    section = page.partition("\n### MQTT\n")[2].partition("\n### ")[0]
    for row in ("NATS", "mosquitto", "Redis", "pipelined", "500 clients", "awaited", "fan-out", "returns to", "idle"):
        assert re.search(rf"^\|.*{row}", section, re.MULTILINE), row
    for run in ("Paho", "hivemq-mqtt-client", "MQTT.js", "mosquitto", "kill -9", "persistent-session"):
        assert re.search(rf"^\| 20\d\d-\d\d-\d\d \|.*{re.escape(run)}", section, re.MULTILINE), run
