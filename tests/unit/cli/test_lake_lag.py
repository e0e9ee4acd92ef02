"""`icestream lake lag` and `commit-now` against a broker without a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icestream import connect_sync, testing
from tests.support.command_line import icestream

TOPIC = "/default/waits"


@pytest.fixture(scope="module")
def local() -> Iterator[tuple[str, str]]:
    with testing.broker(storage="disk") as broker:
        with connect_sync(broker.address) as client, client.producer(TOPIC) as producer:
            producer.send_all([b"a", b"b"])
        yield "--socket", str(broker.node.settings.local_socket)


def test_what_waits_is_shown(local: tuple[str, str]) -> None:
    (line,) = icestream("lake", "lag", *local, "--output", "json").document
    assert (line["topic"], line["messages"]) == (TOPIC, 2)


def test_a_topic_that_is_not_there_is_in_no_table(local: tuple[str, str]) -> None:
    ran = icestream("lake", "commit-now", "/default/nope", *local)
    assert ran.code == 4
    assert "there is no topic" in ran.err


def test_who_does_not_wait_is_told_what_is_left(local: tuple[str, str]) -> None:
    ran = icestream("lake", "commit-now", TOPIC, "--wait", "0", *local)
    assert ran.code != 0
    assert "1 shard of topics did not get into their tables" in ran.err
