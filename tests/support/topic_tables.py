"""The table of a topic as tests need it: bound, with rounds that bring offsets, and what other engines do to it."""

from __future__ import annotations

import uuid
from typing import Any

from icestream.catalog.topic_rules import bind, topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState, judge_commit
from icestream.catalog.topic_rules.rewritten_rows import Bounds, DataFile, FileChanges
from icestream.iceberg.values import Object
from icestream.model.row_digest import RowDigest
from tests.support.tables import FILE, NOW_MS, add, column, point, schema, snapshot, table

TOPIC = "/default/orders"
TOPIC_ID = 12
LEASE = 5
HEADERS = {"type": "map", "key-id": 101, "key": "string", "value-id": 102, "value": "string", "value-required": False}
ENVELOPE = schema(
    *(
        column(number, name, HEADERS if kind == "map" else kind, name in ("shard", "offset"))
        for number, (name, kind) in enumerate(topic_schema.COLUMNS.items(), 1)
    )
)


def bound(shards: int = 2, epoch: int = 0) -> TableState:
    """A new table of a topic with so many shards, all at offset 0."""
    state = TableState(table(schema=ENVELOPE), FILE)
    return settled(bind.bind(state, TOPIC, TOPIC_ID, dict.fromkeys(range(shards), (epoch, 0)), NOW_MS))


def settled(outcome: CommitDecision) -> TableState:
    return TableState(outcome.table, FILE, outcome.binding, outcome.removals)


def round_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def claim(number: int, *ranges: tuple[int, int, int, int], lease: int = LEASE, topic_id: int = TOPIC_ID) -> Object:
    """Ranges are (shard, epoch, start, end)."""
    return {
        "type": "assert-icestream-range",
        "round-id": round_id(number),
        "topic-id": topic_id,
        "pipeline-epoch": lease,
        "ranges": [dict(zip(("shard", "epoch", "start", "end"), offset_range, strict=True)) for offset_range in ranges],
    }


def data_file(name: str, start: int, end: int, *, shard: int = 0, rows: int | None = None, number: int = 1) -> DataFile:
    """A file of the offsets [start, end) of a shard. `number`: its data sequence number."""
    count = end - start if rows is None else rows
    return DataFile(name, count, Bounds(shard, shard), Bounds(start, end - 1), number)


def new_name(token: int, epoch: int = LEASE) -> str:
    """The location of a file that the pipeline wrote under this epoch."""
    return f"file:/t/data/icestream-{epoch}-{token:032x}.parquet"


def rewrite_claim(
    number: int, changes: FileChanges, *, lease: int = LEASE, topic_id: int = TOPIC_ID, **more: Any
) -> Object:
    """The requirement of a rewrite that names the files of these changes."""
    return {
        "type": "assert-icestream-job",
        "kind": "rewrite",
        "round-id": round_id(number),
        "topic-id": topic_id,
        "pipeline-epoch": lease,
        "replaced": [file.location for file in changes.removed],
        "added": [file.location for file in changes.added],
        "replaced-rows": RowDigest(sum(file.rows for file in changes.removed), 7, 7).text,
        "sequence-number": max(file.sequence_number for file in (*changes.removed, *changes.added)),
        "deletes": [],
        "deleted-rows": RowDigest().text,
        "added-rows": RowDigest(sum(file.rows for file in changes.removed), 7, 7).text,
        **more,
    }


def commit_rewrite(
    state: TableState,
    number: int,
    changes: FileChanges,
    *,
    lease: int = LEASE,
    lease_epoch: int | None = LEASE,
    snapshot_id: int | None = None,
    requirement: Object | None = None,
) -> CommitDecision:
    """`lease`: the epoch that the rewrite states. `lease_epoch`: of the driver that has the lease."""
    updates = replacing(state, snapshot_id or 2_000 + number, "replace")
    claimed = requirement or rewrite_claim(number, changes, lease=lease)
    request = CommitRequest([claimed], updates, file_changes=changes)
    return judge_commit(state, request, lease_epoch, NOW_MS + 10_000)


def appending(state: TableState, snapshot_id: int, **more: Any) -> list[Object]:
    """The updates of a commit that adds a snapshot to main."""
    number = state.table.fields.get("last-sequence-number", 0) + 1
    added = snapshot(snapshot_id, state.table.current_snapshot_id, **{"sequence-number": number})
    added["timestamp-ms"] = NOW_MS + number
    return [add(added | more), point("main", snapshot_id)]


def commit_round(
    state: TableState,
    number: int,
    *ranges: tuple[int, int, int, int],
    lease: int = LEASE,
    snapshot_id: int | None = None,
) -> CommitDecision:
    updates = appending(state, snapshot_id or 1_000 + number)
    return judge_commit(state, CommitRequest([claim(number, *ranges, lease=lease)], updates), lease, NOW_MS + 10_000)


def foreign(
    state: TableState, *updates: Object, requirements: tuple[Object, ...] = (), is_forced: bool = False
) -> CommitDecision:
    return judge_commit(state, CommitRequest(requirements, updates, is_forced), None, NOW_MS + 10_000)


def replacing(state: TableState, snapshot_id: int, operation: str, **summary: str) -> list[Object]:
    """The updates of another engine that compacts (`replace`), deletes or overwrites."""
    return appending(
        state, snapshot_id, summary={"operation": operation, **{_dashed(k): v for k, v in summary.items()}}
    )


def _dashed(name: str) -> str:
    return name.replace("_", "-")
