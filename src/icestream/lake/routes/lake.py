"""/api/v1/lake: the tables of topics, and what an operator does to them (docs/lake.md).

What is decided about them is decided here for every catalog; the rest is known by the embedded one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import PurgeRecord
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.iceberg import file_listing
from icestream.iceberg.identifier import Identifier, check_namespace, identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake.broker_calls import PREFIX, Broker, BrokerCalls, Page
from icestream.lake.lake_models import (
    AdoptGiven,
    BindGiven,
    Consented,
    DataFile,
    DropGiven,
    Operation,
    PurgeShown,
    RecreateGiven,
    RewindGiven,
    TableDetails,
    TableGiven,
    TableName,
    TopicTable,
)
from icestream.lake.models import Listing
from icestream.lake.operations import AskLog, Operations
from icestream.lake.topic_log import decided, topic_log
from icestream.lake.unknown_table import looking_for

router = APIRouter(prefix=f"{PREFIX}/lake", tags=["lake"])


def catalog_of(request: Request) -> Catalog:
    found: Catalog | None = request.app.state.catalog
    if found is None:
        raise errors.InvalidInput(
            "this node has no catalog of its own",
            hint="its tables are in another catalog: use that one's own tools",
        )
    return found


def operations_of(request: Request) -> Operations:
    found: Operations | None = request.app.state.operations
    if found is None:
        raise errors.InvalidInput("this process knows of no catalog", hint="start it with the settings of its broker")
    return found


def manifests_of(request: Request) -> ManifestReader:
    found: ManifestReader = request.app.state.manifests
    return found


def table_of(
    namespace: Annotated[list[str], Query(description="Its levels, in order.")], table: Annotated[str, Query()]
) -> Identifier:
    return identifier(check_namespace(namespace), table)


OwnCatalog = Annotated[Catalog, Depends(catalog_of)]
Deciding = Annotated[Operations, Depends(operations_of)]
Manifests = Annotated[ManifestReader, Depends(manifests_of)]
Table = Annotated[Identifier, Depends(table_of)]


def _named(given: TableGiven) -> Identifier:
    return identifier(check_namespace(given.namespace), given.table)


# --- looking ----------------------------------------------------------------------------------------------------------


@router.get("/tables", response_model=TableDetails, summary="Show a table: its topic, positions, what main lacks")
async def describe_table(catalog: OwnCatalog, table: Table) -> Any:
    async with looking_for(catalog, table):
        record = (await catalog.commits.load(table)).record
    binding = record.binding
    return {
        **_name(table),
        "uuid": record.uuid,
        "metadata_file": record.location,
        "version": record.version,
        "topic": binding.topic if binding else None,
        "topic_id": binding.topic_id if binding else None,
        "is_topic_deleted": binding is not None and await catalog.topics.is_deleted(binding.topic_id),
        "pipeline_epoch": binding.pipeline_epoch if binding else None,
        "runs": [
            {"shard": shard, "epoch": run.epoch, "start": run.start, "next": run.next, "is_closed": run.is_closed}
            for shard, runs in sorted(binding.runs.items() if binding else ())
            for run in runs
        ],
        "removals": [
            {
                "operation": one.operation,
                "snapshot_id": one.snapshot_id,
                "first_snapshot_id": one.first_snapshot_id,
                "time_ms": one.time_ms,
                "is_exact": one.is_exact,
                "rows": one.rows_at_most,
                "ranges": {str(shard): found for shard, found in one.ranges.items()},
            }
            for one in record.removals
        ],
    }


@router.get("/files", response_model=Listing[DataFile], summary="List the files of a table, or of one of its snapshots")
async def list_files(
    catalog: OwnCatalog, manifests: Manifests, table: Table, page: Page, snapshot: int | None = None
) -> Any:
    async with looking_for(catalog, table):
        found = (await catalog.tables.load(table)).table
    return await file_listing.list_files(found, manifests, snapshot, page["after"], page["limit"])


@router.get("/topics", response_model=TopicTable, summary="Show the table of a topic")
async def table_of_topic(catalog: OwnCatalog, broker: Broker, topic: str) -> Any:
    log = await topic_log(broker, topic)
    table, parted = await catalog.topics.table_of(log.topic_id), await catalog.topics.find_detached(log.topic_id)
    committed: Mapping[int, int] = parted.committed if parted else {}
    if table is not None:
        binding = (await catalog.commits.load(table)).record.binding
        committed = binding.committed() if binding else {}
    return {
        "topic": log.topic,
        "topic_id": log.topic_id,
        "table": _name(table) if table else None,
        "parted": {"namespace": parted.namespace, "table": parted.name} if parted else None,
        "committed": {str(shard): end for shard, end in committed.items()},
    }


@router.get("/purges", response_model=Listing[PurgeShown], summary="List dropped tables whose files are to go")
async def list_purges(catalog: OwnCatalog, page: Page) -> Any:
    after = catalog_keys.PURGES + page["after"] if page["after"] else ""
    found = await catalog.store.list(catalog_keys.PURGES, after, page["limit"])
    items = [
        _purge(key.removeprefix(catalog_keys.PURGES), catalog_records.decode(PurgeRecord, key, entry))
        for key, entry in found
    ]
    return {"items": items, "next": items[-1]["uuid"] if len(items) == page["limit"] else None}


def _purge(uuid: str, record: PurgeRecord) -> dict[str, Any]:
    due_ms = record.time_ms + limits.CATALOG_FILE_GRACE_MS
    return {"uuid": uuid, "metadata_file": record.location, "due_ms": due_ms, "is_begun": record.is_begun}


# --- changing ---------------------------------------------------------------------------------------------------------


@router.post("/bind", response_model=Operation, summary="Give a topic a table that has no rows")
async def bind(operations: Deciding, broker: Broker, given: BindGiven) -> Any:
    table, consents = _named(given), _consents(given)

    async def decide(log: AskLog, is_dry: bool) -> OperationPreview:
        return await operations.bind(table, log, consents, is_dry)

    return _told(table, given, await decided(broker, given.topic, consents, given.dry_run, decide))


@router.post(
    "/adopt", response_model=Operation, summary="Give a topic a table that has rows: it goes on where they end"
)
async def adopt(operations: Deciding, broker: Broker, given: AdoptGiven) -> Any:
    table, consents = _named(given), _consents(given)
    positions = None if given.positions is None else {_shard(one): end for one, end in given.positions.items()}

    async def decide(log: AskLog, is_dry: bool) -> OperationPreview:
        return await operations.adopt(table, log, consents, positions, is_dry)

    return _told(table, given, await decided(broker, given.topic, consents, given.dry_run, decide))


@router.post("/rewind", response_model=Operation, summary="Let a topic go on where a snapshot of its table stands")
async def rewind(operations: Deciding, broker: Broker, given: RewindGiven) -> Any:
    table, consents = _named(given), _consents(given)
    topic = await _topic_of(operations, broker, table)

    async def decide(log: AskLog, is_dry: bool) -> OperationPreview:
        return await operations.rewind(table, log, consents, given.snapshot, is_dry)

    return _told(table, given, await decided(broker, topic, consents, given.dry_run, decide))


async def _topic_of(operations: Operations, broker: BrokerCalls, table: Identifier) -> str:
    owner = await operations.owner(table)
    if owner is None:
        raise errors.TopicTableConflict(f"{table} belongs to no topic", hint="`icestream lake adopt` takes it over")
    log: TopicLog | None
    try:
        log = await topic_log(broker, owner.topic)
    except errors.UnknownTopic:
        log = None
    if log is None or log.topic_id != owner.topic_id:
        raise errors.TopicTableConflict(
            f"{table} belongs to a deleted topic {owner.topic} (id {owner.topic_id})",
            hint=f"`icestream lake detach {table}` parts them",
        )
    return owner.topic


@router.post("/recreate", response_model=Operation, summary="Make a fresh table for a topic whose table is gone")
async def recreate(operations: Deciding, broker: Broker, given: RecreateGiven) -> Any:
    tables: list[Identifier | None] = [None]
    if given.namespace is not None and given.table is not None:
        tables = [identifier(check_namespace(given.namespace), given.table)]

    async def decide(log: AskLog, is_dry: bool) -> OperationPreview:
        tables[0], told = await operations.recreate(tables[0], log, _consents(given), is_dry)
        return told

    told = await decided(broker, given.topic, _consents(given), given.dry_run, decide)
    assert tables[0] is not None
    return _told(tables[0], given, told)


@router.post("/detach", response_model=TableName, summary="Part a table from its topic")
async def detach(operations: Deciding, given: TableGiven) -> Any:
    table = _named(given)
    await operations.detach(table)
    return _name(table)


@router.post("/drop", response_model=TableName, summary="Drop a table")
async def drop(catalog: OwnCatalog, given: DropGiven) -> Any:
    table = _named(given)
    async with looking_for(catalog, table):
        await catalog.tables.drop(table, given.purge, given.force)
    return _name(table)


def _shard(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise errors.InvalidInput(f"positions: {text!r} is not a shard", hint="such as 0")
    return int(text)


def _consents(given: Consented) -> list[Consent]:
    return [Consent(word) for word in given.accept]


def _name(table: Identifier) -> dict[str, Any]:
    return {"namespace": [*table.namespace], "table": table.name}


def _told(table: Identifier, given: Consented, found: OperationPreview) -> dict[str, Any]:
    return {
        "operation": found.operation,
        "topic": found.topic,
        **_name(table),
        "dry_run": given.dry_run,
        "needs": sorted(found.needed),
        "shards": [
            {**fate._asdict(), "missing": fate.missing, "written_again": fate.written_again} for fate in found.shards
        ],
        "words": found.words(),
    }
