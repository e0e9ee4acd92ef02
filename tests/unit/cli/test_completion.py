"""What a shell offers at Tab, with a broker and without one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import connect_sync, testing
from icestream.cli import completion
from icestream.cli.consume import TYPES
from icestream.model.subscription_options import SubscriptionType

PROGRAM = Path(sys.executable).with_name("icestream")
TABS = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as test_broker:
        with connect_sync(test_broker.address) as client:
            client.create_topic("/default/orders")
            client.create_topic("/default/invoices")
            with client.subscribe("/default/orders", "billing"):
                pass
        yield test_broker


def offered(line: str) -> list[str]:
    """The completions of this line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    variables = {"_ICESTREAM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ran = subprocess.run([PROGRAM], env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    return sorted(ran.stdout.split())


def completions(line: str) -> list[str]:
    """Completions that come from a broker. Without its answer in a second there are none, so Tab is pressed again."""
    return next((words for _ in range(TABS) if (words := offered(line))), [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("icestream to", ["top", "topic"]),
        ("icestream topic de", ["delete", "deleted", "describe"]),
        ("icestream consume --ty", ["--type"]),
        ("icestream consume --type ", sorted(TYPES)),
        ("icestream sub seek /default/x s --to e", ["earliest"]),
        ("icestream consume /default/x --format p", ["payload"]),
        ("icestream serve --set log.", ["log.format=", "log.level="]),
    ],
)
def test_known_words_are_completed(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_names_of_the_broker_are_completed(broker: testing.TestBroker) -> None:
    at = f"--broker {broker.node.settings.local_socket}"
    assert completions(f"icestream topic describe {at} /default/o") == ["/default/orders"]
    assert completions(f"icestream sub describe {at} /default/orders ") == ["billing"]
    assert completions(f"icestream namespace policy {at} ") == ["default", "system"]
    assert completions(f"icestream consume --broker {broker.address} ") == ["/default/invoices", "/default/orders"]


def test_without_a_broker_completion_is_empty_and_silent(tmp_path: Path) -> None:
    assert offered(f"icestream topic describe --broker {tmp_path / 'none'} /default/") == []
    assert offered("icestream consume --broker 127.0.0.1:1 /default/") == []


def test_the_completed_types_match_the_model() -> None:
    assert set(completion.TYPES) == set(TYPES) == {kind.value for kind in SubscriptionType}
