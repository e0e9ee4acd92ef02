"""Every scenario of Danube's and EMQX's own tests has a test that exists, or says why it has none."""

from __future__ import annotations

import re

import pytest

from tests.tidy.tree import read


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
