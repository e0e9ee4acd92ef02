"""`icestream lake …` against a broker with its lake process, as a person types them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icestream import connect_sync, error_codes, errors, testing
from icestream.catalog.topic_rules import topic_schema
from icestream.metadata.remote_store import RemoteStore
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.avro_files import manifest, manifest_list
from tests.support.command_line import CommandResult, icestream
from tests.support.lake_run import LakeRun, request, until
from tests.support.local_broker import kept_link
from tests.support.secret_files import secret_file
from tests.support.tables import NEW_VIEW, add, point, snapshot
from tests.support.topic_tables import claim
from tests.unit.cli.test_commands import SHOWN, words


class LakeCommands:
    """Topic /default/orders with 9 messages; its table shop.orders has 6 of them, in two snapshots."""

    def __init__(self, run: LakeRun, data: Path) -> None:
        self.run, self.data = run, data
        self("POST", "/v1/namespaces", {"namespace": ["shop"]})
        for name in ("orders", "invoices", "copy", "old_orders"):
            self.table(name)
        address = re.search(r"--broker (\S+)", run.greeting)
        assert address is not None
        self.address = address[1]
        with connect_sync(self.address) as client:
            for topic in ("orders", "invoices", "copies", "payments"):
                with client.producer(f"/default/{topic}") as producer:
                    for number in range(9):
                        producer.send(b"%d" % number)
                    producer.flush()
        asyncio.run(self.take_lease())
        ran = icestream("lake", "bind", "shop.orders", "/default/orders", "--yes", "--output", "json")
        assert ran.code == 0, ran.err
        for number in (1, 2):
            self.append("orders", number, claim(number, (0, 0, 3 * number - 3, 3 * number), topic_id=self.topic_id()))
        self.append("copy", 1)

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        status, text = request(self.run.lake_port, method, path, body)
        assert status in (200, 204), text
        return json.loads(text) if text else None

    async def take_lease(self) -> None:
        async with kept_link(self.data / "broker.sock") as keeper:
            store = RemoteStore(keeper, SystemClock(), SystemRandomness())
            await store.put("/pipeline/lease", b'{"epoch":5}')

    def topic_id(self) -> int:
        return int(self("GET", "/api/v1/lake/topics?topic=/default/orders")["topic_id"])

    def table(self, name: str) -> None:
        self("POST", "/v1/namespaces/shop/tables", {"name": name, "schema": topic_schema.new_schema()})

    def append(self, name: str, number: int, *requirements: Any) -> None:
        loaded = self("GET", f"/v1/namespaces/shop/tables/{name}")["metadata"]
        place = Path(loaded["location"].removeprefix("file:"))
        (place / "metadata" / f"m{number}.avro").write_bytes(manifest(f"file:{place}/data/{number}.parquet"))
        named = place / "metadata" / f"s{number}.avro"
        named.write_bytes(manifest_list(f"file:{place}/metadata/m{number}.avro"))
        added = snapshot(number, number - 1 or None, **{"manifest-list": f"file:{named}"})
        added["timestamp-ms"] = loaded["last-updated-ms"]
        body = {"requirements": [*requirements], "updates": [add(added), point("main", number)]}
        self("POST", f"/v1/namespaces/shop/tables/{name}", body)

    def roll_back(self) -> None:
        self("POST", "/v1/namespaces/shop/tables/orders", {"requirements": [], "updates": [point("main", 1)]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeCommands]:
    data = tmp_path_factory.mktemp("lake") / "data"
    with pytest.MonkeyPatch.context() as patch, LakeRun(data) as run:
        run.until_api()
        patch.setenv("ICESTREAM_DATA_DIR", str(data))
        patch.setenv("ICESTREAM_PORTS__LAKE", str(run.lake_port))
        yield LakeCommands(run, data)


def lake_json(*arguments: str) -> Any:
    ran = icestream("lake", *arguments, "--output", "json")
    assert ran.code == 0, ran.err
    return ran.document


def refused(*arguments: str) -> CommandResult:
    ran = icestream("lake", *arguments)
    assert (ran.code != 0, ran.out) == (True, "")
    return ran


def test_every_command_of_the_page_prints_what_it_shows(lake: LakeCommands) -> None:
    assert lake_json("namespaces") == [{"namespace": ["shop"]}]
    assert {row["table"] for row in lake_json("tables", "shop")} >= {"orders", "invoices", "copy", "old_orders"}
    described = lake_json("describe", "shop.orders")
    assert (described["topic"]["topic"], described["topic"]["runs"][0]["next"]) == ("/default/orders", 6)
    shown = lake_json("snapshots", "shop.orders")
    assert [row["snapshot"] for row in shown] == ["1", "2"]
    assert shown[0]["time_ms"] == described["metadata"]["snapshots"][0]["timestamp-ms"]
    lake.roll_back()
    assert {type(row["time_ms"]) for row in lake_json("history", "shop.orders")} == {int}
    assert [row["now"] for row in lake_json("history", "shop.orders")] == ["in main", "rolled back", "in main"]
    assert [row["path"].rsplit("/", 1)[1] for row in lake_json("files", "shop.orders")] == ["1.parquet"]
    assert "all of these" in icestream("lake", "describe", "shop.orders").out
    dry = lake_json("rewind", "shop.orders", "--dry-run")
    assert (dry["needs"], dry["shards"][0]["written_again"]) == ([], [3, 6])

    need_a_pipeline = ("serve", "commit-now", "maintain", "erase")
    lines = [line for line in SHOWN if words(line)[0] == "lake" and words(line)[1] not in need_a_pipeline]
    assert len(lines) > 12
    for line in lines:
        ran = icestream(*words(line))
        assert (line, ran.code) == (line, 0), ran.err
    assert lake_json("describe", "shop.orders")["topic"]["runs"][0]["next"] == 3, "rewound"
    assert lake_json("describe", "shop.copy")["topic"]["topic"] == "/default/copies"
    assert {row["table"] for row in lake_json("tables") if row["namespace"] == ["default"]} == {"payments"}
    (purge,) = lake("GET", "/api/v1/lake/purges")["items"]
    assert (purge["is_begun"], "/shop/old" in purge["metadata_file"]) == (False, True)
    check_gap()


def check_gap() -> None:
    """Messages that the log was to bring are given up only with explicit consent."""
    icestream("lake", "detach", "shop.copy", "--yes")
    ran = refused("adopt", "shop.copy", "/default/copies", "--position", "0=5", "--accept-duplicates", "--yes")
    assert "offsets 3 to 4 of shard 0 were never committed" in ran.err
    assert "--accept-gap" in ran.err
    arguments = ("adopt", "shop.copy", "/default/copies", "--position", "0=2", "--accept-duplicates")
    plan, *_, question, hint = icestream("lake", *arguments).err.splitlines()
    assert plan == "would adopt shop.copy, topic /default/copies, needs --accept-duplicates"
    assert "nothing was changed: confirmation required: Proceed with adopt" in question
    assert hint == "hint: pass --yes to confirm"
    assert lake_json(*arguments, "--yes")["shards"][0]["goes_on_at"] == 2


def test_refused_commands_have_a_hint(lake: LakeCommands) -> None:
    lake.table("invoices_2")
    lake("POST", "/v1/namespaces/shop/views", {"name": "names", **NEW_VIEW})
    for arguments, says in (
        (("describe", "shop.none"), "hint: `icestream lake tables shop` lists"),
        (("drop", "shop.none", "--yes"), "hint: `icestream lake tables shop` lists"),
        (("files", "none.none"), "hint: unknown namespace none: `icestream lake namespaces`"),
        (("tables", "none"), "hint: `icestream lake namespaces` lists"),
        (("describe", "shop.names"), "hint: shop.names is a view"),
        (("describe", "orders"), "lacks a namespace"),
        (("describe", "shop..orders"), "is not a valid"),
        (("drop", "shop.orders", "--yes"), "--force"),
        (("detach", "shop.invoices_2", "--yes"), "shop.invoices_2 does not belong to a topic"),
        (("drop", "shop.orders"), "pass --yes"),
        (("recreate", "/default/orders", "--yes"), "has a readable table"),
        (("adopt", "shop.orders", "/default/orders", "--position", "0", "--yes"), "SHARD=OFFSET"),
        (("rewind", "shop.orders", "--snapshot", "99", "--yes"), "icestream lake snapshots"),
        (("bind", "shop.orders", "/default/none", "--yes"), "no topic /default/none"),
    ):
        ran = refused(*arguments)
        assert says in ran.err, ran.err
        assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", [("rewind", "shop.orders"), ("tables",), ("describe", "shop.orders")])
def test_a_stopped_broker_is_reported_alike_by_every_command(command: tuple[str, ...]) -> None:
    """In one line and its hint: no log messages of the circuit."""
    ran = refused(*command, "--set", "ports.lake=1")
    assert ran.code == 11
    lines = r"icestream: no response from http://\S+:1: .*\nhint: start a broker with .*\n"
    assert re.fullmatch(lines, ran.err), ran.err
    as_json = refused(*command, "--set", "ports.lake=1", "--output", "json").err
    assert json.loads(as_json)["error"] == "connection_lost"


def test_topic_delete_names_the_table_that_is_kept(lake: LakeCommands) -> None:
    local = ("--broker", str(lake.data / "broker.sock"))
    plain = {"table_end": "keep", "rest": "commit", "rest_messages": 0}
    for name, table, options in (("again", "shop.again", ()), ("bare", None, ("--output", "json"))):
        assert icestream("topic", "create", f"/default/{name}", *local).code == 0
        if table:
            lake_json("recreate", f"/default/{name}", "--table", table, "--yes")
        ran = icestream("topic", "delete", f"/default/{name}", "--yes", *local, *options)
        if table:
            assert "Table shop.again is kept. `icestream lake drop shop.again --purge`" in ran.err
        else:
            assert ran.document == {"deleted": "/default/bare", "table": None, **plain}
    assert icestream("topic", "create", "/default/over_http", *local).code == 0
    lake_json("recreate", "/default/over_http", "--table", "shop.over_http", "--yes")
    answer = lake("DELETE", "/api/v1/namespaces/default/topics/over_http")
    assert answer == {"deleted": "/default/over_http", "table": ["shop", "over_http"], "lost_with": "", **plain}


def test_a_deleted_topic_comes_back_with_its_table_kept_or_dropped(lake: LakeCommands) -> None:
    local = ("--broker", str(lake.data / "broker.sock"))
    with connect_sync(lake.address) as client:
        for name, end in (("kept_back", "keep"), ("dropped_back", "drop")):
            topic, table = f"/default/{name}", f"shop.{name}"
            with client.producer(topic) as producer:
                producer.send(b"0")
                producer.flush()
            lake_json("recreate", topic, "--table", table, "--yes")
            topic_id = int(lake("GET", f"/api/v1/lake/topics?topic={topic}")["topic_id"])
            lake.append(name, 1, claim(1, (0, 0, 0, 1), topic_id=topic_id))
            assert icestream("topic", "delete", topic, "--yes", "--table", end, "--rest", "discard", *local).code == 0
            listed = icestream("topic", "deleted", *local, "--output", "json").document["topics"]
            assert [entry["id"] for entry in listed if entry["topic"] == topic] == [topic_id]
            until(lambda topic=topic: icestream("topic", "undelete", topic, *local).code == 0, 30)
            described = lake("GET", f"/api/v1/lake/tables?namespace=shop&table={name}")
            assert (described["topic"], described["topic_id"]) == (topic, topic_id)
            with client.producer(topic) as producer:
                assert producer.send(b"1").offset == 1
    assert icestream("topic", "undelete", "/default/kept_back", *local).code != 0


def test_any_catalog_is_inspected_the_same_way(lake: LakeCommands) -> None:
    """Our own catalog used as a foreign one: its address is not the one in the settings."""
    uri = f"http://127.0.0.1:{lake.run.lake_port}"
    there = (
        "--set", "storage.iceberg_config.catalog.type=rest", "--set", f"storage.iceberg_config.catalog.uri={uri}",
        "--set", "ports.lake=1",
    )  # fmt: skip
    lake.table("elsewhere")
    assert "elsewhere" in {row["table"] for row in lake_json("tables", "shop", *there)}
    described = lake_json("describe", "shop.elsewhere", *there)
    assert (described["topic"], described["metadata"]["table-uuid"] != "") == (None, True)
    assert (lake_json("snapshots", "shop.elsewhere", *there), lake_json("history", "shop.elsewhere", *there)) == (
        [],
        [],
    )
    assert lake_json("files", "shop.elsewhere", *there) == []
    lake.append("elsewhere", 1)
    assert [row["path"].rsplit("/", 1)[1] for row in lake_json("files", "shop.elsewhere", *there)] == ["1.parquet"]
    assert "no snapshot 99" in refused("files", "shop.elsewhere", "--snapshot", "99", *there).err
    assert "no response from http://127.0.0.1:1" in refused("rewind", "shop.elsewhere", "--yes", *there).err
    assert "--force does not apply" in refused("drop", "shop.elsewhere", "--force", "--yes", *there).err
    assert lake_json("drop", "shop.elsewhere", "--yes", *there) == {"dropped": "shop.elsewhere"}
    for command in (("describe", "shop.elsewhere"), ("files", "shop.elsewhere"), ("drop", "shop.elsewhere", "--yes")):
        err = refused(*command, *there).err
        assert ("Table does not exist" in err, "hint: `icestream lake tables shop` lists" in err) == (True, True), err


def test_commands_show_tables_of_a_node_with_a_foreign_catalog(lake: LakeCommands, tmp_path: Path) -> None:
    """Another node keeps its tables in the catalog of the first, whose catalog knows nothing of its topics."""
    elsewhere = (
        "--set", "storage.iceberg_config.catalog.type=rest",
        "--set", f"storage.iceberg_config.catalog.uri=http://127.0.0.1:{lake.run.lake_port}",
    )  # fmt: skip
    with LakeRun(tmp_path / "other", *elsewhere) as other:
        other.until_api()
        there = (*elsewhere, "--set", f"ports.lake={other.lake_port}", "--yes")
        address = re.search(r"--broker (\S+)", other.greeting)
        assert address is not None
        with connect_sync(address[1]) as client, client.producer("/default/away") as producer:
            producer.send(b"1")
            producer.flush()
        dry = lake_json("recreate", "/default/away", "--dry-run", *there)
        assert (dry["namespace"], dry["table"], dry["dry_run"]) == (["default"], "away", True)
        assert (
            lake_json("recreate", "/default/away", "--table", "shop.away", *there)["table"],
            lake_json("detach", "shop.away", *there),
        ) == (
            "away",
            {"detached": "shop.away"},
        )
        assert "belongs to no topic" in refused("rewind", "shop.away", *there).err
        assert (
            "`icestream lake bind` takes a table without rows"
            in refused("adopt", "shop.away", "/default/away", *there).err
        )
        assert lake_json("bind", "shop.away", "/default/away", *there)["shards"][0]["goes_on_at"] == 0
        assert lake_json("rewind", "shop.away", *there)["topic"] == "/default/away"
        assert "it is readable" in refused("recreate", "/default/away", *there).err
        assert "lists those that there are" in refused("adopt", "shop.none", "/default/away", *there).err
        lake_json("drop", "shop.away", *there)
        assert lake_json("recreate", "/default/away", "--table", "shop.away2", *there)["table"] == "away2"


def test_a_shell_offers_tables_and_namespaces(lake: LakeCommands) -> None:
    from icestream.cli import completion
    from icestream.cli.main import load

    context = load("lake").make_context("lake", ["tables"], resilient_parsing=True)
    assert "shop.orders" in completion.tables(context)
    assert "shop" in completion.catalog_namespaces(context)


def test_verify_reports_every_topic_despite_errors_of_one(lake: LakeCommands) -> None:
    for name in ("whole", "broken", "parted"):
        lake.table(name)
        assert icestream("topic", "create", f"/default/{name}").code == 0
        lake_json("bind", f"shop.{name}", f"/default/{name}", "--yes")
    lake_json("detach", "shop.parted", "--yes")
    lake.append("broken", 1)
    location = lake_json("describe", "shop.broken")["metadata"]["location"]
    (Path(location.removeprefix("file:")) / "metadata" / "s1.avro").unlink()
    ran = icestream("verify", "--output", "json")
    reports = {report["topic"]: report for report in ran.document}
    assert ran.code == 1
    assert reports["/default/whole"]["is_good"]
    (broken,) = reports["/default/broken"]["findings"]
    assert (broken["check"], broken["weight"], "s1.avro" in broken["text"]) == ("table", "wrong", True)
    parted = reports["/default/parted"]
    assert (parted["is_good"], parted["is_complete"], parted["is_parted"], parted["table"]) == (
        True,
        False,
        True,
        "shop.parted",
    )
    health = {row["table"]: row for row in lake_json("health")}
    assert (health["shop.broken"]["score"], "s1.avro" in health["shop.broken"]["reasons"][0]) == (0, True)
    assert health["shop.whole"]["score"] > 0
    assert refused("health", "shop.broken").code == 1
    shown = icestream("verify")
    assert "without a table" in shown.err
    assert "has no table: shop.parted was detached" in icestream("verify", "/default/parted").err
    lake_json("detach", "shop.broken", "--yes")


def test_a_socket_is_enough_for_every_table_command(
    lake: LakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker says where its lake process listens: at any free port, and nothing else here names it."""
    for name in ("ICESTREAM_DATA_DIR", "ICESTREAM_PORTS__LAKE"):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    lake.table("by_socket")
    there = ("--broker", str(lake.data / "broker.sock"))
    assert {"namespace": ["shop"]} in lake_json("namespaces", *there)
    assert "by_socket" in {row["table"] for row in lake_json("tables", "shop", *there)}
    for command in ("describe", "snapshots", "history", "files"):
        lake_json(command, "shop.by_socket", *there)
    verified = icestream("verify", "/default/orders", *there, "--output", "json")
    assert (verified.document["table"], verified.err) == ("shop.orders", "")
    assert icestream("topic", "create", "/default/by_socket", *there).code == 0
    assert lake_json("bind", "shop.by_socket", "/default/by_socket", "--yes", *there)["topic"] == "/default/by_socket"
    assert lake_json("rewind", "shop.by_socket", "--dry-run", *there)["topic"] == "/default/by_socket"
    assert lake_json("detach", "shop.by_socket", "--yes", *there) == {"detached": "shop.by_socket"}
    assert "the table has no rows" in refused("adopt", "shop.by_socket", "/default/by_socket", "--dry-run", *there).err
    assert lake_json("recreate", "/default/by_socket", "--table", "shop.again_by_socket", "--dry-run", *there)[
        "dry_run"
    ]
    assert lake_json("drop", "shop.by_socket", "--yes", *there) == {"dropped": "shop.by_socket"}
    assert "no response from http://127.0.0.1:1" in refused("tables", *there, "--set", "ports.lake=1").err
    address = icestream("context", "show", *there, "--output", "json").document["native"]
    for where in (("--broker", str(lake.data)), ("--broker", address)):
        assert "orders" in {row["table"] for row in lake_json("tables", "shop", *where)}
        by_topic = icestream("lake", "describe", "/default/orders", *where)
        assert (by_topic.code, "its table is shop.orders" in by_topic.err) == (0, True)
    assert "partitions        none" in by_topic.out
    assert "sort order        none" in by_topic.out
    monkeypatch.setenv("ICESTREAM_DATA_DIR", str(lake.data))
    assert "orders" in {row["table"] for row in lake_json("tables", "shop")}
    assert icestream("verify", "/default/orders", "--output", "json").document["table"] == "shop.orders"
    refusal = refused("tables", "--broker", str(tmp_path / "none.sock"))
    assert (refusal.code, "--broker" in refusal.err) == (11, True)


