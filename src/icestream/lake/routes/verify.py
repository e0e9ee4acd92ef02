"""/api/v1/lake/verify: whether the table of a topic holds every committed offset once (lake/verify)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import StreamingResponse

from icestream import errors, limits
from icestream.catalogs.mirror import NOT_AGAIN
from icestream.lake.broker_calls import PREFIX, Broker, BrokerCalls, Page
from icestream.lake.lake_models import BoundTopic, PartedTopic, VerifyReport
from icestream.lake.models import Listing
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.verify.report_stream import lines, summary
from icestream.readers.verify.shard_in_log import ShardLogState

if TYPE_CHECKING:
    from icestream.readers.verify.verifier import Verifier

router = APIRouter(prefix=f"{PREFIX}/lake", tags=["lake"])


def scans_of(request: Request) -> LazyScanner:
    found: LazyScanner | None = request.app.state.scans
    if found is None:
        raise errors.InvalidInput("this node reads no tables", hint="its settings name no catalog")
    return found


TopicScans = Annotated[LazyScanner, Depends(scans_of)]


@router.get("/bound", response_model=Listing[BoundTopic], summary="List the topics that have a table")
async def list_bound(scans: TopicScans, page: Page) -> Any:
    found, after = await scans.tables.bound_topics(page["after"], page["limit"])
    return {"items": [one._asdict() for one in found], "next": after}


@router.get("/parted", response_model=Listing[PartedTopic], summary="List the topics that had a table and have none")
async def list_parted(scans: TopicScans, page: Page) -> Any:
    found, after = await scans.tables.detached_topics(page["after"], page["limit"])
    shown = [one._asdict() | {"committed": {str(shard): end for shard, end in one.committed.items()}} for one in found]
    return {"items": shown, "next": after}


@router.get("/verify", response_model=VerifyReport, summary="Check the table of a topic: nothing lost, nothing twice")
async def verify_topic(scans: TopicScans, broker: Broker, topic: str, deep: bool = False) -> Any:
    verifier = await prepared(scans, broker, topic)
    report = await asyncio.to_thread(verifier.verify, deep)
    shown = [one._asdict() for one in report.findings[: limits.VERIFY_FINDINGS_SHOWN]]
    return summary(report) | {"findings": shown}


@router.get(
    "/verify/lines",
    summary="The same as lines of JSON, while it goes on: progress, each finding, the report",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "One of VerifyLine in each line."}},
)
async def verify_topic_in_lines(scans: TopicScans, broker: Broker, topic: str, deep: bool = False) -> StreamingResponse:
    verifier = await prepared(scans, broker, topic)
    return StreamingResponse(lines(verifier, deep), media_type="application/x-ndjson")


async def prepared(scans: LazyScanner, broker: BrokerCalls, topic: str) -> Verifier:
    """The log is asked before and behind the table: commits go on meanwhile, and neither may look shorter than it was
    when the other was looked at."""
    before = await broker("inspect_topic", topic=topic)
    view = await scans.new_tables().fresh(before["id"])
    if view is None:
        await _check_not_parted(scans, before)
        raise errors.UnknownTable(
            f"topic {before['topic']} has no table", hint="it gets one with the first round of the pipeline"
        )
    after = await broker("inspect_topic", topic=topic)
    if after["id"] != before["id"]:
        raise errors.UnknownTopic(f"topic {topic} was deleted meanwhile", hint="ask again")
    earliest = {one["shard"]: one["earliest"] for one in before["shard_offsets"]}
    log = {
        one["shard"]: ShardLogState(
            earliest.get(one["shard"], 0), one["synced"], await _gaps(broker, topic, one), _stopped(after, one["shard"])
        )
        for one in after["shard_offsets"]
    }
    return await asyncio.to_thread(scans.verifier, view, log)


def _stopped(topic: dict[str, Any], shard: int) -> list[tuple[int, str]]:
    """Readers that will not go on by themselves: others may wait for a busy machine, which is no fault of a table."""
    return [
        (reader["offset"], f"{reader['reader']} cannot read on: {reader['reason']}")
        for reader in topic["stalled_readers"]
        if reader["shard"] == shard and not reader["is_transient"]
    ]


async def _check_not_parted(scans: LazyScanner, topic: dict[str, Any]) -> None:
    parted = await scans.tables.detached_topic(topic["id"])
    if parted is not None:
        raise errors.TopicTableConflict(
            f"topic {topic['topic']} had the table {parted.table} and has none now", hint=NOT_AGAIN
        )


async def _gaps(broker: BrokerCalls, topic: str, shard: dict[str, Any]) -> list[tuple[int, int, str]]:
    """All of them: one that is left out would be rows that are missing."""
    found, after = list(shard["gaps"]), ""
    if shard["gap_count"] > len(found):
        found = []
        while after is not None:
            page = await broker("page_gaps", topic=topic, shard=shard["shard"], after=after, limit=limits.API_PAGE_MAX)
            found += page["items"]
            after = page["next"]
    return [(gap["start"], gap["end"], gap["reason"]) for gap in found]
