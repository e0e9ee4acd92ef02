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
from icestream.model.subscription import SubscriptionType

PROGRAM = Path(sys.executable).with_name("icestream")
TABS = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as found:
        with connect_sync(found.address) as client:
            client.create_topic("/default/orders")
            client.create_topic("/default/invoices")
            with client.subscribe("/default/orders", "billing"):
                pass
        yield found


def offered(line: str) -> list[str]:
    """What comes at Tab behind this line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    asked = {"_ICESTREAM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ran = subprocess.run([PROGRAM], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    return sorted(ran.stdout.split())


def known(line: str) -> list[str]:
    """The same of what a broker knows. One who gets no answer in a second is offered nothing, and presses Tab again."""
    return next((found for _ in range(TABS) if (found := offered(line))), [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("icestream to", ["top", "topic"]),
        ("icestream topic de", ["delete", "describe"]),
        ("icestream consume --ty", ["--type"]),
        ("icestream consume --type ", sorted(TYPES)),
        ("icestream sub seek /default/x s --to e", ["earliest"]),
        ("icestream consume /default/x --format p", ["payload"]),
        ("icestream serve --set log.", ["log.format=", "log.level="]),
    ],
)
def test_words_that_are_known_here(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_names_that_the_broker_knows(broker: testing.TestBroker) -> None:
    at = f"--broker {broker.node.settings.local_socket}"
    assert known(f"icestream topic describe {at} /default/o") == ["/default/orders"]
    assert known(f"icestream sub describe {at} /default/orders ") == ["billing"]
    assert known(f"icestream namespace policy {at} ") == ["default", "system"]
    assert known(f"icestream consume --broker {broker.address} ") == ["/default/invoices", "/default/orders"]


def test_without_a_broker_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert offered(f"icestream topic describe --broker {tmp_path / 'none'} /default/") == []
    assert offered("icestream consume --broker 127.0.0.1:1 /default/") == []


def test_the_types_are_those_of_the_model() -> None:
    assert set(completion.TYPES) == set(TYPES) == {kind.value for kind in SubscriptionType}
