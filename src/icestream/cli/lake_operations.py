"""`icestream lake bind, detach, adopt, rewind, recreate, drop`: which table a topic has, and where it resumes.

The node records which topic a table belongs to, whichever catalog holds the table: all but `drop` need a running node.

The catalog refuses what could lose or duplicate rows until the consequence is accepted: --accept-gap,
--accept-duplicates. At a terminal the consequences are printed before the confirmation; --dry-run only prints them.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from icestream import errors
from icestream.admin_api.table_api import ShardOutcome
from icestream.cli.arguments import TableName, TopicName
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.catalog_access import resolve_table
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Cell, Output, OutputFormat, columns_of, print_note
from icestream.cli.table_name import format_levels, parse_table

AcceptGap = Annotated[
    bool, typer.Option("--accept-gap", help="Proceed although offsets are in neither table nor log: a declared gap.")
]
AcceptDuplicates = Annotated[
    bool, typer.Option("--accept-duplicates", help="Proceed although the offsets in the table are not known.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the consequences.")]
_SHARD_COLUMNS = columns_of(ShardOutcome, "shard", "held", "goes_on_at", "committed", "end", "missing", "written_again")


def bind(
    table: TableName,
    topic: TopicName,
    accept_gap: AcceptGap = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Bind an empty table with the envelope's columns to a topic.

    Example: icestream lake bind shop.orders /default/orders --dry-run
    """
    fields = _table_fields(table) | {"topic": topic, "accept": _consents(accept_gap)}
    _operate("bind", fields, Target(broker, config, sets), Output(output), is_dry=dry_run, is_confirmed=yes)


def adopt(
    table: TableName,
    topic: TopicName,
    position: Annotated[
        list[str] | None,
        typer.Option(
            "--position", metavar="SHARD=OFFSET", help="First offset of a shard that is not in the table; repeatable."
        ),
    ] = None,
    accept_gap: AcceptGap = False,
    accept_duplicates: AcceptDuplicates = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Bind a table that has rows to a topic: a detached, restored, re-registered or imported one.

    The topic resumes at the offsets at which the rows end, according to the table's snapshots.

    Example: icestream lake adopt shop.orders /default/orders --dry-run
    Example: icestream lake adopt shop.orders /default/orders --position 0=5000 --accept-duplicates --dry-run
    """
    fields = _table_fields(table) | {"topic": topic, "accept": _consents(accept_gap, accept_duplicates)}
    fields |= {"positions": _parse_positions(position)} if position else {}
    _operate("adopt", fields, Target(broker, config, sets), Output(output), is_dry=dry_run, is_confirmed=yes)


def rewind(
    table: TableName,
    snapshot: Annotated[
        int | None,
        typer.Option("--snapshot", metavar="ID", help="Snapshot that main is set to; default: main's current one."),
    ] = None,
    accept_gap: AcceptGap = False,
    accept_duplicates: AcceptDuplicates = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Resume a topic at the state of its table after a rollback: messages still in the log are committed again.

    Example: icestream lake rewind shop.orders --dry-run
    """
    target = Target(broker, config, sets)
    fields = _table_fields(resolve_table(table, target)) | {
        "snapshot": snapshot,
        "accept": _consents(accept_gap, accept_duplicates),
    }
    _operate("rewind", fields, target, Output(output), is_dry=dry_run, is_confirmed=yes)


def recreate(
    topic: TopicName,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="TABLE", help="Name of the new table; default: the former one, else the topic's."
        ),
    ] = None,
    accept_gap: AcceptGap = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a new table for a topic whose table was dropped or lost; messages still in the log are committed to it.

    Example: icestream lake recreate /default/orders --dry-run
    """
    fields = {"topic": topic, "accept": _consents(accept_gap)} | (_table_fields(table) if table else {})
    _operate("recreate", fields, Target(broker, config, sets), Output(output), is_dry=dry_run, is_confirmed=yes)


def detach(
    table: TableName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Detach a table from its topic: the rows are kept, and messages stay in the log until the topic has a table again.

    Example: icestream lake detach shop.orders --yes
    """
    from icestream.cli.catalog_access import catalog_settings
    from icestream.cli.lake_http import LakeApi

    target = Target(broker, config, sets)
    table = resolve_table(table, target)
    api = LakeApi(catalog_settings(target, needs_node=True), "`icestream lake detach`", needs_embedded=False)
    confirm(
        f"Detach {table} from its topic? The topic will have no table.",
        is_confirmed=yes,
        unchanged="nothing was changed",
    )
    api.post("detach", **_table_fields(table))
    Output(output).record({"detached": table})