def test_a_socket_leads_to_the_token_and_to_foreign_tables(
    lake: LakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are those of the broker, which has another working directory than the command."""
    secret_file(tmp_path / "tokens", f"{'t' * 40}\n")
    with LakeRun(tmp_path / "guarded", "--set", "lake.token_file=tokens") as guarded:
        guarded.until_lake()
        assert lake_json("tables", "--broker", str(tmp_path / "guarded" / "broker.sock")) == []
        foreign = ("--broker", str(tmp_path / "guarded"), "--set", f"ports.lake={lake.run.lake_port}")
        for ran in (
            refused("tables", *foreign),
            refused("describe", "shop.orders", *foreign),
            icestream("verify", *foreign),
        ):
            assert (ran.code, "another broker" in ran.err) == (error_codes.exit_code(errors.ForeignBroker("")), True), (
                ran.err
            )
    uri = f"http://127.0.0.1:{lake.run.lake_port}"
    elsewhere = ("--set", f"storage.iceberg_config.catalog.uri={uri}")
    with LakeRun(tmp_path / "other", *elsewhere) as other:
        other.until_api()
        monkeypatch.delenv("ICESTREAM_PORTS__LAKE")
        rows = lake_json("tables", "shop", "--broker", str(tmp_path / "other" / "broker.sock"))
        assert "orders" in {row["table"] for row in rows}
        assert icestream("verify", "--broker", str(tmp_path / "other" / "broker.sock")).code == 0


def test_a_broker_without_a_known_lake_process_gives_a_hint(tmp_path: Path) -> None:
    with testing.broker(storage="disk") as alone:
        ran = refused("tables", "--broker", str(alone.node.settings.local_socket))
        not_ready = error_codes.exit_code(errors.NotReady(""))
        assert (ran.code, "--set ports.lake=PORT" in ran.err) == (not_ready, True), ran.err
