"""The profile of the continuous integration: a property test has the same examples in every run."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.tidy.tree import ROOT

PROGRAM = """
import pkgutil, sys
from hypothesis import given, strategies as st
import tests.conftest
import icestream.wal
if "modules" in sys.argv:
    for module in pkgutil.iter_modules(icestream.wal.__path__, "icestream.wal."):
        __import__(module.name)
examples = []
@given(st.tuples(st.integers(), st.text(), st.floats()))
def draw(values):
    examples.append(values)
draw()
print(ascii(examples))
"""


def examples(*arguments: str, hash_seed: int = 1) -> str:
    environment = os.environ | {"HYPOTHESIS_PROFILE": "ci", "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def test_examples_of_the_ci_profile_depend_neither_on_loaded_modules_nor_on_hashes() -> None:
    alone = examples()
    assert alone.count("(") > 50
    assert examples("modules", hash_seed=2) == alone
