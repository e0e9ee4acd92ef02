"""`icestream lake namespaces, tables, describe, snapshots, history, files`: what there is, in whatever catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from icestream import errors
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.lake_app import app
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, say_aside
from icestream.cli.places import time_text
from icestream.cli.table_layout import partition_text, sort_text
from icestream.cli.table_name import CatalogNamespace, TableName, levels_of, shown, table_named, table_of
from icestream.observability.words import size_text

Metadata = dict[str, Any]
_SNAPSHOT = ("operation", "parent", "added_rows", "total_rows", "refs")
_REMOVAL = ("missing by", "snapshot", "time", "shard", "first", "last", "rows")
_FILE = ("path", "content", "records", "bytes", "first_offset", "last_offset", "snapshot_id")


@app.command()
def namespaces(
    namespace: CatalogNamespace = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the namespaces of the catalog, or those in one of them.

    Example: icestream lake namespaces
    """
    from icestream.cli.table_catalog import all_namespaces, ask_catalog, catalog_settings

    parent = levels_of(namespace) if namespace else ()
    found = ask_catalog(catalog_settings(Target(broker, config, sets)), lambda catalog: all_namespaces(catalog, parent))
    answer = Output(output)
    answer.table(["namespace"], [[Cell(list(one), shown(one))] for one in found])
    if not found and answer.for_people:
        say_aside("there are none; an engine makes one: CREATE NAMESPACE")


@app.command()
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
    from icestream.cli.table_catalog import all_namespaces, ask_catalog, catalog_settings

    async def listed(catalog: Any) -> list[Any]:
        asked = [levels_of(namespace)] if namespace else await all_namespaces(catalog)
        return [table for one in asked for table in await catalog.list_tables(one)]

    found = ask_catalog(catalog_settings(Target(broker, config, sets)), listed)
    answer = Output(output)
    rows = [[Cell(list(one.namespace), shown(one.namespace)), Cell(one.name, shown([one.name]))] for one in found]
    answer.table(["namespace", "table"], rows)
    if not found and answer.for_people:
        say_aside("there are none yet")


def _loaded(table: str, target: Target) -> tuple[Any, Metadata, str | None]:
    """Settings, metadata and the file that holds it."""
    from icestream.cli.table_catalog import ask_catalog, catalog_settings
    from icestream.iceberg.identifier import Identifier

    settings, wanted = catalog_settings(target), Identifier(*table_of(table))
    with _looking_for(settings, table):
        found = ask_catalog(settings, lambda catalog: catalog.load(wanted))
    return settings, found.metadata, found.metadata_location


@contextmanager
def _looking_for(settings: Any, table: str) -> Iterator[None]:
    """Whoever finds no table is told what there is."""
    try:
        yield
    except errors.UnknownTable as error:
        _topic(settings, table)  # our own catalog knows more: a view may have that name
        hint = f"`icestream lake tables {shown(table_of(table)[0])}` lists those that there are"
        raise errors.UnknownTable(error.message, hint=hint) from None


def _current(metadata: Metadata) -> int | None:
    found = metadata.get("current-snapshot-id")
    return None if found in (None, -1) else found


def _time(milliseconds: int) -> Cell:
    text = time_text(milliseconds * 1000)
    return Cell(milliseconds, text or str(milliseconds), f"{text[:19]}Z" if text else None)


def _time_column(answer: Output) -> str:
    """People read a date; a number needs its unit."""
    return "time" if answer.for_people else "time_ms"


