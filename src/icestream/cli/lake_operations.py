"""`icestream lake bind, detach, adopt, rewind, recreate, drop`: which table a topic has, and where it goes on.

Which topic a table belongs to is known by the node, whichever catalog has the table: all but `drop` need it running.

What could lose or double rows is refused by the catalog until its consequence is named: --accept-gap,
--accept-duplicates. A person sees what will happen before being asked; --dry-run only shows it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from icestream import errors
from icestream.cli.arguments import TopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.confirm import Yes, confirm
from icestream.cli.lake_app import app
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Cell, Output, OutputFormat, say_aside
from icestream.cli.table_name import TableName, shown, table_named, table_of

AcceptGap = Annotated[
    bool, typer.Option("--accept-gap", help="Go on although offsets are in neither table nor log: a declared gap.")
]
AcceptDuplicates = Annotated[
    bool, typer.Option("--accept-duplicates", help="Go on although nobody knows which offsets the table holds.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would come to.")]
_SHARD = ("shard", "held", "goes_on_at", "committed", "end", "missing", "written_again")


@app.command()
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
    """Give a topic a table that has the envelope's columns and no rows.

    Example: icestream lake bind shop.orders /default/orders --dry-run
    """
    given = _given(table) | {"topic": topic, "accept": _accepted(accept_gap)}
    _operate("bind", given, Target(broker, config, sets), Output(output), is_dry=dry_run, is_sure=yes)


@app.command()
def adopt(
    table: TableName,
    topic: TopicName,
    position: Annotated[
        list[str] | None,
        typer.Option(
            "--position", metavar="SHARD=OFFSET", help="The first offset that the table does not have; repeatable."
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
    """Give a topic a table that has rows: one that was detached, restored, registered again or brought from elsewhere.

    The topic goes on where the snapshots of the table say that its rows end.

    Example: icestream lake adopt shop.orders /default/orders --dry-run
    Example: icestream lake adopt shop.orders /default/orders --position 0=5000 --accept-duplicates --dry-run
    """
    given = _given(table) | {"topic": topic, "accept": _accepted(accept_gap, accept_duplicates)}
    given |= {"positions": _positions(position)} if position else {}
    _operate("adopt", given, Target(broker, config, sets), Output(output), is_dry=dry_run, is_sure=yes)


@app.command()
def rewind(
    table: TableName,
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="ID", help="Where to; else where main stands. Becomes main.")
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
    """Let a topic go on where its table stands, after a rollback: what the log still has is written again.

    Example: icestream lake rewind shop.orders --dry-run
    """
    target = Target(broker, config, sets)
    given = _given(table_named(table, target)) | {
        "snapshot": snapshot,
        "accept": _accepted(accept_gap, accept_duplicates),
    }
    _operate("rewind", given, target, Output(output), is_dry=dry_run, is_sure=yes)


@app.command()
def recreate(
    topic: TopicName,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="Its name; else as it was called, else as the topic.")
    ] = None,
    accept_gap: AcceptGap = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a fresh table for a topic whose table was dropped or lost; it gets what the log still has.

    Example: icestream lake recreate /default/orders --dry-run
    """
    given = {"topic": topic, "accept": _accepted(accept_gap)} | (_given(table) if table else {})
    _operate("recreate", given, Target(broker, config, sets), Output(output), is_dry=dry_run, is_sure=yes)


