"""/api/v1/lake/verify: whether the table of a topic holds every committed offset once (lake/verify)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from icestream import errors, limits
from icestream.catalog.location import normal
from icestream.lake.broker import PREFIX, Broker, Page
from icestream.lake.lake_models import BoundTopic, VerifyReport
from icestream.lake.manifests import AvroManifests
from icestream.lake.models import Listing
from icestream.lake.routes.lake import Manifests
from icestream.lake.scan.opening import Scans, opener
from icestream.lake.scan.table_view import TableView

router = APIRouter(prefix=f"{PREFIX}/lake", tags=["lake"])


def scans_of(request: Request) -> Scans:
    found: Scans | None = request.app.state.scans
    if found is None:
        raise errors.InvalidInput("this node reads no tables", hint="its settings name no catalog")
    return found


TopicScans = Annotated[Scans, Depends(scans_of)]


@router.get("/bound", response_model=Listing[BoundTopic], summary="List the topics that have a table")
async def list_bound(scans: TopicScans, page: Page) -> Any:
    found, after = await scans.tables.bound(page["after"], page["limit"])
    return {"items": [{"topic": one.topic, "topic_id": one.topic_id} for one in found], "next": after}


@router.get("/verify", response_model=VerifyReport, summary="Check the table of a topic: nothing lost, nothing twice")
async def verify_topic(scans: TopicScans, broker: Broker, manifests: Manifests, topic: str, deep: bool = False) -> Any:
    asked = await broker("inspect_topic", topic=topic)
    view = await scans.new_tables().fresh(asked["id"])
    if view is None:
        raise errors.UnknownTable(
            f"topic {asked['topic']} has no table", hint="it gets one with the first round of the pipeline"
        )
    sizes = await _sizes(manifests, view)
    return await asyncio.to_thread(_verified, view, manifests, asked, sizes, deep)


async def _sizes(manifests: AvroManifests, view: TableView) -> dict[str, int]:
    """Of the files that are in object stores: that they are there is all that is asked there."""
    named = [(one.path, one.size_bytes) for one in view.files.data]
    named += [(one.path, one.size_bytes) for one in view.files.deletes]
    elsewhere = [(path, size) for path, size in named if not normal(path).startswith("file:")]
    return {path: size for path, size in elsewhere if await manifests.table_files.exists(normal(path))}


def _verified(
    view: TableView, manifests: AvroManifests, asked: dict[str, Any], sizes: dict[str, int], deep: bool
) -> dict[str, Any]:
    """Loaded here: a lake process that nobody asks this needs no Parquet."""
    from icestream.lake.scan.group_cache import NoCache
    from icestream.lake.scan.parquet_files import ParquetFiles
    from icestream.lake.verify.verifier import ShardInLog, Verifier

    log = {
        one["shard"]: ShardInLog(
            one["earliest"], one["synced"], [(gap["start"], gap["end"], gap["reason"]) for gap in one["gaps"]]
        )
        for one in asked["shard_offsets"]
    }
    files = ParquetFiles(opener(manifests.table_files), NoCache())
    report = Verifier(view, files, _size_of(sizes), log).verify(deep)
    findings = [one._asdict() for one in report.findings]
    return {
        **report._asdict(),
        "is_good": report.is_good,
        "findings": findings[: limits.API_DETAILS_MAX],
        "finding_count": len(findings),
    }


def _size_of(sizes: dict[str, int]) -> Callable[[str], int | None]:
    def found(location: str) -> int | None:
        place = normal(location)
        if not place.startswith("file:"):
            return sizes.get(location)
        path = Path(place.removeprefix("file:"))
        return path.stat().st_size if path.is_file() else None

    return found