@app.command()
def describe(
    table: TableName,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a table: size, partitions, sort order, columns, properties; of a topic's also where that stands.

    For the table of a topic that is how far each shard is committed, and which committed rows are missing.

    Example: icestream lake describe shop.orders
    """
    target = Target(broker, config, sets)
    table = table_named(table, target)
    settings, metadata, location = _loaded(table, target)
    topic = _topic(settings, table)
    answer = Output(output)
    if not answer.for_people:
        answer.record({"table": table, "metadata_file": location, "metadata": metadata, "topic": topic})
        return
    current = _current(metadata)
    found: list[Metadata] = [one for one in metadata["snapshots"] if one["snapshot-id"] == current]
    summary = (found[0].get("summary") if found else None) or {}
    answer.record(
        {
            "table": table,
            "uuid": metadata.get("table-uuid"),
            "location": metadata["location"],
            "metadata file": location,
            "format version": metadata["format-version"],
            "current snapshot": "none" if current is None else current,
            "snapshots": len(metadata["snapshots"]),
            "rows": summary.get("total-records", "not told" if summary else "0"),
            "size": size_text(int(summary["total-files-size"])) if "total-files-size" in summary else "not told",
            "partitions": partition_text(metadata),
            "sort order": sort_text(metadata),
            "topic": (owner(topic) if topic else metadata["properties"].get("icestream.topic")) or "none",
        }
    )
    schema = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
    answer.say("")
    rows = [(one["name"], _type(one["type"]), one["required"]) for one in schema["fields"]]
    answer.table(("column", "type", "required"), rows, keep=("type",))
    if metadata.get("properties"):
        answer.say("")
        answer.table(("property", "value"), sorted(metadata["properties"].items()), keep=("value",))
    _show_topic(answer, topic)


def owner(topic: Metadata) -> str | None:
    """A topic of the same name may be there again: the id tells them apart."""
    name: str | None = topic["topic"]
    return f"{name} (deleted, id {topic['topic_id']})" if topic["is_topic_deleted"] else name


def _type(found: Any) -> str:
    return found if isinstance(found, str) else str(found["type"])


def _topic(settings: Any, table: str) -> Metadata | None:
    """What our own catalog knows beside the pointer; of other catalogs nothing."""
    from icestream.cli.lake_http import LakeApi

    if not settings.catalog_embedded:
        return None
    namespace, name = table_of(table)
    return LakeApi(settings).get("tables", namespace=namespace, table=name)


def _show_topic(answer: Output, topic: Metadata | None) -> None:
    if topic is None or not topic["topic"]:
        return
    answer.say("")
    runs = [one for one in topic["runs"] if not one["is_closed"]]
    answer.table(("shard", "epoch", "committed"), [(one["shard"], one["epoch"], one["next"]) for one in runs])
    if topic["removals"]:
        answer.say("")
        rows = [
            (one["operation"], _snapshots_cell(one), _time(one["time_ms"]), shard, start, end - 1, _exactly(one))
            for one in topic["removals"]
            for shard, (start, end) in one["ranges"].items()
        ]
        answer.table(_REMOVAL, rows, drop=("time",), keep=("snapshot", "shard", "first", "last", "rows"))


def _snapshots_cell(removal: Metadata) -> Cell:
    """Of deletes that are known together only, the first and the last snapshot."""
    first, last = removal.get("first_snapshot_id"), removal["snapshot_id"]
    if first is not None:
        return Cell(last, f"one of {first} to {last}")
    return Cell(last, "-" if str(last) == "0" else str(last))  # 0: the table had none


def _exactly(removal: Metadata) -> str:
    if removal["is_exact"]:
        return "all of these"
    return "some of these" if removal["rows"] is None else f"{removal['rows']} of these at most"


@app.command()
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
    _, metadata, _ = _loaded(table_named(table, target), target)
    refs: dict[int, list[str]] = {}
    for name, one in (metadata.get("refs") or {}).items():
        refs.setdefault(one["snapshot-id"], []).append(name)
    rows = []
    for one in metadata["snapshots"]:
        summary, names = one.get("summary") or {}, sorted(refs.get(one["snapshot-id"], ()))
        rows.append(
            (
                one["snapshot-id"],
                _time(one["timestamp-ms"]),
                summary.get("operation", ""),
                one.get("parent-snapshot-id") or None,
                _number(summary.get("added-records")),
                _number(summary.get("total-records")),
                Cell(names, ", ".join(names)),
            )
        )
    answer = Output(output)
    answer.table(("snapshot", _time_column(answer), *_SNAPSHOT), rows, drop=("parent", "refs"))


def _number(text: str | None) -> object:
    return int(text) if text is not None and text.isdigit() else None


@app.command()
def history(
    table: TableName,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show which snapshot was the current one, and since when: a rollback is seen here.

    Example: icestream lake history shop.orders
    """
    target = Target(broker, config, sets)
    _, metadata, _ = _loaded(table_named(table, target), target)
    parents = {one["snapshot-id"]: one.get("parent-snapshot-id") for one in metadata["snapshots"]}
    lineage: set[int] = set()
    at = _current(metadata)
    while at is not None and at not in lineage:
        lineage.add(at)
        at = parents.get(at)
    rows = [
        (_time(one["timestamp-ms"]), one["snapshot-id"], _is_there(one["snapshot-id"], parents, lineage))
        for one in metadata.get("snapshot-log") or ()
    ]
    answer = Output(output)
    answer.table((_time_column(answer), "snapshot", "now"), rows)


def _is_there(snapshot: int, parents: Metadata | dict[int, Any], lineage: set[int]) -> str:
    if snapshot not in parents:
        return "expired"
    return "in main" if snapshot in lineage else "rolled back"


@app.command()
def files(
    table: TableName,
    snapshot: Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="Else the current one.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, help="At most so many.")] = 1000,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the files of a table, with the offsets that they hold as far as their bounds tell.

    Example: icestream lake files shop.orders --limit 20
    """
    from icestream.cli.table_catalog import catalog_settings
    from icestream.cli.table_files import foreign_files, own_files
    from icestream.iceberg.identifier import Identifier

    target = Target(broker, config, sets)
    table = table_named(table, target)
    settings, wanted = catalog_settings(target), Identifier(*table_of(table))
    read = own_files if settings.catalog_embedded else foreign_files
    with _looking_for(settings, table):
        found, are_more = read(settings, wanted, snapshot, limit)
    answer = Output(output)
    rows = [[_file_cell(one, column) for column in _FILE] for one in found]
    answer.table(_FILE, rows, drop=("snapshot_id", "content", "bytes"))
    if are_more and answer.for_people:
        say_aside(f"there are more; --limit {limit * 10} shows more of them")


def _file_cell(file: Metadata, column: str) -> object:
    value = file[column]
    if value is None:
        return None
    if column == "path":
        return Cell(value, value, value.rpartition("/")[2])
    return Cell(value, size_text(value)) if column == "bytes" else value
