"""PyIceberg as a client of the catalog: a real broker, its lake process, and software that is not ours."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from tests.support.lake_run import LakeRun
from tests.support.secret_files import secret_file
from tests.support.tables import NEW_VIEW

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "data", StringType(), required=False),
    NestedField(3, "at", TimestamptzType(), required=False),
)
WRITERS, COMMITS = 8, 50
TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def run() -> Iterator[LakeRun]:
    """In memory where that is possible: what a commit names is synced with all of its disk, which others write to."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder, LakeRun(Path(folder) / "data") as lake_run:
        lake_run.until_api()
        yield lake_run


@pytest.fixture
def catalog(run: LakeRun) -> Catalog:
    return connected(run)


@pytest.fixture
def namespace(catalog: Catalog, request: pytest.FixtureRequest) -> str:
    name = f"ns_{request.node.name}"
    catalog.create_namespace(name, {"owner": "test"})
    return name


def connected(run: LakeRun, **more: str) -> Catalog:
    return RestCatalog("icestream", uri=f"http://127.0.0.1:{run.lake_port}", **more)


def rows(*ids: int) -> pa.Table:
    at = pa.array([0] * len(ids), pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(ids, pa.int64()), "data": [f"row {row_id}" for row_id in ids], "at": at})


def ids_of(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def test_namespaces(catalog: Catalog) -> None:
    catalog.create_namespace("top", {"x": "1"})
    deep = ("top", "b.c/d e+ü")
    catalog.create_namespace(deep)
    assert catalog.list_namespaces("top") == [deep]
    properties = catalog.load_namespace_properties("top")
    assert properties.pop("location").endswith("/warehouse/top")
    assert properties == {"x": "1"}
    changed = catalog.update_namespace_properties("top", {"x"}, {"y": "2"})
    assert (changed.removed, changed.updated) == (["x"], ["y"])
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("top")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("top")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("none")
    catalog.drop_namespace(deep)
    catalog.drop_namespace("top")
    assert not catalog.namespace_exists("top")


def test_tables_and_their_rows(catalog: Catalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA, properties={"a": "b"})
    assert table.location().startswith("file:/")
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((namespace, "t"), SCHEMA)
    table.append(rows(1, 2, 3))
    table.append(rows(4, 5))
    assert ids_of(table) == [1, 2, 3, 4, 5]
    table.delete("id = 2")
    table.overwrite(rows(40), "id = 4")
    assert ids_of(catalog.load_table((namespace, "t"))) == [1, 3, 5, 40]
    first = table.history()[0].snapshot_id
    assert sorted(table.scan(snapshot_id=first).to_arrow()["id"].to_pylist()) == [1, 2, 3]
    table.manage_snapshots().create_tag(first, "start").create_branch(first, "other").commit()
    assert {"main", "start", "other"} == set(catalog.load_table((namespace, "t")).refs())
    catalog.rename_table((namespace, "t"), (namespace, "u"))
    assert catalog.list_tables(namespace) == [(namespace, "u")]
    with pytest.raises(NoSuchTableError):
        catalog.load_table((namespace, "t"))
    location = catalog.load_table((namespace, "u")).metadata_location
    catalog.drop_table((namespace, "u"))
    assert ids_of(catalog.register_table((namespace, "again"), location)) == [1, 3, 5, 40]


def test_evolution(catalog: Catalog, namespace: str) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "data_part"))
    table = catalog.create_table((namespace, "t"), SCHEMA, partition_spec=spec)
    table.append(rows(1))
    with table.update_schema() as update:
        update.add_column("more", StringType())
        update.rename_column("data", "text")
        update.make_column_optional("id")
    with table.update_spec() as change:
        change.remove_field("data_part")
        change.add_identity("id")
    with table.transaction() as transaction:
        transaction.set_properties({"one": "1", "two": "2"})
        transaction.remove_properties("one")
    evolved = catalog.load_table((namespace, "t"))
    assert [field.name for field in evolved.schema().fields] == ["id", "text", "at", "more"]
    assert [field.name for field in evolved.spec().fields] == ["id"]
    assert evolved.properties["two"] == "2"
    assert "one" not in evolved.properties
    assert evolved.scan().to_arrow()["text"].to_pylist() == ["row 1"]


def test_a_table_that_is_created_with_its_rows_in_one_transaction(catalog: Catalog, namespace: str) -> None:
    with catalog.create_table_transaction((namespace, "t"), SCHEMA) as transaction:
        transaction.append(rows(7))
        assert not catalog.table_exists((namespace, "t"))
    assert ids_of(catalog.load_table((namespace, "t"))) == [7]


