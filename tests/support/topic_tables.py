"""The table of a topic as tests need it: bound, with rounds that bring offsets, and what other engines do to it."""

from __future__ import annotations

import uuid
from typing import Any

from icestream.catalog.topic import bind, envelope
from icestream.catalog.topic.commit import Outcome, Request, State, judge_commit
from icestream.iceberg.values import Object
from tests.support.tables import FILE, NOW_MS, add, column, point, schema, snapshot, table

TOPIC = "/default/orders"
TOPIC_ID = 12
LEASE = 5
HEADERS = {"type": "map", "key-id": 101, "key": "string", "value-id": 102, "value": "string", "value-required": False}
ENVELOPE = schema(
    *(
        column(number, name, HEADERS if kind == "map" else kind, name in ("shard", "offset"))
        for number, (name, kind) in enumerate(envelope.COLUMNS.items(), 1)
    )
)


def bound(shards: int = 2, epoch: int = 0) -> State:
    """A new table of a topic with so many shards, all at offset 0."""
    state = State(table(schema=ENVELOPE), FILE)
    return settled(bind.bind(state, TOPIC, TOPIC_ID, dict.fromkeys(range(shards), (epoch, 0)), NOW_MS))


def settled(outcome: Outcome) -> State:
    return State(outcome.table, FILE, outcome.binding, outcome.removals)


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


def appending(state: State, snapshot_id: int, **more: Any) -> list[Object]:
    """The updates of a commit that adds a snapshot to main."""
    number = state.table.fields.get("last-sequence-number", 0) + 1
    made = snapshot(snapshot_id, state.table.current_snapshot_id, **{"sequence-number": number})
    made["timestamp-ms"] = NOW_MS + number
    return [add(made | more), point("main", snapshot_id)]


def commit_round(
    state: State, number: int, *ranges: tuple[int, int, int, int], lease: int = LEASE, snapshot_id: int | None = None
) -> Outcome:
    updates = appending(state, snapshot_id or 1_000 + number)
    return judge_commit(state, Request([claim(number, *ranges, lease=lease)], updates), lease, NOW_MS + 10_000)


def foreign(state: State, *updates: Object, requirements: tuple[Object, ...] = (), is_forced: bool = False) -> Outcome:
    return judge_commit(state, Request(requirements, updates, is_forced), None, NOW_MS + 10_000)


def replacing(state: State, snapshot_id: int, operation: str, **summary: str) -> list[Object]:
    """The updates of another engine that compacts (`replace`), deletes or overwrites."""
    return appending(
        state, snapshot_id, summary={"operation": operation, **{_dashed(k): v for k, v in summary.items()}}
    )


def _dashed(name: str) -> str:
    return name.replace("_", "-")
