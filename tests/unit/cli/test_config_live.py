"""`icestream config` with a running broker: what applies there, and what may change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icestream import testing
from icestream.settings import KEYS
from tests.support.command_line import CommandResult, icestream

QUOTA = "storage.iceberg_config.wal.quota"


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as test_broker:
        yield test_broker


def config(broker: testing.TestBroker, *arguments: str) -> CommandResult:
    return icestream("config", *arguments, "--broker", str(broker.node.settings.local_socket))


def live(broker: testing.TestBroker, key: str) -> tuple[object, str]:
    rows = config(broker, "show", "--live", "--origin", "--output", "json").document
    assert [row["key"] for row in rows] == list(KEYS)
    return next((row["value"], row["origin"]) for row in rows if row["key"] == key)


def test_a_setting_changes_and_is_forgotten_again(broker: testing.TestBroker) -> None:
    before = live(broker, QUOTA)
    ran = config(broker, "set", QUOTA, "1GiB")
    assert (ran.code, ran.out.split()) == (0, ["key", QUOTA, "value", "1GiB", "origin", "stored"])
    assert live(broker, QUOTA) == (2**30, "stored")
    assert broker.node.log is not None
    assert broker.node.log.quota.node_bytes == 2**30
    ran = config(broker, "unset", QUOTA, "--output", "json")
    assert (ran.document["key"], ran.document["value"], ran.document["origin"]) == (QUOTA, *before)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("broker.auto_create_topics", "false", False),
        ("storage.iceberg_config.wal.sync_interval_ms", "5s", 5000),
        (QUOTA, "null", None),
    ],
)
def test_a_value_is_read_as_set_reads_it(broker: testing.TestBroker, key: str, text: str, value: object) -> None:
    assert config(broker, "set", key, text, "--output", "json").document["value"] == value
    assert config(broker, "unset", key).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("set", "node.name", "x"), 3, "node.name cannot change while the broker runs"),
        (("set", QUOTA, "many"), 3, "must be a size"),
        (("set", "broker.auto_create_topics", "[1]"), 3, "must be true or false"),
        (("set", "log.levle", "x"), 3, "the nearest known one is log.level"),
        (("unset", "log.levle"), 4, "the nearest is log.level"),
        (("set", "log.level"), 2, "Missing argument"),
    ],
)
def test_invalid_changes_are_refused_with_the_reason(
    broker: testing.TestBroker, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ran = config(broker, *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_without_a_broker_no_setting_changes(tmp_path: object) -> None:
    ran = icestream("config", "set", QUOTA, "1GiB", "--broker", f"{tmp_path}/none")
    assert (ran.code, ran.out) == (11, "")
