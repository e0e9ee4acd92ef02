"""/api/v1/lake: the tables of topics, and operations on them (docs/lake.md).

Operations, and the table of a topic, work for every catalog; the other routes need the embedded one. Rights (ADR 57): a
table that is bound to a topic is the topic's resource; an operation that binds a table to a topic needs the right to
alter the topic and the right to write the table, before anything is read (hazard 110).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from icestream import errors, limits
from icestream.admin_api import table_api as api
from icestream.admin_api.admin_call import Listing
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import PurgeRecord
from icestream.catalog.operations.file_rules import FileRules
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog
from icestream.iceberg import file_listing
from icestream.iceberg.identifier import Identifier, check_namespace, identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake.broker_calls import PREFIX, BrokerDep, BrokerLink, CallerDep, PageDep
from icestream.lake.catalog_rights import CatalogRights
from icestream.lake.http_models import body, model_of
from icestream.lake.operations import ReadLog, TopicTableOperations
from icestream.lake.table_rights import TableRights
from icestream.lake.topic_log import read_topic_log, run_operation
from icestream.lake.unknown_table import hint_on_unknown_table
from icestream.security.action import Action

router = APIRouter(prefix=f"{PREFIX}/lake", tags=["lake"])


def get_catalog(request: Request) -> Catalog:
    catalog: Catalog | None = request.app.state.catalog
    if catalog is None:
        raise errors.InvalidInput(
            "this node has no embedded catalog",
            hint="its tables are in another catalog: use the tools of that catalog",
        )
    return catalog


def get_operations(request: Request) -> TopicTableOperations:
    operations: TopicTableOperations | None = request.app.state.operations
    if operations is None:
        raise errors.InvalidInput("no catalog configured", hint="start the process with the settings of its broker")
    return operations


def get_manifests(request: Request) -> ManifestReader:
    manifests: ManifestReader = request.app.state.manifests
    return manifests


def get_file_rules(request: Request) -> FileRules | None:
    rules: FileRules | None = request.app.state.file_rules
    return rules


def get_rights(request: Request, caller: CallerDep) -> TableRights:
    catalog: Catalog | None = request.app.state.catalog
    return TableRights(caller, None if catalog is None else CatalogRights(catalog, caller))


def table_query(
    namespace: Annotated[list[str], Query(description="Levels of the namespace, in order.")],
    table: Annotated[str, Query()],
) -> Identifier:
    return identifier(check_namespace(namespace), table)


CatalogDep = Annotated[Catalog, Depends(get_catalog)]
OperationsDep = Annotated[TopicTableOperations, Depends(get_operations)]
ManifestsDep = Annotated[ManifestReader, Depends(get_manifests)]
FileRulesDep = Annotated[FileRules | None, Depends(get_file_rules)]
RightsDep = Annotated[TableRights, Depends(get_rights)]
OperationRequest = api.TableOperationRequest | api.RecreateRequest
TableDep = Annotated[Identifier, Depends(table_query)]


def _identifier(request: api.TableRequest) -> Identifier:
    return identifier(check_namespace(request.namespace), request.table)


# --- read-only --------------------------------------------------------------------------------------------------------


@router.get(
    "/tables",
    response_model=model_of(api.TableDetails),
    summary="Show a table: topic, committed offsets, missing rows",
)
async def describe_table(catalog: CatalogDep, table: TableDep, rights: RightsDep) -> api.TableDetails:
    await rights.require_table(table, Action.TABLE_READ)
    async with hint_on_unknown_table(catalog, table):
        record = (await catalog.commits.load(table)).record
    binding = record.binding
    return api.TableDetails(
        namespace=[*table.namespace],
        table=table.name,
        uuid=record.uuid,
        metadata_file=record.location,
        version=record.version,
        topic=binding.topic if binding else None,
        topic_id=binding.topic_id if binding else None,
        is_topic_deleted=binding is not None and await catalog.topics.is_deleted(binding.topic_id),
        pipeline_epoch=binding.pipeline_epoch if binding else None,
        runs=[
            api.ShardRun(shard=shard, epoch=run.epoch, start=run.start, next=run.next, is_closed=run.is_closed)
            for shard, runs in sorted(binding.runs.items() if binding else ())
            for run in runs
        ],
        removals=[
            api.RowRemoval(
                operation=removal.operation,
                snapshot_id=removal.snapshot_id,
                first_snapshot_id=removal.first_snapshot_id,
                time_ms=removal.time_ms,
                is_exact=removal.is_exact,
                rows=removal.rows_at_most,
                ranges={str(shard): offsets for shard, offsets in removal.ranges.items()},
            )
            for removal in record.removals
        ],
    )


@router.get(
    "/files",
    response_model=model_of(Listing[api.TableFile]),
    summary="List the files of a table, or of one of its snapshots",
)
async def list_files(
    catalog: CatalogDep,
    manifests: ManifestsDep,
    table: TableDep,
    page: PageDep,
    rights: RightsDep,
    rules: FileRulesDep,
    snapshot: int | None = None,
) -> Listing[api.TableFile]:
    await rights.require_table(table, Action.TABLE_READ)
    async with hint_on_unknown_table(catalog, table):
        metadata = (await catalog.tables.load(table)).table
    check = None if rules is None else rules.check
    files = await file_listing.list_files(metadata, manifests, snapshot, page.after, page.limit, check)
    return msgspec.convert(files, Listing[api.TableFile])


@router.get("/topics", response_model=model_of(api.TopicTableView), summary="Show the table of a topic")
async def table_of_topic(
    operations: OperationsDep, broker: BrokerDep, topic: str, rights: RightsDep
) -> api.TopicTableView:
    await rights.require_topic(topic, Action.DESCRIBE)
    log = await read_topic_log(broker, topic)
    state = await operations.topic_table(log.topic_id)
    return api.TopicTableView(
        topic=log.topic,
        topic_id=log.topic_id,
        table=_table_name(state.table) if state.table else None,
        parted=_table_name(state.detached) if state.detached else None,
        committed={str(shard): end for shard, end in state.committed.items()},
    )


@router.get(
    "/purges",
    response_model=model_of(Listing[api.DroppedTable]),
    summary="List dropped tables whose files will be deleted",
)
async def list_purges(catalog: CatalogDep, page: PageDep, rights: RightsDep) -> Listing[api.DroppedTable]:
    # A dropped table has no name, and so no resource of its own.
    await rights.require_cluster(Action.MAINTAIN)
    after = catalog_keys.PURGES + page.after if page.after else ""
    entries = await catalog.store.list(catalog_keys.PURGES, after, page.limit)
    items = [
        _dropped_table(key.removeprefix(catalog_keys.PURGES), catalog_records.decode(PurgeRecord, key, entry))
        for key, entry in entries
    ]
    return Listing(items=items, next=items[-1].uuid if len(items) == page.limit else None)


def _dropped_table(uuid: str, record: PurgeRecord) -> api.DroppedTable:
    due_ms = record.time_ms + limits.CATALOG_FILE_GRACE_MS
    return api.DroppedTable(uuid=uuid, metadata_file=record.location, due_ms=due_ms, is_begun=record.is_begun)


# --- operations -------------------------------------------------------------------------------------------------------


@router.post("/bind", response_model=model_of(api.OperationOutcome), summary="Bind an empty table to a topic")
async def bind(
    operations: OperationsDep,
    broker: BrokerDep,
    rights: RightsDep,
    request: Annotated[api.BindRequest, body(api.BindRequest)],
) -> api.OperationOutcome:
    table, consents = _identifier(request), _consents(request)
    await rights.require_binding(table, request.topic)

    async def step(log: ReadLog, is_dry: bool) -> OperationPreview:
        return await operations.bind(table, log, consents, is_dry)

    return _operation_outcome(
        table, request, await run_operation(broker, request.topic, consents, request.dry_run, step)
    )


@router.post(
    "/adopt",
    response_model=model_of(api.OperationOutcome),
    summary="Bind a table with rows to a topic, which resumes where they end",
)
async def adopt(
    operations: OperationsDep,
    broker: BrokerDep,
    rights: RightsDep,
    request: Annotated[api.AdoptRequest, body(api.AdoptRequest)],
) -> api.OperationOutcome:
    table, consents = _identifier(request), _consents(request)
    if request.metadata_file is not None:
        await rights.require_cluster(Action.ADMIN)  # as registering a file of another table does
        topic = await read_topic_log(broker, request.topic)
        await operations.register(table, request.metadata_file, topic.topic_id)
    await rights.require_binding(table, request.topic)
    positions = (
        None if request.positions is None else {_parse_shard(shard): end for shard, end in request.positions.items()}
    )

    async def step(log: ReadLog, is_dry: bool) -> OperationPreview:
        return await operations.adopt(table, log, consents, positions, is_dry)

    return _operation_outcome(
        table, request, await run_operation(broker, request.topic, consents, request.dry_run, step)
    )


@router.post(
    "/rewind",
    response_model=model_of(api.OperationOutcome),
    summary="Resume a topic at the state of a snapshot of its table",
)
async def rewind(
    operations: OperationsDep,
    broker: BrokerDep,
    rights: RightsDep,
    request: Annotated[api.RewindRequest, body(api.RewindRequest)],
) -> api.OperationOutcome:
    table, consents = _identifier(request), _consents(request)
    await rights.require_table(table, Action.ALTER, Action.TABLE_WRITE)
    topic = await _topic_of(operations, broker, table)

    async def step(log: ReadLog, is_dry: bool) -> OperationPreview:
        return await operations.rewind(table, log, consents, request.snapshot, is_dry)

    return _operation_outcome(table, request, await run_operation(broker, topic, consents, request.dry_run, step))


async def _topic_of(operations: TopicTableOperations, broker: BrokerLink, table: Identifier) -> str:
    owner = await operations.owner(table)
    if owner is None:
        raise errors.TopicTableConflict(f"{table} belongs to no topic", hint="`icestream lake adopt` binds it")
    log: TopicLog | None
    try:
        log = await read_topic_log(broker, owner.topic)
    except errors.UnknownTopic:
        log = None
    if log is None or log.topic_id != owner.topic_id:
        raise errors.TopicTableConflict(
            f"{table} belongs to a deleted topic {owner.topic} (id {owner.topic_id})",
            hint=f"detach it with `icestream lake detach {table}`",
        )
    return owner.topic


@router.post(
    "/recreate",
    response_model=model_of(api.OperationOutcome),
    summary="Create a new table for a topic whose table is lost",
)
async def recreate(
    operations: OperationsDep,
    broker: BrokerDep,
    rights: RightsDep,
    request: Annotated[api.RecreateRequest, body(api.RecreateRequest)],
) -> api.OperationOutcome:
    tables: list[Identifier | None] = [None]
    if request.namespace is not None and request.table is not None:
        tables = [identifier(check_namespace(request.namespace), request.table)]
    await rights.require_new_table(request.topic, tables[0])

    async def step(log: ReadLog, is_dry: bool) -> OperationPreview:
        tables[0], preview = await operations.recreate(tables[0], log, _consents(request), is_dry)
        return preview

    preview = await run_operation(broker, request.topic, _consents(request), request.dry_run, step)
    assert tables[0] is not None
    return _operation_outcome(tables[0], request, preview)


@router.post("/detach", response_model=model_of(api.TableName), summary="Detach a table from its topic")
async def detach(
    operations: OperationsDep, rights: RightsDep, request: Annotated[api.TableRequest, body(api.TableRequest)]
) -> api.TableName:
    table = _identifier(request)
    await rights.require_table(table, Action.ALTER, Action.TABLE_WRITE)
    await operations.detach(table)
    return _table_name(table)


@router.post("/drop", response_model=model_of(api.TableName), summary="Drop a table")
async def drop(
    catalog: CatalogDep, rights: RightsDep, request: Annotated[api.DropRequest, body(api.DropRequest)]
) -> api.TableName:
    table = _identifier(request)
    await rights.require_table(table, Action.DELETE, *([Action.TABLE_WRITE] if request.purge else ()))
    async with hint_on_unknown_table(catalog, table):
        await catalog.tables.drop(table, request.purge, request.force)
    return _table_name(table)


def _parse_shard(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise errors.InvalidInput(f"positions: {text!r} is not a shard number", hint="such as 0")
    return int(text)


def _consents(request: OperationRequest) -> list[Consent]:
    return [Consent(word) for word in request.accept]


def _table_name(table: Identifier) -> api.TableName:
    return api.TableName(namespace=[*table.namespace], table=table.name)


def _operation_outcome(table: Identifier, request: OperationRequest, preview: OperationPreview) -> api.OperationOutcome:
    return api.OperationOutcome(
        operation=preview.operation,
        topic=preview.topic,
        namespace=[*table.namespace],
        table=table.name,
        dry_run=request.dry_run,
        needs=[consent.value for consent in sorted(preview.needed)],
        shards=[
            api.ShardOutcome(**shard._asdict(), missing=shard.missing, written_again=shard.written_again)
            for shard in preview.shards
        ],
        words=preview.words(),
    )
