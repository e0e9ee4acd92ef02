"""What `import icestream` gives: every name, typed, and hardly any time."""

from __future__ import annotations

import subprocess
import sys

import pytest

import icestream
from icestream.client import public


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_that_takes_time() -> None:
    loaded = run("import sys, icestream; print(*sys.modules)").split()
    heavy = {"asyncio", "msgspec", "pydantic", "zstandard", "structlog", "icestream.server", "icestream.limits"}
    assert heavy & set(loaded) == set()


def test_the_client_does_not_load_the_broker_or_arrow() -> None:
    loaded = run("import sys, icestream; icestream.connect; icestream.connect_sync; print(*sys.modules)").split()
    assert [name for name in loaded if name.startswith(("icestream.broker", "icestream.server", "icestream.wal"))] == []
    assert {"pyarrow", "pydantic", "icestream.metadata"} & set(loaded) == set()


@pytest.mark.parametrize("name", public.NAMES)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(icestream, name) is not None
    assert name in dir(icestream)
    assert name in icestream.__all__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        icestream.nonsense  # noqa: B018  # looking it up is the test


def test_types_of_the_public_names_are_known_to_type_checkers() -> None:
    assert set(icestream.__all__) == {*public.NAMES, "__dir__", "__getattr__"}