@app.command()
def detach(
    table: TableName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Part a table from its topic: rows stay, and the topic's messages stay in the log until it has a table again.

    Example: icestream lake detach shop.orders --yes
    """
    from icestream.cli.lake_http import LakeApi
    from icestream.cli.table_catalog import catalog_settings

    target = Target(broker, config, sets)
    table = table_named(table, target)
    api = LakeApi(catalog_settings(target, needs_node=True), "`icestream lake detach`", needs_own=False)
    confirm(f"part {table} from its topic, which then has no table", is_sure=yes, undone="nothing was changed")
    api.post("detach", **_given(table))
    Output(output).record({"detached": table})


@app.command()
def drop(
    table: TableName,
    purge: Annotated[bool, typer.Option("--purge", help="Its files go as well, an hour later.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also the table of a topic, which then has none.")] = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Drop a table; its files stay unless --purge is given.

    Example: icestream lake drop shop.old_orders --purge --yes
    """
    from icestream.cli.lake_http import LakeApi
    from icestream.cli.table_catalog import ask_catalog, catalog_settings
    from icestream.iceberg.identifier import Identifier

    target = Target(broker, config, sets)
    table = table_named(table, target)
    settings, wanted = catalog_settings(target), Identifier(*table_of(table))
    if force and not settings.catalog_embedded:
        raise errors.InvalidInput(
            f"--force has nothing to overcome: a catalog of type `{settings.catalog.type}` guards no table of a topic",
            hint="leave it out. A topic whose table is dropped stops alone; `icestream lake recreate` gives it another",
        )
    confirm(f"drop {table}{' with its files' if purge else ''}", is_sure=yes)
    if settings.catalog_embedded:
        try:
            LakeApi(settings).post("drop", **_given(table), purge=purge, force=force)
        except errors.TopicTableConflict as error:
            raise errors.TopicTableConflict(
                error.message, hint="`icestream lake detach` parts them, or say --force"
            ) from None
    else:
        try:
            ask_catalog(settings, lambda catalog: catalog.drop(wanted, purge))
        except errors.UnknownTable as error:
            hint = f"`icestream lake tables {shown(wanted.namespace)}` lists those that there are"
            raise errors.UnknownTable(error.message, hint=hint) from None
    Output(output).record({"dropped": table})


# --- what they share --------------------------------------------------------------------------------------------------


def _given(table: str) -> dict[str, Any]:
    namespace, name = table_of(table)
    return {"namespace": list(namespace), "table": name}


def _accepted(gap: bool, duplicates: bool = False) -> list[str]:
    return [word for word, is_given in (("accept-gap", gap), ("accept-duplicates", duplicates)) if is_given]


def _positions(given: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in given:
        shard, _, offset = one.partition("=")
        if not (shard.isascii() and shard.isdigit() and offset.isascii() and offset.isdigit()) or shard in found:
            raise errors.InvalidInput(f"{one!r} is not a position", hint="SHARD=OFFSET, such as 0=5000, once per shard")
        found[shard] = int(offset)
    return found


def _operate(
    name: str,
    given: dict[str, Any],
    target: Target,
    answer: Output,
    *,
    is_dry: bool,
    is_sure: bool,
) -> None:
    from icestream.cli.lake_http import LakeApi
    from icestream.cli.table_catalog import catalog_settings

    api = LakeApi(catalog_settings(target, needs_node=True), f"`icestream lake {name}`", needs_own=False)
    if not is_dry and not is_sure:
        for line in _plan(api.post(name, **given, dry_run=True)):
            say_aside(line)
        confirm(f"{name} as above", is_sure=False, undone="nothing was changed")
    _show(api.post(name, **given, dry_run=is_dry), answer)


def _plan(told: dict[str, Any]) -> list[str]:
    """What will happen, for people, whether they can be asked or not."""
    table = shown([*told["namespace"], told["table"]])
    return [f"would {told['operation']} {table}, topic {told['topic']}, needs {_needs(told)}", *told["words"]]


def _needs(told: dict[str, Any]) -> str:
    return ", ".join(f"--{one}" for one in told["needs"]) or "no consent"


def _show(done: dict[str, Any], answer: Output) -> None:
    if not answer.for_people:
        answer.record(done)
        return
    table = shown([*done["namespace"], done["table"]])
    said = {("would " if done["dry_run"] else "") + done["operation"]: table, "topic": done["topic"]}
    answer.record(said | ({"needs": _needs(done)} if done["dry_run"] else {}))
    answer.say("")
    answer.table(_SHARD, [[_cell(shard[column]) for column in _SHARD] for shard in done["shards"]])
    for line in done["words"]:
        answer.say(line)


def _cell(value: Any) -> object:
    """A range is shown with its last offset, not the one behind it."""
    return Cell(value, f"{value[0]}..{value[1] - 1}") if isinstance(value, list) else value
