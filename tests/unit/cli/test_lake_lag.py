"""`icestream lake lag` and `commit-now` against a broker without a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icestream import connect_sync, limits, testing
from icestream.cli.lake_lag import CommitGoal
from icestream.model.backlog_messages import Backlog, ShardBacklog, TopicBacklog
from tests.support.command_line import icestream

TOPIC = "/default/waits"


@pytest.fixture(scope="module")
def local() -> Iterator[tuple[str, str]]:
    with testing.broker(storage="disk") as broker:
        with connect_sync(broker.address) as client, client.producer(TOPIC) as producer:
            producer.send_all([b"a", b"b"])
        yield "--broker", str(broker.node.settings.local_socket)


def test_uncommitted_messages_are_shown(local: tuple[str, str]) -> None:
    (line,) = icestream("lake", "lag", *local, "--output", "json").document
    assert (line["topic"], line["messages"]) == (TOPIC, 2)


def test_without_uncommitted_messages_a_sentence_replaces_the_table(local: tuple[str, str]) -> None:
    ran = icestream("lake", "lag", "/default/nope", *local)
    assert (ran.code, ran.out, ran.err.strip()) == (0, "", "No uncommitted messages.")
    assert icestream("lake", "lag", "/default/nope", *local, "--output", "json").document == []


def test_an_unknown_topic_has_no_uncommitted_messages(local: tuple[str, str]) -> None:
    ran = icestream("lake", "commit-now", "/default/nope", *local)
    assert ran.code == 4
    assert "there is no topic" in ran.err


def test_without_waiting_the_remaining_messages_are_reported(local: tuple[str, str]) -> None:
    ran = icestream("lake", "commit-now", TOPIC, "--wait", "0", *local)
    assert ran.code != 0
    assert "1 shard not committed within 0 s" in ran.err


def backlog(*topics: tuple[int, int, int, int]) -> Backlog:
    """Topics as id, committed, synced, since when they wait; there are more."""
    topic_backlogs = [
        TopicBacklog(
            topic, f"/default/t{topic}", 1, [ShardBacklog(0, 0, committed, synced)], synced - committed, 0, since_us
        )
        for topic, committed, synced, since_us in topics
    ]
    return Backlog("log", "/", "", "", topic_backlogs, [], is_cut=True)


def test_hazard_24_topics_that_an_answer_had_no_room_for_are_waited_for_too() -> None:
    goal = CommitGoal(None, started_us=100)
    for answer, left in (
        (backlog((1, 0, 5, 10), (2, 0, 3, 20)), 2),
        (backlog((2, 0, 3, 20), (3, 0, 4, 90)), 2),  # one is done: there is room for a third
        (backlog((3, 0, 4, 90), (4, 0, 1, 101)), 1),  # what came since is not waited for
        (backlog((4, 0, 9, 101), (1, 5, 6, 102)), 0),
    ):
        goal.add(answer)
        assert goal.uncommitted_shards(answer) == left
    assert goal.rows == 5 + 3 + 4


def test_a_wait_for_one_topic_ignores_the_others() -> None:
    goal = CommitGoal("/default/t2", started_us=100)
    first = backlog((1, 0, 5, 10), (2, 0, 3, 20))
    goal.add(first)
    assert (goal.rows, goal.uncommitted_shards(first)) == (3, 1)
    goal.add(backlog((3, 0, 4, 30)))
    assert (goal.rows, goal.uncommitted_shards(backlog((1, 0, 5, 10), (3, 0, 4, 30)))) == (3, 0)


def test_a_truncated_lag_is_marked(local: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Truncated" not in icestream("lake", "lag", *local).err
    monkeypatch.setattr(limits, "BACKLOG_STRETCHES_MAX", 0)
    assert "Truncated: showing the topics with the oldest uncommitted messages." in icestream("lake", "lag", *local).err