def drop(
    table: TableName,
    purge: Annotated[bool, typer.Option("--purge", help="Also delete its files, an hour later.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also drop the table of a topic.")] = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Drop a table; its files are kept unless --purge is given.

    Example: icestream lake drop shop.old_orders --purge --yes
    """
    from icestream.cli.catalog_access import call_catalog, catalog_settings
    from icestream.cli.lake_http import LakeApi
    from icestream.iceberg.identifier import Identifier

    target = Target(broker, config, sets)
    table = resolve_table(table, target)
    settings, identifier = catalog_settings(target), Identifier(*parse_table(table))
    if force and not settings.catalog_embedded:
        raise errors.InvalidInput(
            f"--force does not apply: a catalog of type `{settings.catalog.type}` does not protect tables of topics",
            hint="omit it. Only the topic of a dropped table stops; `icestream lake recreate` creates a new table",
        )
    confirm(f"Drop {table} and delete its files?" if purge else f"Drop {table}? Its files are kept.", is_confirmed=yes)
    if settings.catalog_embedded:
        try:
            LakeApi(settings).post("drop", **_table_fields(table), purge=purge, force=force)
        except errors.TopicTableConflict as error:
            hint = "detach it first with `icestream lake detach`, or pass --force"
            raise errors.TopicTableConflict(error.message, hint=hint) from None
    else:
        try:
            call_catalog(settings, lambda catalog: catalog.drop(identifier, purge))
        except errors.UnknownTable as error:
            hint = f"`icestream lake tables {format_levels(identifier.namespace)}` lists the tables"
            raise errors.UnknownTable(error.message, hint=hint) from None
    Output(output).record({"dropped": table})


# --- shared -----------------------------------------------------------------------------------------------------------


def _table_fields(table: str) -> dict[str, Any]:
    """The fields of a request that name the table."""
    namespace, name = parse_table(table)
    return {"namespace": list(namespace), "table": name}


def _consents(gap: bool, duplicates: bool = False) -> list[str]:
    """The consequences that the user accepts, as the API names them."""
    return [name for name, is_accepted in (("accept-gap", gap), ("accept-duplicates", duplicates)) if is_accepted]


def _parse_positions(texts: list[str]) -> dict[str, int]:
    """Offsets by shard. Raises InvalidInput for a text that is not SHARD=OFFSET, and for a repeated shard."""
    positions: dict[str, int] = {}
    for text in texts:
        shard, _, offset = text.partition("=")
        if not (shard.isascii() and shard.isdigit() and offset.isascii() and offset.isdigit()) or shard in positions:
            raise errors.InvalidInput(
                f"{text!r} is not a position", hint="use SHARD=OFFSET, such as 0=5000, once per shard"
            )
        positions[shard] = int(offset)
    return positions


def _operate(
    name: str,
    fields: dict[str, Any],
    target: Target,
    answer: Output,
    *,
    is_dry: bool,
    is_confirmed: bool,
) -> None:
    """Runs an operation of the API; unless confirmed, prints its consequences and asks first."""
    from icestream.cli.catalog_access import catalog_settings
    from icestream.cli.lake_http import LakeApi

    api = LakeApi(catalog_settings(target, needs_node=True), f"`icestream lake {name}`", needs_embedded=False)
    if not is_dry and not is_confirmed:
        for line in _preview_lines(api.post(name, **fields, dry_run=True)):
            print_note(line)
        confirm(f"Proceed with {name} and the consequences above?", is_confirmed=False, unchanged="nothing was changed")
    _show(api.post(name, **fields, dry_run=is_dry), answer)


def _preview_lines(preview: dict[str, Any]) -> list[str]:
    """The result of a dry run, printed before the confirmation."""
    table = format_levels([*preview["namespace"], preview["table"]])
    operation, topic = preview["operation"], preview["topic"]
    return [f"would {operation} {table}, topic {topic}, needs {_required_flags(preview)}", *preview["words"]]


def _required_flags(preview: dict[str, Any]) -> str:
    return ", ".join(f"--{name}" for name in preview["needs"]) or "no consent"


def _show(result: dict[str, Any], answer: Output) -> None:
    if not answer.is_text:
        answer.record(result)
        return
    table = format_levels([*result["namespace"], result["table"]])
    record = {("would " if result["dry_run"] else "") + result["operation"]: table, "topic": result["topic"]}
    answer.record(record | ({"needs": _required_flags(result)} if result["dry_run"] else {}))
    answer.print_line("")
    rows = [[_cell(shard[column]) for column in _SHARD_COLUMNS] for shard in result["shards"]]
    answer.table(_SHARD_COLUMNS, rows)
    for line in result["words"]:
        answer.print_line(line)


def _cell(value: Any) -> object:
    """Ranges are half-open in the API; the text shows the last offset instead of the end."""
    return Cell(value, f"{value[0]}..{value[1] - 1}") if isinstance(value, list) else value
