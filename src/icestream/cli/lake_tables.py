"""`icestream lake namespaces, tables, describe, snapshots, history, files`: read-only commands, for any catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icestream import errors, limits
from icestream.admin_api.table_api import TableFile
from icestream.cli.arguments import CatalogNamespace, TableName
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.catalog_access import resolve_table
from icestream.cli.failed_jobs import failed_jobs, print_failed_jobs
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, columns_of, print_note
from icestream.cli.positions import time_text
from icestream.cli.table_name import format_levels, parse_levels, parse_table
from icestream.observability.words import counted, size_text

if TYPE_CHECKING:
    from icestream.iceberg.identifier import Identifier
    from icestream.settings import Settings

Metadata = Mapping[str, Any]
Files = tuple[list[dict[str, Any]], bool]  # the files, and whether there are more than the limit
_NOTHING = "none"
_SNAPSHOT_COLUMNS = ("operation", "parent", "added_rows", "total_rows", "refs")
_REMOVAL_COLUMNS = ("missing by", "snapshot", "time", "shard", "first", "last", "rows")
_FILE_COLUMNS = columns_of(
    TableFile, "path", "content", "records", "bytes", "first_offset", "last_offset", "snapshot_id"
)


def namespaces(
    namespace: CatalogNamespace = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the namespaces of the catalog, or those below one of them.

    Example: icestream lake namespaces
    """
    from icestream.cli.catalog_access import call_catalog, catalog_settings, list_all_namespaces

    parent = parse_levels(namespace) if namespace else ()
    settings = catalog_settings(Target(broker, config, sets))
    levels = call_catalog(settings, lambda catalog: list_all_namespaces(catalog, parent))
    answer = Output(output)
    answer.table(["namespace"], [[Cell(list(namespace), format_levels(namespace))] for namespace in levels])
    if not levels and answer.is_text:
        print_note("No namespaces. An engine creates one with CREATE NAMESPACE.")


def tables(
    namespace: CatalogNamespace = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the tables of the catalog, or of one namespace.

    Example: icestream lake tables shop
    """
    from icestream.cli.catalog_access import call_catalog, catalog_settings, list_all_namespaces

    async def list_tables(catalog: Any) -> list[Any]:
        levels = [parse_levels(namespace)] if namespace else await list_all_namespaces(catalog)
        return [table for parent in levels for table in await catalog.list_tables(parent)]

    identifiers = call_catalog(catalog_settings(Target(broker, config, sets)), list_tables)
    answer = Output(output)
    rows = [
        [Cell(list(table.namespace), format_levels(table.namespace)), Cell(table.name, format_levels([table.name]))]
        for table in identifiers
    ]
    answer.table(["namespace", "table"], rows)
    if not identifiers and answer.is_text:
        print_note("No tables.")


def _load(table: str, target: Target) -> tuple[Any, Metadata, str | None]:
    """The settings, the metadata of the table, and the location of its metadata file."""
    from icestream.cli.catalog_access import call_catalog, catalog_settings
    from icestream.iceberg.identifier import Identifier

    settings, identifier = catalog_settings(target), Identifier(*parse_table(table))
    with _hint_on_unknown_table(settings, table):
        loaded = call_catalog(settings, lambda catalog: catalog.load(identifier))
    return settings, loaded.metadata, loaded.metadata_location


@contextmanager
def _hint_on_unknown_table(settings: Any, table: str) -> Iterator[None]:
    """Adds a hint to an UnknownTable error: the command that lists the tables."""
    try:
        yield
    except errors.UnknownTable as error:
        _topic_state(settings, table)  # raises a better error if a view of the embedded catalog has that name
        hint = f"`icestream lake tables {format_levels(parse_table(table)[0])}` lists the tables"
        raise errors.UnknownTable(error.message, hint=hint) from None


def _current_snapshot(metadata: Metadata) -> int | None:
    snapshot_id = metadata.get("current-snapshot-id")
    return None if snapshot_id in (None, -1) else snapshot_id  # format version 1 writes -1 for none


def _time(milliseconds: int) -> Cell:
    text = time_text(milliseconds * 1000)
    return Cell(milliseconds, text or str(milliseconds), f"{text[:19]}Z" if text else None)


def _time_column(answer: Output) -> str:
    """The heading of a time: a date in text, milliseconds in JSON, where the name carries the unit."""
    return "time" if answer.is_text else "time_ms"


def describe(
    table: TableName,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a table: size, partitions, sort order, columns, properties.

    For the table of a topic also the committed offset of each shard, and which committed rows are missing.

    Example: icestream lake describe shop.orders
    """
    target = Target(broker, config, sets)
    table = resolve_table(table, target)
    settings, metadata, location = _load(table, target)
    topic = _topic_state(settings, table)
    answer = Output(output)
    if not answer.is_text:
        answer.record({"table": table, "metadata_file": location, "metadata": metadata, "topic": topic})
        return
    current = _current_snapshot(metadata)
    snapshot: Metadata = next((entry for entry in metadata["snapshots"] if entry["snapshot-id"] == current), {})
    summary = snapshot.get("summary") or {}
    answer.record(
        {
            "table": table,
            "uuid": metadata.get("table-uuid"),
            "location": metadata["location"],
            "metadata file": location,
            "format version": metadata["format-version"],
            "current snapshot": "none" if current is None else current,
            "snapshots": len(metadata["snapshots"]),
            "rows": summary.get("total-records", "unknown" if summary else "0"),
            "size": size_text(int(summary["total-files-size"])) if "total-files-size" in summary else "unknown",
            "partitions": partition_text(metadata),
            "sort order": sort_text(metadata),
            "topic": (owner(topic) if topic else metadata["properties"].get("icestream.topic")) or "none",
        }
    )
    schema = next(schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])
    answer.print_line("")
    rows = [(field["name"], _type_text(field["type"]), field["required"]) for field in schema["fields"]]
    answer.table(("column", "type", "required"), rows, keep=("type",))
    if metadata.get("properties"):
        answer.print_line("")
        answer.table(("property", "value"), sorted(metadata["properties"].items()), keep=("value",))
    _show_topic_state(answer, topic)


