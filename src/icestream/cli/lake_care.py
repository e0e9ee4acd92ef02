"""`icestream lake health, maintain`: the state of tables, and their maintenance at once."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icestream import errors, limits
from icestream.cli.arguments import OptionalTableName
from icestream.cli.broker_connection import BrokerCalls, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.catalog_access import resolve_table
from icestream.cli.failed_jobs import failed_jobs, print_failed_jobs
from icestream.cli.lake_tables import list_embedded_files, list_foreign_files
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, print_note
from icestream.cli.positions import time_text
from icestream.cli.progress_bar import progress_bar
from icestream.cli.table_name import format_levels, parse_table
from icestream.observability.words import counted, size_text

if TYPE_CHECKING:
    from icestream.iceberg.identifier import Identifier
    from icestream.pipeline.driver.maintenance_request import RequestedTable
    from icestream.pipeline.table_health import TableHealth
    from icestream.settings import Settings

_COLUMNS = (
    "table",
    "score",
    "files",
    "small_files",
    "delete_files",
    "snapshots",
    "oldest_snapshot",
    "live",
    "kept_by_tags",
    "reasons",
)
_POLL_SECONDS = 0.2


def health(
    table: OptionalTableName = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show how tables are: files, deletes, snapshots, bytes, and a score with its reasons.

    Example: icestream lake health
    Example: icestream lake health shop.orders --output json
    """
    from icestream.cli.catalog_access import call_catalog, catalog_settings, list_all_namespaces
    from icestream.iceberg.identifier import Identifier

    target = Target(broker, config, sets)
    settings = catalog_settings(target)

    async def list_tables(catalog: Any) -> list[Identifier]:
        namespaces = await list_all_namespaces(catalog)
        return [name for namespace in namespaces for name in await catalog.list_tables(namespace)]

    if table is not None:
        identifiers = [Identifier(*parse_table(resolve_table(table, target)))]
        rows = [_health_row(_health_of(settings, identifiers[0]))]
    else:
        identifiers = call_catalog(settings, list_tables)
        rows = [_listed_row(settings, identifier) for identifier in identifiers[: limits.HEALTH_TABLES_MAX]]
    answer = Output(output)
    answer.table(_COLUMNS, rows, keep=("reasons",))
    if answer.is_text:
        if not rows:
            print_note("No tables.")
        if len(identifiers) > len(rows):
            print_note(f"Truncated after {counted(len(rows), 'table')}; name a table to see it.")
        print_failed_jobs(failed_jobs(target))


def _listed_row(settings: Settings, identifier: Identifier) -> list[object]:
    """The row of a table; of one that cannot be read, with that as its reason: the other tables are shown as well."""
    try:
        return _health_row(_health_of(settings, identifier))
    except errors.IcestreamError as error:
        name = format_levels((*identifier.namespace, identifier.name))
        reasons = [f"cannot be read: {error.message}"]
        unknown = [None] * (len(_COLUMNS) - 3)
        return [name, 0, *unknown, Cell(reasons, reasons[0])]


def _health_of(settings: Settings, identifier: Identifier) -> TableHealth:
    """Reads the metadata of a table, its files, and those of its tags."""
    from icestream.cli.catalog_access import call_catalog
    from icestream.pipeline.table_health import table_health, tagged_snapshots

    metadata = call_catalog(settings, lambda catalog: catalog.load(identifier)).metadata
    read = list_embedded_files if settings.catalog_embedded else list_foreign_files
    files, has_more = read(settings, identifier, None, limits.HEALTH_FILES_MAX)
    tagged: dict[str, int] = {}
    for snapshot_id in tagged_snapshots(metadata)[: limits.HEALTH_TAGS_MAX]:
        entries, is_cut = read(settings, identifier, snapshot_id, limits.HEALTH_FILES_MAX)
        has_more |= is_cut
        tagged |= {entry["path"]: entry["bytes"] for entry in entries}
    name = format_levels((*identifier.namespace, identifier.name))
    return table_health(name, metadata, files, tagged, is_cut=has_more)


def _health_row(health: TableHealth) -> list[object]:
    oldest = health.oldest_snapshot_ms
    text = None if oldest is None else time_text(oldest * 1000)
    return [
        health.table,
        health.score,
        health.files,
        health.small_files,
        health.delete_files,
        health.snapshots,
        Cell(oldest, "" if text is None else f"{text[:19]}Z"),
        Cell(health.live_bytes, size_text(health.live_bytes)),
        Cell(health.tag_bytes, size_text(health.tag_bytes)),
        Cell(list(health.reasons), "; ".join(health.reasons)),
    ]


