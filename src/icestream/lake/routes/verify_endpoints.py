"""/api/v1/lake/verify: checks that the table of a topic contains every committed offset once (readers/verify)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import StreamingResponse

from icestream import errors, limits
from icestream.admin_api import table_api as api
from icestream.admin_api import topic_api
from icestream.admin_api.admin_call import Listing
from icestream.catalogs.mirror import NEW_TABLE_HINT
from icestream.lake.broker_calls import PREFIX, BrokerDep, BrokerLink, PageDep
from icestream.lake.http_models import model_of
from icestream.lake.routes.lake_endpoints import RightsDep
from icestream.lake.table_rights import TableRights
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.verify.report_stream import lines, summary
from icestream.readers.verify.verify_report import ShardLogState
from icestream.security.action import Action

if TYPE_CHECKING:
    from icestream.readers.verify.verifier import Verifier

router = APIRouter(prefix=f"{PREFIX}/lake", tags=["lake"])


def get_scans(request: Request) -> LazyScanner:
    scans: LazyScanner | None = request.app.state.scans
    if scans is None:
        raise errors.InvalidInput("this node does not read tables", hint="its settings name no catalog")
    return scans


ScansDep = Annotated[LazyScanner, Depends(get_scans)]


@router.get("/bound", response_model=model_of(Listing[api.BoundTopicView]), summary="List the topics that have a table")
async def list_bound(scans: ScansDep, page: PageDep, rights: RightsDep) -> Listing[api.BoundTopicView]:
    await rights.require_listing()
    topics, after = await scans.tables.bound_topics(page.after, page.limit)
    visibility = await rights.visible_topics([topic.topic for topic in topics])
    items = [
        api.BoundTopicView(**topic._asdict()) for topic, is_shown in zip(topics, visibility, strict=True) if is_shown
    ]
    return Listing(items=items, next=after)


@router.get(
    "/parted",
    response_model=model_of(Listing[api.DetachedTopicView]),
    summary="List the topics whose table was detached",
)
async def list_parted(scans: ScansDep, page: PageDep, rights: RightsDep) -> Listing[api.DetachedTopicView]:
    await rights.require_listing()
    topics, after = await scans.tables.detached_topics(page.after, page.limit)
    visibility = await rights.visible_topics([topic.topic for topic in topics])
    items = [
        api.DetachedTopicView(
            topic=topic.topic,
            topic_id=topic.topic_id,
            table=topic.table,
            committed={str(shard): end for shard, end in topic.committed.items()},
            problem=topic.problem,
        )
        for topic, is_shown in zip(topics, visibility, strict=True)
        if is_shown
    ]
    return Listing(items=items, next=after)


@router.get(
    "/verify",
    response_model=model_of(api.VerifyResult),
    summary="Check the table of a topic for missing and duplicated messages",
)
async def verify_topic(
    scans: ScansDep, broker: BrokerDep, rights: RightsDep, topic: str, deep: bool = False
) -> api.VerifyResult:
    await _check_rights(rights, topic, deep)
    verifier = await prepare_verifier(scans, broker, topic)
    report = await asyncio.to_thread(verifier.verify, deep)
    findings = [finding._asdict() for finding in report.findings[: limits.VERIFY_FINDINGS_SHOWN]]
    document = summary(report) | {"findings": findings, "snapshot_id": report.snapshot_id}
    return msgspec.convert(document, api.VerifyResult)


@router.get(
    "/verify/lines",
    summary="The same as JSON Lines while it runs: progress, each finding, the report",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "One of VerifyLine in each line."}},
)
async def verify_topic_in_lines(
    scans: ScansDep, broker: BrokerDep, rights: RightsDep, topic: str, deep: bool = False
) -> StreamingResponse:
    await _check_rights(rights, topic, deep)
    verifier = await prepare_verifier(scans, broker, topic)
    return StreamingResponse(lines(verifier, deep), media_type="application/x-ndjson")


async def _check_rights(rights: TableRights, topic: str, deep: bool) -> None:
    """A deep check reads every row: that is work of an operator."""
    await rights.require_topic(topic, Action.TABLE_READ, *([Action.MAINTAIN] if deep else ()))


async def prepare_verifier(scans: LazyScanner, broker: BrokerLink, topic: str) -> Verifier:
    """A verifier of the topic's table and log. Raises UnknownTopic, UnknownTable or TopicTableConflict.

    The log is read before and after the table: messages are committed in between, so its start is that of before and
    its end that of after. Otherwise committed offsets could seem to be missing from both.
    """
    before = await broker(topic_api.INSPECT_TOPIC, topic_api.TopicOnly(topic))
    view = await scans.new_tables().fresh(before.id)
    if view is None:
        await _check_not_detached(scans, before)
        raise errors.UnknownTable(
            f"topic {before.topic} has no table yet", hint="the first commit of the pipeline creates it"
        )
    after = await broker(topic_api.INSPECT_TOPIC, topic_api.TopicOnly(topic))
    if after.id != before.id:
        raise errors.UnknownTopic(f"topic {topic} was deleted and created again in the meantime", hint="retry")
    earliest = {shard.shard: shard.earliest for shard in before.shard_offsets}
    log = {
        shard.shard: ShardLogState(
            earliest.get(shard.shard, 0),
            shard.synced,
            await _read_gaps(broker, topic, shard),
            _permanent_stalls(after, shard.shard),
        )
        for shard in after.shard_offsets
    }
    return await asyncio.to_thread(scans.verifier, view, log, await scans.rule_of(view))


def _permanent_stalls(topic: topic_api.TopicDetails, shard: int) -> list[tuple[int, str]]:
    """Offset and reason of readers that are stalled permanently. Transient stalls say nothing about the table."""
    return [
        (reader.offset, f"{reader.reader} is stalled: {reader.reason}")
        for reader in topic.stalled_readers
        if reader.shard == shard and not reader.is_transient
    ]


async def _check_not_detached(scans: LazyScanner, topic: topic_api.TopicDetails) -> None:
    detached = await scans.tables.detached_topic(topic.id)
    if detached is not None:
        raise errors.TopicTableConflict(
            f"topic {topic.topic} has no table: {detached.table} was detached", hint=NEW_TABLE_HINT
        )


async def _read_gaps(broker: BrokerLink, topic: str, shard: topic_api.TopicShard) -> list[tuple[int, int, str]]:
    """All gaps of a shard: an omitted one would be reported as missing rows."""
    gaps = shard.gaps
    if shard.gap_count > len(gaps):
        gaps = []
        after: str | None = ""
        while after is not None:
            request = topic_api.PageOfShard(topic=topic, shard=shard.shard, after=after, limit=limits.API_PAGE_MAX)
            page = await broker(topic_api.PAGE_GAPS, request)
            gaps, after = [*gaps, *page.items], page.next
    return [(gap.start, gap.end, gap.reason) for gap in gaps]
