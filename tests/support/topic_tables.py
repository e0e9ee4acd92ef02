"""The table of a topic as tests need it: bound, with rounds that bring offsets, and what other engines do to it."""

from __future__ import annotations

import uuid
from typing import Any

from icestream.catalog.topic_rules import bind, topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState, judge_commit
from icestream.iceberg.values import Object
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
        "ranges": [dict(zip(("shard", "epoch", "start", "end"), one, strict=True)) for one in ranges],
    }


def appending(state: TableState, snapshot_id: int, **more: Any) -> list[Object]:
    """The updates of a commit that adds a snapshot to main."""
    number = state.table.fields.get("last-sequence-number", 0) + 1
    made = snapshot(snapshot_id, state.table.current_snapshot_id, **{"sequence-number": number})
    made["timestamp-ms"] = NOW_MS + number
    return [add(made | more), point("main", snapshot_id)]


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
