"""`icestream mqtt`: sessions, subscriptions, topics, retained messages and routes. Over the local socket only."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from icestream import limits
from icestream.admin_api import mqtt_api as api
from icestream.admin_api.admin_call import AdminCall
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, columns_of, print_note
from icestream.cli.positions import time_text
from icestream.cli.table_name import format_levels
from icestream.observability.words import counted, duration_text, escaped, size_text

app = Commands("Show MQTT sessions, subscriptions, topics, retained messages and routes; disconnect clients.")
session = Commands("Show one session.")
app.add_typer(session, name="session")

_SESSION_COLUMNS = columns_of(
    api.MqttSessionSummary, "client_id", "is_connected", "address", "protocol", "subscriptions", "in_flight",
    "lag_messages", "lag_bytes", "lag_age_ms", "expiry_left_ms", "wait_reason",
)  # fmt: skip
_SUBSCRIPTION_COLUMNS = columns_of(
    api.MqttSubscription, "client_id", "filter", "qos", "identifier", "is_no_local", "is_retain_as_published",
    "replay_from", "is_open",
)  # fmt: skip
_POSITION_COLUMNS = columns_of(
    api.MqttReaderPosition, "topic", "shard", "replay", "position", "next", "lag_messages", "lag_bytes", "lag_age_ms"
)
_IN_FLIGHT_COLUMNS = columns_of(api.MqttInFlight, "packet_id", "qos", "state", "topic", "shard", "offset", "filter")
_TOPIC_COLUMNS = columns_of(
    api.MqttTopicSummary, "topic", "messages", "last_ms", "is_retained", "stored_in", "shard", "offset"
)
_RETAINED_COLUMNS = columns_of(
    api.MqttRetainedMessage, "topic", "bytes", "qos", "stored_ms", "publisher", "stored_in", "shard", "offset"
)
_ROUTE_COLUMNS = columns_of(
    api.MqttRoute, "filter", "min_qos", "topic", "table", "shards", "offsets", computed=("offsets",)
)

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="Its client id, or a shared subscription.")]
ClientPattern = Annotated[
    str, typer.Option("--client-id", metavar="PATTERN", help="Only these client ids; * and ? are wildcards.")
]
Filter = Annotated[str, typer.Option("--filter", metavar="FILTER", help="Only topics of this filter, such as a/+/#.")]
Limit = Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, help="Maximum number of rows.")]
Values = Annotated[bool, typer.Option("--values", help="With the beginning of the last payload.")]


@app.command()
def sessions(
    client_id: ClientPattern = "",
    connected: Annotated[
        bool | None, typer.Option("--connected/--disconnected", help="Only these; default: all.")
    ] = None,
    lagging: Annotated[bool, typer.Option("--lagging", help="Only those that lag, the largest lag first.")] = False,
    limit: Limit = 1000,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the MQTT sessions of this node, also those of clients that are away, with their lag.

    The lag is what a session has not looked at yet, whether it matches its filters or not: an upper bound.

    Example: icestream mqtt sessions --lagging --limit 10
    Example: icestream mqtt sessions --client-id 'sensor-*' --disconnected
    """
    rows = _rows(
        Target(broker, config, sets), api.PAGE_MQTT_SESSIONS, limit,
        client_id=client_id, is_connected=connected, is_lagging=lagging,
    )  # fmt: skip
    if not lagging:
        rows.sort(key=lambda row: str(row["client_id"]))
    drop = ("protocol", "subscriptions", "address", "lag_bytes", "in_flight")
    _table(output, _SESSION_COLUMNS, rows, "No sessions.", drop)