def maintain(
    table: OptionalTableName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    only: Annotated[
        str,
        typer.Option(
            "--only", metavar="JOBS", help="Jobs to run, separated by commas: expire, clean-up, retention, compact."
        ),
    ] = "compact",
    repartition: Annotated[
        bool,
        typer.Option("--repartition", help="Also rewrite files of older partition specs into the present one."),
    ] = False,
    wait: Annotated[int, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the end.", min=0)] = 600,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Merge the small files of a table now, or of all tables, whatever budget and policies say; return when done.
    With --only other jobs: expire snapshots, remove files, apply the retention.

    Example: icestream lake maintain shop.orders --dry-run
    Example: icestream lake maintain shop.orders --only expire,clean-up --dry-run
    Example: icestream lake maintain shop.orders --repartition
    """
    from icestream.cli.catalog_access import catalog_settings
    from icestream.pipeline.driver.maintenance_request import COMPACT, JOBS, MaintenanceRequest

    names = {name.strip() for name in only.split(",")}
    if unknown := names - set(JOBS):
        raise errors.InvalidInput(f"--only {only}: there is no job {min(unknown)!r}", hint=f"one of {', '.join(JOBS)}")
    jobs: list[str] = [name for name in JOBS if name in names]
    if repartition and COMPACT not in jobs:
        raise errors.InvalidInput(f"--repartition is of compaction, not of {only}", hint="add compact to --only")
    target = Target(broker, config, sets)
    settings = catalog_settings(target, needs_node=True)
    name = None if table is None else resolve_table(table, target)
    tables = _requested_tables(settings, target, name)
    tables = tables[: limits.MAINTENANCE_TABLES_MAX]
    request = MaintenanceRequest(str(uuid.uuid4()), tables, dry_run, jobs, repartition)
    progress = call_broker(target, lambda calls: _maintain(calls, request, wait))
    answer = Output(output)
    if not answer.is_text:
        answer.record(progress)
        return
    if progress["plan"]:
        rows = [
            (
                group["job"],
                group["table"],
                group["files"],
                group["rows"],
                Cell(group["bytes"], size_text(group["bytes"])),
                group["detail"],
            )
            for group in progress["plan"]
        ]
        answer.table(("job", "table", "files", "rows", "bytes", "detail"), rows)
    if progress["reason"]:
        print_note(f"Left alone: {progress['reason']}.")
    if progress["replaced_files"]:
        print_note(f"Merged {counted(progress['replaced_files'], 'file')} into {progress['added_files']}.")
    elif not progress["plan"]:
        print_note("Nothing to merge." if jobs == ["compact"] else "Nothing to do.")


def _requested_tables(settings: Settings, target: Target, table: str | None) -> list[RequestedTable]:
    """The topics whose tables are meant; empty for all that the pipeline writes, in another catalog. Raises
    InvalidInput for a table without a topic."""
    from icestream.cli.lake_http import LakeApi
    from icestream.pipeline.driver.maintenance_request import RequestedTable

    if not settings.catalog_embedded:
        return [] if table is None else [_foreign_table(settings, target, table)]
    api = LakeApi(settings)
    if table is not None:
        namespace, name = parse_table(table)
        state = api.get("tables", namespace=namespace, table=name)
        if not state["topic"]:
            raise _no_topic(table)
        return [RequestedTable(state["topic_id"], state["topic"])]
    tables: list[RequestedTable] = []
    after: str | None = ""
    while after is not None and len(tables) < limits.MAINTENANCE_TABLES_MAX:
        page = api.get("bound", after=after, limit=limits.API_PAGE_MAX)
        tables += [RequestedTable(item["topic_id"], item["topic"]) for item in page["items"]]
        after = page["next"]
    return tables


def _foreign_table(settings: Settings, target: Target, table: str) -> RequestedTable:
    """The topic of a table in another catalog, by the property that the pipeline sets."""
    from icestream.admin_api.topic_api import DESCRIBE_TOPIC
    from icestream.cli.catalog_access import call_catalog
    from icestream.iceberg.identifier import Identifier
    from icestream.pipeline.driver.maintenance_request import RequestedTable

    identifier = Identifier(*parse_table(table))
    metadata = call_catalog(settings, lambda catalog: catalog.load(identifier)).metadata
    topic = metadata["properties"].get("icestream.topic")
    if topic is None:
        raise _no_topic(table)
    described = call_broker(target, lambda calls: calls.call(DESCRIBE_TOPIC, topic=topic))
    return RequestedTable(described["id"], topic)


def _no_topic(table: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{table} is not the table of a topic", hint="compact it with an engine: the pipeline does not write it"
    )


async def _maintain(calls: BrokerCalls, request: Any, seconds: int) -> dict[str, Any]:
    """Hands the request to the pipeline and waits until it is fulfilled. Returns its progress. Raises NotReady."""
    from icestream.metadata import command as cmd
    from icestream.pipeline.driver.maintenance_request import KEY, TTL_MS, encode_request

    envelope = cmd.Envelope(cmd.VERSION, b"", 0, 0, cmd.PutWithTtl(KEY, encode_request(request), TTL_MS))
    await calls.call("metadata_submit", envelope=cmd.encode_envelope(envelope))
    deadline = time.monotonic() + seconds
    done = 0
    with progress_bar("Maintaining tables", 1_000) as advance:
        while True:
            state = (await calls.call("pipeline_state")).get("state") or {}
            progress: dict[str, Any] = state.get("maintenance") or {}
            if progress.get("id") == request.id:
                if progress["is_done"]:
                    return progress
                permille = 1_000 * progress["groups_done"] // max(1, progress["groups_planned"])
                advance(permille - done)
                done = permille
            if time.monotonic() >= deadline:
                raise errors.NotReady(
                    f"maintenance not finished within {seconds} s",
                    hint="it goes on; `icestream pipeline status --output json` shows its progress",
                )
            await asyncio.sleep(_POLL_SECONDS)