def owner(topic: Metadata) -> str | None:
    """The topic of a table; a deleted one with its id, because a new topic may have the same name."""
    name: str | None = topic["topic"]
    return f"{name} (deleted, id {topic['topic_id']})" if topic["is_topic_deleted"] else name


def _type_text(column_type: Any) -> str:
    return column_type if isinstance(column_type, str) else str(column_type["type"])


def _topic_state(settings: Any, table: str) -> Metadata | None:
    """What the embedded catalog records about the table's topic; None for another catalog, which records nothing."""
    from icestream.cli.lake_http import LakeApi

    if not settings.catalog_embedded:
        return None
    namespace, name = parse_table(table)
    return LakeApi(settings).get("tables", namespace=namespace, table=name)


def _show_topic_state(answer: Output, topic: Metadata | None) -> None:
    if topic is None or not topic["topic"]:
        return
    answer.print_line("")
    runs = [run for run in topic["runs"] if not run["is_closed"]]
    answer.table(("shard", "epoch", "committed"), [(run["shard"], run["epoch"], run["next"]) for run in runs])
    if topic["removals"]:
        answer.print_line("")
        rows = [
            (
                removal["operation"],
                _snapshots_cell(removal),
                _time(removal["time_ms"]),
                shard,
                start,
                end - 1,
                _removed_rows(removal),
            )
            for removal in topic["removals"]
            for shard, (start, end) in removal["ranges"].items()
        ]
        answer.table(_REMOVAL_COLUMNS, rows, drop=("time",), keep=("snapshot", "shard", "first", "last", "rows"))


def _snapshots_cell(removal: Metadata) -> Cell:
    """The snapshot that removed the rows; the first and the last one if several removals were recorded together."""
    first, last = removal.get("first_snapshot_id"), removal["snapshot_id"]
    if first is not None:
        return Cell(last, f"one of {first} to {last}")
    return Cell(last, "-" if str(last) == "0" else str(last))  # 0: the table had no snapshot


def _removed_rows(removal: Metadata) -> str:
    """How many rows of the offset range are missing."""
    if removal["is_exact"]:
        return "all of these"
    return "some of these" if removal["rows"] is None else f"{removal['rows']} of these at most"