def test_a_stale_writer_gets_the_conflict_and_succeeds_after_a_refresh(catalog: Catalog, namespace: str) -> None:
    catalog.create_table((namespace, "t"), SCHEMA, properties={"commit.retry.num-retries": "0"})
    stale, other = catalog.load_table((namespace, "t")), catalog.load_table((namespace, "t"))
    stale.append(rows(1))
    with pytest.raises(CommitFailedException, match="Requirement failed: branch main"):
        other.append(rows(2))
    other.refresh()
    other.append(rows(2))
    assert ids_of(other) == [1, 2]


def test_views(run: LakeRun, catalog: Catalog, namespace: str) -> None:
    ask(run, "POST", f"/v1/namespaces/{namespace}/views", {"name": "v", **NEW_VIEW})
    assert catalog.list_views(namespace) == [(namespace, "v")]
    assert catalog.view_exists((namespace, "v"))
    with pytest.raises(NoSuchTableError):
        catalog.load_table((namespace, "v"))
    catalog.drop_view((namespace, "v"))
    with pytest.raises(NoSuchViewError):
        catalog.drop_view((namespace, "v"))


def test_refusals_have_their_own_messages(catalog: Catalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    with pytest.raises(ForbiddenError, match="icestream"):
        table.transaction().set_properties({"icestream.topic": "/default/orders"}).commit_transaction()


def test_a_token_opens_the_catalog(tmp_path: Path) -> None:
    secret_file(tmp_path / "tokens", f"{TOKEN}\n")
    with LakeRun(tmp_path / "data", "--set", f"lake.token_file={tmp_path / 'tokens'}") as run:
        run.until_api()
        with pytest.raises(UnauthorizedError):
            connected(run)
        catalog = connected(run, token=TOKEN)
        catalog.create_namespace("ns")
        assert catalog.list_namespaces() == [("ns",)]
        _, printed = run.stop()
    assert TOKEN not in printed


# --- many at once -----------------------------------------------------------------------------------------------------


def ask(run: LakeRun, method: str, path: str, body: Any = None) -> Any:
    with contextlib.closing(RawCatalogClient(run)) as client:
        status, answer = client(method, path, body)
    assert status == 200, answer
    return answer


class RawCatalogClient:
    """A client without any comfort: one connection, JSON."""

    def __init__(self, run: LakeRun) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", run.lake_port, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        raw = None if body is None else json.dumps(body)
        self._connection.request(method, path, raw, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None

    def close(self) -> None:
        self._connection.close()


def appended(metadata: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    """A commit that adds a snapshot to the main that was seen."""
    parent = metadata.get("current-snapshot-id")
    seen = None if parent in (None, -1) else parent
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"{metadata['location']}/metadata/{snapshot_id}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    return {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": seen}],
        "updates": [
            {
                "action": "add-snapshot",
                "snapshot": snapshot if seen is None else {**snapshot, "parent-snapshot-id": seen},
            },
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id},
        ],
    }


def write(run: LakeRun, table: str, number: int) -> int:
    """Commits from one writer; returns how many conflicts with other writers it met."""
    chance, conflicts = random.Random(number), 0
    with contextlib.closing(RawCatalogClient(run)) as client:
        for commit in range(1, COMMITS + 1):
            while True:
                _, loaded = client("GET", f"{table}?snapshots=refs")
                status, answer = client("POST", table, appended(loaded["metadata"], 1_000 * number + commit))
                if status == 200:
                    break
                assert status == 409, answer
                conflicts += 1
                time.sleep(chance.uniform(0, 0.1))  # as clients do, or they only stand in each other's way
    return conflicts


def test_eight_writers_of_one_table_lose_nothing(run: LakeRun, catalog: Catalog, namespace: str) -> None:
    catalog.create_table((namespace, "t"), SCHEMA)
    table = f"/v1/namespaces/{namespace}/tables/t"
    with ThreadPoolExecutor(WRITERS) as writers:
        conflicts = list(writers.map(lambda writer: write(run, table, writer), range(1, WRITERS + 1)))
    assert sum(conflicts) > WRITERS, "the writers did not run concurrently"
    metadata = ask(run, "GET", table)["metadata"]
    by_id = {entry["snapshot-id"]: entry for entry in metadata["snapshots"]}
    assert sorted(by_id) == [
        1_000 * writer + commit for writer in range(1, WRITERS + 1) for commit in range(1, COMMITS + 1)
    ]
    lineage = []
    current = metadata["current-snapshot-id"]
    while current is not None:
        lineage.append(current)
        current = by_id[current].get("parent-snapshot-id")
    assert len(lineage) == WRITERS * COMMITS, "every commit went on from the one before"
    for writer in range(1, WRITERS + 1):
        own = [number for number in lineage if number // 1_000 == writer]
        assert own == sorted(own, reverse=True)
