"""A server of the REST protocol removes references together with snapshots: the pipeline's commits leave out those that
got one (iceberg/updates.py, KEEP_REFERENCED)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from icestream.catalogs.rest import RestCatalog
from icestream.catalogs.rest_response import RestResponse
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.updates import expiry_of
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness

pytestmark = pytest.mark.asyncio
NAMES = [Identifier(("shop",), name) for name in ("orders", "returns")]
REFERENCES = {"main": 3, "audit": 1, "icestream-day-2026-01-01": 2}
TRANSACTIONS = ["POST /v1/{prefix}/transactions/commit"]


class TagServer:
    """In place of a client: a server whose tables have these references."""

    base = "http://catalog"

    def __init__(self, endpoints: list[str]) -> None:
        self.endpoints = endpoints
        self.requests: list[tuple[str, str, Any, Any]] = []

    async def send(self, method: str, path: str, query: Any = None, body: Any = None, headers: Any = None) -> Any:
        if path == "config":
            return RestResponse(200, orjson.dumps({"defaults": {}, "endpoints": self.endpoints}))
        self.requests.append((method, path.rpartition("/")[2], query, body))
        references = {name: {"snapshot-id": number, "type": "tag"} for name, number in REFERENCES.items()}
        return RestResponse(200, orjson.dumps({"metadata": {"refs": references, "snapshots": []}}))


def catalog_of(server: TagServer, *, is_own: bool) -> RestCatalog:
    randomness = SeededRandomness(1)
    caller = StorageCaller("catalog", SimulatedClock(), randomness)
    return RestCatalog(server, caller, randomness, None, is_own)  # type: ignore[arg-type]


def expiry() -> TableChange:
    removal = {"action": "remove-snapshot-ref", "ref-name": "icestream-day-2026-01-01"}
    return TableChange([], [removal, expiry_of([1, 2])])


async def test_a_snapshot_with_a_tag_of_a_user_is_left_out_of_a_commit() -> None:
    """And one whose only tag goes with the same commit is not."""
    server = TagServer([])
    assert isinstance(await catalog_of(server, is_own=False).commit(NAMES[0], expiry()), CommitDone)
    (read, commit) = server.requests
    assert read[:3] == ("GET", "orders", {"snapshots": "refs"})
    assert commit[3]["updates"][1] == {"action": "remove-snapshots", "snapshot-ids": [2]}


async def test_a_snapshot_with_a_tag_of_a_user_is_left_out_of_a_transaction() -> None:
    server = TagServer(TRANSACTIONS)
    await catalog_of(server, is_own=False).commit_all(dict.fromkeys(NAMES, expiry()))
    *reads, commit = server.requests
    assert [read[1] for read in reads] == ["orders", "returns"]
    for change in commit[3]["table-changes"]:
        assert change["updates"][1] == {"action": "remove-snapshots", "snapshot-ids": [2]}


async def test_our_own_catalog_looks_by_itself() -> None:
    server = TagServer([])
    await catalog_of(server, is_own=True).commit(NAMES[0], expiry())
    ((method, _, _, body),) = server.requests
    assert (method, body["updates"]) == ("POST", list(expiry().updates))


async def test_a_commit_without_expiry_reads_nothing() -> None:
    server = TagServer([])
    await catalog_of(server, is_own=False).commit(NAMES[0], TableChange([], []))
    assert [method for method, *_ in server.requests] == ["POST"]
