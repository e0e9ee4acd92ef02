"""Every scenario of Danube's own tests has a test that exists, or names the part that does not."""

from __future__ import annotations

import re

from tests.tidy.tree import read

LINES = [line for line in read("tests/danube/scenarios.txt").splitlines() if line and not line.startswith("#")]


def test_every_scenario_names_an_existing_test() -> None:
    missing = []
    assert len(LINES) > 50
    for line in LINES:
        scenario, target = re.split(r" {4}", line, maxsplit=1)
        if target.startswith("not yet: "):
            continue
        path, _, name = target.partition("::")
        if not re.search(rf"^(async )?def {re.escape(name)}\(", read(f"tests/{path}"), re.MULTILINE):
            missing.append(scenario)
    assert not missing
