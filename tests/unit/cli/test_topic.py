"""`icestream topic` against a broker, over its local socket and over its address."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import connect_sync, testing
from icestream.cli.broker_location import NO_BROKER_HINT
from icestream.cli.topic import with_history
from tests.support.command_line import icestream


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as test_broker:
        yield test_broker


@pytest.fixture
def name() -> str:
    return f"/default/{uuid.uuid4().hex}"


@pytest.fixture(params=["socket", "data_dir", "address"])
def way(request: pytest.FixtureRequest, broker: testing.TestBroker) -> tuple[str, str]:
    settings = broker.node.settings
    locations = {"socket": settings.local_socket, "data_dir": settings.data_dir, "address": broker.address}
    return "--broker", str(locations[request.param])


@pytest.fixture
def local(broker: testing.TestBroker) -> tuple[str, str]:
    return "--broker", str(broker.node.settings.local_socket)


def test_a_topic_is_created_shown_and_deleted(way: tuple[str, str], name: str) -> None:
    created = icestream("topic", "create", name, "--shards", "3", "--non-reliable", *way, "--output", "json")
    assert (created.code, created.err) == (0, "")
    assert created.document | {"id": 0} == {"topic": name, "id": 0, "shards": 3, "dispatch": "non-reliable"}
    listed = icestream("topic", "list", *way, "--output", "json").document
    assert name in [line["topic"] for line in listed]
    again = icestream("topic", "create", name, *way)
    assert (again.code, again.out) == (4, "")
    assert icestream("topic", "delete", name, "--yes", *way).out == f"deleted  {name}\n"
    gone = icestream("topic", "describe", name, *way)
    assert (gone.code, gone.out) == (4, "")
    assert f"there is no topic {name}" in gone.err


def test_an_empty_list_is_a_sentence_for_people_and_empty_json_for_programs() -> None:
    with testing.broker(storage="disk") as empty:
        local = ("--broker", str(empty.node.settings.local_socket))
        ran = icestream("topic", "list", *local)
        assert (ran.code, len(ran.out.splitlines())) == (0, 1)
        assert "No topics." in ran.err
        assert icestream("topic", "list", *local, "--output", "json") == (0, "[]\n", "")
        icestream("topic", "create", "/default/a", *local)
        assert "/default/a has no subscriptions" in icestream("sub", "list", "/default/a", *local).err


def test_delete_reports_what_happens_to_table_and_uncommitted_messages(
    broker: testing.TestBroker, local: tuple[str, str], name: str
) -> None:
    """No pipeline commits here: uncommitted messages wait until an operator discards them."""
    icestream("topic", "create", name, "--policy", "deleted_table=purge", *local)
    icestream("produce", name, "--broker", broker.address, given=b"x\n")
    ran = icestream("topic", "delete", name, "--rest", "commit", "--yes", *local)
    assert "1 message being committed to the table" in ran.err
    assert icestream("topic", "describe", name, *local).code == 4
    ran = icestream("topic", "delete", name, "--rest", "discard", "--yes", *local, "--output", "json")
    outcome = {"table": None, "table_end": "purge", "rest": "discard", "rest_messages": 1}
    assert ran.document == {"deleted": name, **outcome}
    icestream("topic", "create", name, *local)
    icestream("produce", name, "--broker", broker.address, given=b"x\n")
    assert "1 uncommitted message discarded." in icestream("topic", "delete", name, "--yes", *local).err
    assert icestream("topic", "delete", name, "--table", "burn", "--yes", *local).code == 2


def test_nothing_is_deleted_without_confirmation(local: tuple[str, str], name: str) -> None:
    icestream("topic", "create", name, *local)
    ran = icestream("topic", "delete", name, *local)
    assert (ran.code, ran.out) == (4, "")
    assert "hint: pass --yes" in ran.err
    assert "The setting broker.deleted_table decides about its table (default: keep; change with --table)." in ran.err
    icestream("topic", "policy", name, "deleted_table=purge", *local)
    ran = icestream("topic", "delete", name, "--rest", "discard", *local)
    assert (
        "Its table is dropped and its files are deleted (change with --table). Uncommitted messages are discarded."
        in ran.err
    )
    assert "all its messages" not in ran.err
    assert icestream("topic", "describe", name, *local).code == 0


def test_describe_shows_shards_and_subscriptions(broker: testing.TestBroker, local: tuple[str, str], name: str) -> None:
    with connect_sync(broker.address) as client:
        with client.producer(name, name="shop") as producer:
            producer.send_all([b"a", b"b"])
            lines = icestream("topic", "describe", name, *local).out.splitlines()
            assert ["producer", "peer", "epoch"] in [line.split() for line in lines]
            assert any(line.startswith("shop ") for line in lines)
        with client.subscribe(name, "billing", start="earliest"):
            pass
    description = icestream("topic", "describe", name, *local, "--output", "json").document
    shards = [(row["earliest"], row["log_start"], row["next"], row["synced"]) for row in description["shard_offsets"]]
    assert shards == [(0, 0, 2, 2)]
    assert [(row["subscription"], row["type"], row["lag"]) for row in description["subscriptions"]] == [
        ("billing", "shared", 2)
    ]
    assert (description["published_messages"], description["held_bytes"] > 0) == (2, True)
    lines = icestream("topic", "describe", name, *local).out.splitlines()
    assert ["shard", "earliest", "log_start", "next", "synced", "epoch", "gap_count"] in [
        line.split() for line in lines
    ]
    assert ["billing", "shared", "0", "2"] in [line.split() for line in lines]


def test_describe_over_an_address_is_an_outline(broker: testing.TestBroker, name: str) -> None:
    icestream("topic", "create", name, "--broker", broker.address)
    lines = icestream("topic", "describe", name, "--broker", broker.address).out.splitlines()
    assert [line.split()[0] for line in lines] == ["topic", "id", "shards", "dispatch", "producers", "subscriptions"]


def test_only_named_policies_change(local: tuple[str, str], name: str) -> None:
    icestream("topic", "create", name, "--policy", "max_producers=5", *local)
    icestream("topic", "policy", name, "max_publish_rate=100", *local)
    rows = icestream("topic", "policy", name, *local, "--output", "json").document
    policies = {row["policy"]: row["topic"] for row in rows if row["topic"] is not None}
    assert policies == {"max_producers": 5, "max_publish_rate": 100}
    ran = icestream("topic", "policy", name, "max_producers=none", "max_publish_rate=0", *local)
    assert ran.code == 0
    assert ["max_publish_rate", "unlimited", "unlimited"] in [line.split() for line in ran.out.splitlines()]
    assert ["max_producers", "-", "-"] in [line.split() for line in ran.out.splitlines()]


def test_no_partitioning_is_a_value_that_only_unset_removes(local: tuple[str, str], name: str) -> None:
    def policies_set() -> dict[str, object]:
        rows = icestream("topic", "policy", name, *local, "--output", "json").document
        return {row["policy"]: row["topic"] for row in rows if row["topic"] is not None}

    icestream("topic", "create", name, "--policy", "partitioning=day", "--policy", "compression=zstd:9", *local)
    assert policies_set() == {"partitioning": "day", "compression": "zstd:9"}
    icestream("topic", "policy", name, "partitioning=none", "compression=none", "target_file_bytes=100000", *local)
    assert policies_set() == {"partitioning": "none", "target_file_bytes": 100_000}
    icestream("topic", "policy", name, "partitioning=", "target_file_bytes=none", *local)
    assert policies_set() == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("max_publish_rate", "is not KEY=VALUE"),
        ("max_publsh_rate=1", "did you mean max_publish_rate?"),
        ("xyz=1", "policies: max_producers"),
        ("max_producers=many", "is not a number"),
        ("max_producers=-1", "is below 0"),
        ("partitioning=week", "partitioning is one of none, auto, hour, day, month, key, bucket[16]"),
        ("compression=zstd:23", "zstd:1 to zstd:22"),
        ("target_file_bytes=1", "are allowed"),
    ],
)
def test_an_invalid_policy_changes_nothing(local: tuple[str, str], name: str, change: str, message: str) -> None:
    icestream("topic", "create", name, *local)
    ran = icestream("topic", "policy", name, change, *local)
    assert (ran.code, ran.out) == (4, "")
    assert message in ran.err
    rows = icestream("topic", "policy", name, *local, "--output", "json").document
    assert all(row["topic"] is None for row in rows)


def test_more_topics_than_fit_a_page(broker: testing.TestBroker, local: tuple[str, str], name: str) -> None:
    icestream("namespace", "create", "many", *local)
    with connect_sync(broker.address) as client:
        for number in range(502):
            client.create_topic(f"/many/topic-{number:03}")
    listed = icestream("topic", "list", "--namespace", "many", *local, "--output", "json").document
    assert [line["topic"] for line in listed] == [f"/many/topic-{number:03}" for number in range(502)]


def test_without_a_broker_every_tried_address_is_named(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    ran = icestream("topic", "list", "--set", f"data_dir={data_dir}", "--set", "ports.native=1")
    assert (ran.code, ran.out) == (11, "")
    assert ran.err.splitlines() == [
        f"icestream: no broker listens at {data_dir / 'broker.sock'} or icestream://127.0.0.1:1 (--set)",
        f"hint: {NO_BROKER_HINT}",
    ]
    assert icestream("topic", "list", "--set", f"data_dir={data_dir}", "--set", "ports.native=0").code == 11
    assert icestream("topic", "list", "--broker", str(tmp_path / "none")).code == 11
    assert not data_dir.exists()


def test_where_only_the_address_answers_the_public_calls_work(broker: testing.TestBroker, tmp_path: Path) -> None:
    port = broker.address.rpartition(":")[2]
    here = ("--set", f"data_dir={tmp_path}", "--set", f"ports.native={port}")
    assert icestream("topic", "list", *here).code == 0
    ran = icestream("topic", "policy", "/default/x", *here)
    assert (ran.code, ran.out) == (4, "")
    assert "needs the broker's local socket" in ran.err


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / ("long-" * 30))}
    with testing.broker(storage="disk", settings=settings):
        assert icestream("topic", "list", "--set", f"data_dir={settings['data_dir']}").code == 0


def test_earliest_is_where_history_begins_and_not_where_the_log_does() -> None:
    shards = [{"shard": 0, "earliest": 40, "next": 60}, {"shard": 1, "earliest": 7, "next": 9}]
    assert with_history(shards, [0, None]) == [
        {"shard": 0, "earliest": 0, "log_start": 40, "next": 60},
        {"shard": 1, "earliest": None, "log_start": 7, "next": 9},
    ]