def snapshots(
    table: TableName,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the snapshots of a table, the oldest first.

    Example: icestream lake snapshots shop.orders
    """
    target = Target(broker, config, sets)
    _, metadata, _ = _load(resolve_table(table, target), target)
    refs: dict[int, list[str]] = {}
    for name, ref in (metadata.get("refs") or {}).items():
        refs.setdefault(ref["snapshot-id"], []).append(name)
    rows = []
    for snapshot in metadata["snapshots"]:
        summary, names = snapshot.get("summary") or {}, sorted(refs.get(snapshot["snapshot-id"], ()))
        rows.append(
            (
                snapshot["snapshot-id"],
                _time(snapshot["timestamp-ms"]),
                summary.get("operation", ""),
                snapshot.get("parent-snapshot-id") or None,
                _number(summary.get("added-records")),
                _number(summary.get("total-records")),
                Cell(names, ", ".join(names)),
            )
        )
    answer = Output(output)
    answer.table(("snapshot", _time_column(answer), *_SNAPSHOT_COLUMNS), rows, drop=("parent", "refs"))


def _number(text: str | None) -> object:
    return int(text) if text is not None and text.isdigit() else None


def history(
    table: TableName,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show which snapshot was current and since when, including rollbacks, and which job of the pipeline made it;
    jobs that failed, and when they are tried again.

    Example: icestream lake history shop.orders
    """
    target = Target(broker, config, sets)
    _, metadata, _ = _load(resolve_table(table, target), target)
    parents = {snapshot["snapshot-id"]: snapshot.get("parent-snapshot-id") for snapshot in metadata["snapshots"]}
    jobs = {snapshot["snapshot-id"]: _job(snapshot.get("summary") or {}) for snapshot in metadata["snapshots"]}
    lineage: set[int] = set()
    snapshot_id = _current_snapshot(metadata)
    while snapshot_id is not None and snapshot_id not in lineage:
        lineage.add(snapshot_id)
        snapshot_id = parents.get(snapshot_id)
    rows = [
        (
            _time(entry["timestamp-ms"]),
            entry["snapshot-id"],
            _snapshot_status(entry["snapshot-id"], parents, lineage),
            jobs.get(entry["snapshot-id"]),
        )
        for entry in metadata.get("snapshot-log") or ()
    ]
    answer = Output(output)
    answer.table((_time_column(answer), "snapshot", "now", "job"), rows, drop=("job",))
    if answer.is_text:
        print_failed_jobs(failed_jobs(target, metadata["properties"].get("icestream.topic")))


def _job(summary: Metadata) -> str | None:
    """The job of the pipeline that made a snapshot; None for those of other engines."""
    if "icestream-job" in summary:
        return str(summary["icestream-job"])
    if "icestream.added" in summary:
        return "ingest"
    return "retention" if "icestream.round" in summary and summary.get("operation") == "delete" else None


def _snapshot_status(snapshot: int, parents: Metadata | dict[int, Any], lineage: set[int]) -> str:
    if snapshot not in parents:
        return "expired"
    return "in main" if snapshot in lineage else "rolled back"


def files(
    table: TableName,
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="ID", help="Snapshot to list; default: the current one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, help="Maximum number of files.")] = 1000,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the files of a table with their offset ranges, as far as column bounds provide them.

    Example: icestream lake files shop.orders --limit 20
    """
    from icestream.cli.catalog_access import catalog_settings
    from icestream.iceberg.identifier import Identifier

    target = Target(broker, config, sets)
    table = resolve_table(table, target)
    settings, identifier = catalog_settings(target), Identifier(*parse_table(table))
    read = list_embedded_files if settings.catalog_embedded else list_foreign_files
    with _hint_on_unknown_table(settings, table):
        entries, has_more = read(settings, identifier, snapshot, limit)
    answer = Output(output)
    rows = [[_file_cell(entry, column) for column in _FILE_COLUMNS] for entry in entries]
    answer.table(_FILE_COLUMNS, rows, drop=("snapshot_id", "content", "bytes"))
    if has_more and answer.is_text:
        print_note(f"Truncated after {counted(limit, 'file')}; use a larger --limit, such as {limit * 10}.")


def _file_cell(file: Metadata, column: str) -> object:
    value = file[column]
    if value is None:
        return None
    if column == "path":
        return Cell(value, value, value.rpartition("/")[2])
    return Cell(value, size_text(value)) if column == "bytes" else value


# --- files ------------------------------------------------------------------------------------------------------------


def list_embedded_files(settings: Settings, table: Identifier, snapshot: int | None, limit: int) -> Files:
    from icestream.cli.lake_http import LakeApi

    api = LakeApi(settings)
    entries: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(entries) < limit:
        size = min(limit - len(entries), limits.API_PAGE_MAX)
        page = api.get("files", namespace=table.namespace, table=table.name, snapshot=snapshot, after=after, limit=size)
        entries += page["items"]
        after = page["next"]
    return entries, after is not None


def list_foreign_files(settings: Settings, table: Identifier, snapshot: int | None, limit: int) -> Files:
    """Reads the manifests with the settings of `object_store`, as the pipeline does."""
    from icestream.catalogs.object_files import open_files
    from icestream.cli.catalog_access import call_catalog
    from icestream.iceberg import file_listing
    from icestream.iceberg.manifest_reader import ManifestReader
    from icestream.iceberg.table_metadata import load
    from icestream.processes.component_options import store_options
    from icestream.runtime.tasks import InlineOffload

    async def read(catalog: Any) -> Files:
        document = load((await catalog.load(table)).metadata)
        store = open_files(store_options(settings))
        manifests = ManifestReader(store, InlineOffload())
        entries: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None and len(entries) < limit:
            page = await file_listing.list_files(document, manifests, snapshot, after, limit - len(entries))
            entries += page["items"]
            after = page["next"]
        return entries, after is not None

    return call_catalog(settings, read)


# --- partition spec and sort order as text ----------------------------------------------------------------------------


def partition_text(metadata: Metadata) -> str:
    """The current spec, such as `day(publish_time), bucket[4](key)`; `none` for a table without partitions."""
    specs = {spec["spec-id"]: spec for spec in metadata.get("partition-specs") or ()}
    fields = (specs.get(metadata.get("default-spec-id")) or {}).get("fields") or ()
    names = _column_names(metadata)
    return ", ".join(_transformed(field["transform"], _source(field, names)) for field in fields) or _NOTHING


def sort_text(metadata: Metadata) -> str:
    """The current order, such as `shard asc nulls first, offset asc nulls first`; `none` for an unsorted table."""
    orders = {order["order-id"]: order for order in metadata.get("sort-orders") or ()}
    fields = (orders.get(metadata.get("default-sort-order-id")) or {}).get("fields") or ()
    names = _column_names(metadata)
    return ", ".join(_sorted_by(field, names) for field in fields) or _NOTHING


def _sorted_by(field: Metadata, names: Mapping[int, str]) -> str:
    nulls = str(field["null-order"]).replace("-", " ")
    return f"{_transformed(field['transform'], _source(field, names))} {field['direction']} {nulls}"


def _transformed(transform: str, column: str) -> str:
    return column if transform == "identity" else f"{transform}({column})"


def _source(field: Metadata, names: Mapping[int, str]) -> str:
    """The columns behind a field: one by `source-id`, several by `source-ids` (format version 3)."""
    ids = field.get("source-ids") or [field.get("source-id")]
    return ", ".join(names.get(number, f"column {number}") for number in ids)


def _column_names(metadata: Metadata) -> dict[int, str]:
    """Column names by field id, over all schemas: a spec may name a column that the current schema no longer has."""
    current = metadata.get("current-schema-id")
    schemas = sorted(metadata.get("schemas") or (), key=lambda schema: bool(schema.get("schema-id") == current))
    return {number: name for schema in schemas for number, name in _named(schema["fields"], "")}


def _named(fields: Any, prefix: str) -> Iterator[tuple[int, str]]:
    for field in fields:
        name = prefix + str(field["name"])
        yield field["id"], name
        kind = field["type"]
        if isinstance(kind, Mapping) and kind.get("type") == "struct":
            yield from _named(kind["fields"], f"{name}.")