@session.command()
def show(
    client_id: ClientId,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a session: subscriptions, how far it has read, what is in flight, its will and its shared groups.

    Example: icestream mqtt session show sensor-1
    """

    async def read(broker: BrokerCalls) -> Document:
        return await broker.call(api.INSPECT_MQTT_SESSION, client_id=client_id)

    _show(call_broker(Target(broker, config, sets), read), Output(output))


def _show(details: Document, answer: Output) -> None:
    if not answer.is_text:
        answer.record(details)
        return
    tables = {
        name: details.pop(name)
        for name in ("subscription_list", "positions", "in_flight_list", "shared_groups", "member_ids")
    }
    will = details.pop("will")
    record = {name: _cell(name, value) for name, value in details.items()}
    record["will"] = f"{escaped(will['topic'])}, {will['bytes']} bytes, QoS {will['qos']}" if will is not None else None
    record["shared groups"] = [escaped(group["group"]) for group in tables["shared_groups"]]
    if details["members"] is not None:
        record["members"] = [escaped(client_id) for client_id in tables["member_ids"]]
    answer.record(record)
    for columns, entries, drop in (
        (_SUBSCRIPTION_COLUMNS[1:], tables["subscription_list"], ("identifier", "is_no_local")),
        (_POSITION_COLUMNS, tables["positions"], ("lag_bytes",)),
        (_IN_FLIGHT_COLUMNS, tables["in_flight_list"], ("filter",)),
    ):
        if entries:
            answer.print_line("")
            answer.table(columns, [[_cell(name, entry[name]) for name in columns] for entry in entries], drop=drop)
    listed = len(tables["in_flight_list"])
    if details["in_flight"] > listed:
        print_note(f"Of {counted(details['in_flight'], 'message')} in flight the oldest are shown.")


@app.command()
def kick(
    client_id: ClientId,
    delete_session: Annotated[
        bool, typer.Option("--delete-session", help="End its session too: subscriptions and backlog are gone.")
    ] = False,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Disconnect a client (reason code 0x98); it may connect again. With --delete-session its session ends too.

    Example: icestream mqtt kick sensor-1
    Example: icestream mqtt kick sensor-1 --delete-session --yes
    """
    if delete_session:
        confirm(f"Delete the session of {client_id}, with its subscriptions and its backlog?", is_confirmed=yes)

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(api.KICK_MQTT_CLIENT, client_id=client_id, delete_session=delete_session)

    Output(output).record(call_broker(Target(broker, config, sets), send))


@app.command()
def subscriptions(
    client_id: ClientPattern = "",
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Only those that match this topic.")] = "",
    limit: Limit = 1000,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the subscriptions of MQTT clients by filter, or the clients that receive a topic.

    Example: icestream mqtt subscriptions --topic plant/line-1/temperature
    """
    target = Target(broker, config, sets)
    rows = _rows(target, api.PAGE_MQTT_SUBSCRIPTIONS, limit, client_id=client_id, topic=topic)
    rows.sort(key=lambda row: (str(row["client_id"]), str(row["filter"])))
    _table(output, _SUBSCRIPTION_COLUMNS, rows, "No subscriptions.", ("identifier", "is_retain_as_published"))


@app.command()
def topics(
    topic_filter: Filter = "",
    contains: Annotated[str, typer.Option("--contains", metavar="WORD", help="Only topics with this text.")] = "",
    values: Values = False,
    limit: Limit = 1000,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the MQTT topics that had messages since the broker started, with their number and the time of the last.

    The 100,000 latest ones are known; after a restart those with a retained message, and others from their next message
    on. The table of the route has all of them.

    Example: icestream mqtt topics --contains temperature
    Example: icestream mqtt topics --filter 'plant/#' --values
    """
    arguments: Document = {"filter": topic_filter, "contains": contains, "has_payload": values}
    rows = _rows(Target(broker, config, sets), api.PAGE_MQTT_TOPICS, limit, **arguments)
    rows.sort(key=lambda row: str(row["topic"]))
    columns = (*_TOPIC_COLUMNS, "payload") if values else _TOPIC_COLUMNS
    _table(output, columns, rows, "No topics.", ("stored_in", "shard", "offset"))


@app.command()
def retained(
    topic_filter: Filter = "",
    values: Values = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Clear the messages of --filter, by empty ones, which subscribers get.")
    ] = False,
    yes: Yes = False,
    limit: Limit = 1000,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the retained messages, the last value of each topic that has one; --clear removes those of a filter.

    Example: icestream mqtt retained --filter 'plant/#' --values
    Example: icestream mqtt retained --filter 'plant/line-7/#' --clear --yes
    """
    target = Target(broker, config, sets)
    if clear:
        topic_filter = topic_filter or "#"
        confirm(f"Clear the retained messages of {topic_filter}?", is_confirmed=yes, unchanged="nothing was cleared")

        async def send(broker: BrokerCalls) -> Document:
            return await broker.call(api.CLEAR_MQTT_RETAINED, filter=topic_filter)

        Output(output).record(call_broker(target, send))
        return
    rows = _rows(target, api.PAGE_MQTT_RETAINED, limit, filter=topic_filter, has_payload=values)
    rows.sort(key=lambda row: str(row["topic"]))
    columns = (*_RETAINED_COLUMNS, "payload") if values else _RETAINED_COLUMNS
    _table(output, columns, rows, "No retained messages.", ("publisher", "stored_in", "shard", "offset"))


@app.command()
def routes(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List which MQTT topics are stored in which topic and table: the routes of mqtt.replay, with the shards' offsets.

    Example: icestream mqtt routes
    """
    rows = _rows(Target(broker, config, sets), api.PAGE_MQTT_ROUTES, limits.MQTT_ROUTES_MAX)
    answer = Output(output)
    if not answer.is_text:
        answer.document(rows)
        return
    cells = [
        [
            escaped(row["filter"]),
            row["min_qos"],
            row["topic"],
            None if row["table"] is None else format_levels(row["table"]),
            len(row["shards"]) or None,
            ", ".join(f"{shard['shard']}: {shard['earliest']}-{shard['next']}" for shard in row["shards"]),
        ]
        for row in rows
    ]
    answer.table(_ROUTE_COLUMNS, cells, drop=("offsets", "shards"))
    if not rows:
        print_note("No routes: MQTT is switched off (mqtt.enable).")


def _rows(target: Target, call: AdminCall[Any, Any], limit: int, **arguments: object) -> list[Document]:
    """The first rows of a listing; a note says if there are more."""

    async def read(broker: BrokerCalls) -> tuple[list[Document], bool]:
        rows: list[Document] = []
        after: str | None = ""
        while after is not None and len(rows) < limit:
            size = min(limit - len(rows), limits.API_PAGE_MAX)
            page = await broker.call(call, **arguments, after=after, limit=size)
            rows += page["items"]
            after = page["next"]
        return rows, after is not None

    rows, has_more = call_broker(target, read)
    if has_more:
        print_note(f"Truncated after {counted(limit, 'row')}; use a larger --limit, such as {limit * 10}.")
    return rows


def _table(
    output: OutputFormat, columns: tuple[str, ...], rows: list[Document], nothing: str, drop: tuple[str, ...]
) -> None:
    answer = Output(output)
    if not answer.is_text:
        answer.document(rows)
        return
    answer.table(columns, [[_cell(name, row[name]) for name in columns] for row in rows], drop=drop)
    if not rows:
        print_note(nothing)


def _cell(name: str, value: Any) -> object:
    """A value as people read it, by the unit of its name. Clients choose texts: no character of them may steer a
    terminal."""
    if value is None:
        return None
    if isinstance(value, str):
        return value if value.isprintable() else Cell(value, escaped(value))
    if name in ("last_ms", "stored_ms"):
        return Cell(value, time_text(1000 * value) or "-")
    if name.endswith("_ms"):
        return Cell(value, duration_text(value))
    if name.endswith("bytes"):
        return Cell(value, size_text(value))
    return value
