"""`icestream topic`: lists, creates, describes, changes and deletes topics."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from icestream import errors
from icestream.admin_api.subscription_api import PAGE_SUBSCRIPTIONS, SubscriptionSummary
from icestream.admin_api.topic_api import (
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_TOPIC,
    INSPECT_TOPIC,
    LIST_DELETED_TOPICS,
    PAGE_PRODUCERS,
    SET_TOPIC_POLICIES,
    TAKEOVER_TOPIC,
    TOPIC_HISTORY,
    TOPIC_POLICIES,
    UNDELETE_TOPIC,
    ConnectedProducer,
    DeletionReport,
    ShardTakeover,
    TopicOutline,
    TopicShard,
    TopicSummary,
    TopicTombstone,
)
from icestream.cli import completion
from icestream.cli.arguments import TopicName
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, columns_of, print_note
from icestream.cli.policies import TOPIC_KEYS, Changes, PolicyOption, parse_policies, policies_cell
from icestream.cli.positions import time_text
from icestream.cli.table_name import format_levels
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.observability.words import counted, size_text

app = Commands("List, create, change and delete topics.")

_COLUMNS = columns_of(
    TopicSummary, "topic", "shards", "dispatch", "producers", "consumers", "subscriptions", "lag", "node"
)
_SHARD_COLUMNS = columns_of(
    TopicShard, "shard", "earliest", "log_start", "next", "synced", "epoch", "gap_count", computed=("log_start",)
)
_PRODUCER_COLUMNS = columns_of(ConnectedProducer, "producer", "peer", "epoch")
_SUBSCRIPTION_COLUMNS = columns_of(SubscriptionSummary, "subscription", "type", "consumers", "lag")
_CREATED = columns_of(TopicOutline, "topic", "id", "shards", "dispatch")
_DELETION = columns_of(DeletionReport, "table_end", "rest", "rest_messages")
_DELETED = columns_of(TopicTombstone, "topic", "id", "shards", "node", "deleted_ms", "until_ms")
_TAKEOVER_COLUMNS = columns_of(ShardTakeover, "shard", "gap_start", "gap_end")


@app.command("list")
def list_topics(
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="List only the topics of this namespace.",
            autocompletion=completion.namespaces,
        ),
    ] = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the topics; over an address only their names.

    Example: icestream topic list --namespace default
    """
    topics = call_broker(Target(broker, config, sets), lambda calls: calls.topics(namespace))
    columns = [name for name in _COLUMNS if not topics or name in topics[0]]
    answer = Output(output)
    rows = [[topic[name] for name in columns] for topic in topics]  # of another node's topic, some values are None
    answer.table(columns, rows, drop=("dispatch", "node", "shards", "producers"))
    if not topics and answer.is_text:
        print_note("No topics. `icestream topic create`, or the first message, creates one.")


@app.command()
def create(
    topic: TopicName,
    shards: Annotated[
        int, typer.Option("--shards", metavar="NUMBER", min=1, help="Number of shards; cannot be changed later.")
    ] = 1,
    non_reliable: Annotated[
        bool, typer.Option("--non-reliable", help="Deliver at most once, only to consumers with credit at that moment.")
    ] = False,
    policy: PolicyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a topic.

    Example: icestream topic create /default/orders --shards 4 --policy max_message_bytes=100000
    """
    policies = parse_policies(policy or (), TOPIC_KEYS)
    dispatch = "non-reliable" if non_reliable else "reliable"

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(CREATE_TOPIC, topic=topic, shards=shards, dispatch=dispatch, policies=policies)

    created = call_broker(Target(broker, config, sets), send)
    Output(output).record({name: created[name] for name in _CREATED})


_TableEnd = Annotated[
    DeletedTablePolicy | None, typer.Option("--table", help="Whether to keep its table; default: as its policies say.")
]
_RestEnd = Annotated[
    DeletedRestPolicy | None,
    typer.Option("--rest", help="Whether to commit uncommitted messages; default: as its policies say."),
]


@app.command()
def delete(
    topic: TopicName,
    table: _TableEnd = None,
    rest: _RestEnd = None,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a topic and its subscriptions; by default uncommitted messages are committed first and its table is kept.

    The policies deleted_table and deleted_rest, the settings, and the options --table and --rest change that.

    Example: icestream topic delete /default/orders --yes
    """
    target = Target(broker, config, sets)
    if not yes:
        policies, subscriptions = call_broker(target, lambda calls: _read_deletion(calls, topic))
        table_end, rest_end = table or policies.get("deleted_table"), rest or policies.get("deleted_rest")
        confirm(deletion_question(topic, subscriptions, table_end, rest_end), is_confirmed=False)

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(DELETE_TOPIC, topic=topic, table=table, rest=rest)

    deletion, answer = call_broker(target, send), Output(output)
    name = format_levels(deletion["table"]) if deletion["table"] else None
    details = {key: deletion[key] for key in _DELETION}
    answer.record({"deleted": topic} | ({} if answer.is_text else {"table": name, **details}))
    if answer.is_text:
        for line in _deletion_notes(topic, name, deletion):
            print_note(line)


async def _read_deletion(broker: BrokerCalls, topic: str) -> tuple[Document, int | None]:
    """The effective policies of a topic and the number of its subscriptions.

    Empty and None for an unknown topic: a topic that was deleted may still have uncommitted messages to discard.
    """
    with contextlib.suppress(errors.UnknownTopic):
        policies = dict((await broker.call(TOPIC_POLICIES, topic=topic))["effective_policies"])
        return policies, len((await broker.call(DESCRIBE_TOPIC, topic=topic))["subscriptions"])
    return {}, None


def deletion_question(topic: str, subscriptions: int | None, table: str | None, rest: str | None) -> str:
    """The confirmation of a deletion: what is deleted and what is kept. None: as the settings of the broker say."""
    table_texts = {
        DeletedTablePolicy.KEEP: "Its table is kept (change with --table).",
        DeletedTablePolicy.DROP: "Its table is dropped, the files are kept (change with --table).",
        DeletedTablePolicy.PURGE: "Its table is dropped and its files are deleted (change with --table).",
    }
    rest_texts = {
        DeletedRestPolicy.COMMIT: "Uncommitted messages are committed first.",
        DeletedRestPolicy.DISCARD: "Uncommitted messages are discarded.",
    }
    by_settings = "The setting broker.deleted_table decides about its table (default: keep; change with --table)."
    rest_by_settings = "The setting broker.deleted_rest decides about uncommitted messages."
    count = "its subscriptions" if subscriptions is None else f"its {counted(subscriptions, 'subscription')}"
    return " ".join(
        (
            f"Delete topic {topic} and {count}?",
            table_texts[DeletedTablePolicy(table)] if table else by_settings,
            rest_texts[DeletedRestPolicy(rest)] if rest else rest_by_settings,
        )
    )


def _deletion_notes(topic: str, table: str | None, deletion: Document) -> list[str]:
    """What happened to messages and table, for text output."""
    lines = []
    if removed_node := deletion.get("lost_with"):
        lines.append(f"Messages that were only in the log of {removed_node}, a removed node, are lost.")
    if (messages := deletion["rest_messages"]) and deletion["rest"] == DeletedRestPolicy.COMMIT:
        pending = f"{counted(messages, 'message')} being committed to the table"
        lines.append(f"{pending}; `icestream topic delete {topic} --rest discard` discards them.")
    elif messages:
        lines.append(f"{counted(messages, 'uncommitted message')} discarded.")
    if table and deletion["table_end"] == DeletedTablePolicy.KEEP:
        lines.append(f"Table {table} is kept. `icestream lake drop {table} --purge` deletes it with its files.")
    elif table and deletion["table_end"] == DeletedTablePolicy.PURGE:
        lines.append(f"Table {table} and its files will be deleted.")
    elif table:
        lines.append(f"Table {table} will be dropped; its files are kept.")
    return lines


@app.command()
def deleted(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the deleted topics that can come back, the oldest deletion first.

    Example: icestream topic deleted
    """

    async def read(broker: BrokerCalls) -> Document:
        return await broker.call(LIST_DELETED_TOPICS)

    topics, answer = call_broker(Target(broker, config, sets), read)["topics"], Output(output)
    if not answer.is_text:
        answer.record({"topics": topics})
        return
    rows = [
        [*(topic[name] for name in _DELETED[:4]), *(_time(topic[name]) for name in _DELETED[4:])] for topic in topics
    ]
    answer.table([name.removesuffix("_ms") for name in _DELETED], rows)
    if not topics:
        print_note("No deleted topic can come back. `broker.undelete_grace_ms` is the time; purged ones cannot.")


def _time(time_ms: int) -> Cell:
    return Cell(time_ms, time_text(time_ms * 1000) or "")


@app.command()
def undelete(
    topic: TopicName,
    topic_id: Annotated[
        int | None,
        typer.Option("--id", metavar="NUMBER", help="Which of several deleted topics of that name; default: the last."),
    ] = None,
    bring_back_erased: Annotated[
        bool,
        typer.Option("--bring-back-erased", help="Also if messages of it were erased since from one restored from it."),
    ] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Bring a deleted topic back, with its offsets, its subscriptions at their cursors, and its table.

    It works within `broker.undelete_grace_ms` and unless the table was purged. Grants stay parked.

    Example: icestream topic undelete /default/orders
    """
    target = Target(broker, config, sets)

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(UNDELETE_TOPIC, topic=topic, id=topic_id, bring_back_erased=bring_back_erased)

    returned, answer = call_broker(target, send), Output(output)
    table = returned["former_table"]
    adopted = None if table is None else _adopt_former(target, topic, table)
    record = {name: returned[name] for name in ("topic", "id", "shards", "subscriptions")}
    answer.record(record | {"table": format_levels([*table["namespace"], table["table"]]) if table else None})
    if answer.is_text:
        for line in adopted["words"] if adopted else ():
            print_note(line)


def _adopt_former(target: Target, topic: str, table: Document) -> Document:
    """Binds the table of a topic that came back to it. Raises with the command to go on with, if that is refused."""
    from icestream.cli.catalog_access import catalog_settings
    from icestream.cli.lake_http import LakeApi

    api = LakeApi(catalog_settings(target, needs_node=True), "`icestream topic undelete`", needs_embedded=False)
    try:
        return api.post(
            "adopt",
            namespace=table["namespace"],
            table=table["table"],
            topic=topic,
            metadata_file=table["metadata_file"],
            # What was discarded with the topic is a gap; it was decided then.
            accept=["accept-gap"],
        )
    except errors.IcestreamError as error:
        levels = format_levels([*table["namespace"], table["table"]])
        raise type(error)(
            f"{topic} is back, and its table {levels} is not bound to it: {error.message}",
            hint=f"{error.hint}; then `icestream lake adopt {levels} {topic}`"
            if error.hint
            else f"`icestream lake adopt {levels} {topic} --dry-run` says what is in the way",
        ) from None


@app.command()
def takeover(
    topic: TopicName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Serve a topic of a removed node by the node of --broker, from the rows in its table.

    Messages that were only in the log of the removed node are lost: a declared gap, after which offsets continue.

    Example: icestream topic takeover /default/orders --yes
    """
    confirm(
        f"Take over {topic}? Messages that were only in the log of its removed node are lost.",
        is_confirmed=yes,
        unchanged="nothing was changed",
    )

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(TAKEOVER_TOPIC, topic=topic)

    result, answer = call_broker(Target(broker, config, sets), send), Output(output)
    if not answer.is_text:
        answer.record({"topic": topic, **result})
        return
    answer.print_line(f"{topic} is now served by this node; formerly by {result['former']}")
    answer.table(_TAKEOVER_COLUMNS, [[shard[name] for name in _TAKEOVER_COLUMNS] for shard in result["shards"]])


@app.command()
def describe(
    topic: TopicName,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a topic with shards, subscriptions, producers and policies; over an address only an outline.

    Example: icestream topic describe /default/orders --output json
    """

    async def read(broker: BrokerCalls) -> Document:
        if not broker.is_local:
            return await broker.call(DESCRIBE_TOPIC, topic=topic)
        state = await broker.call(INSPECT_TOPIC, topic=topic)
        state["shard_offsets"] = with_history(
            state["shard_offsets"], (await broker.call(TOPIC_HISTORY, topic=topic))["starts"]
        )
        state["connected"] = await broker.items(PAGE_PRODUCERS, topic=topic)
        return state | {"subscriptions": await broker.items(PAGE_SUBSCRIPTIONS, topic=topic)}

    _show(call_broker(Target(broker, config, sets), read), Output(output))


def with_history(shards: list[Document], starts: list[int | None]) -> list[Document]:
    """The shards with `earliest`, the oldest readable offset (None if unknown), and `log_start`, that of the log.

    `shards`: as the broker's log has them. `starts`: the oldest readable offset of each shard, in log or table.
    """
    return [
        {**shard, "earliest": start, "log_start": shard["earliest"]}
        for shard, start in zip(shards, starts, strict=True)
    ]


def _show(state: Document, answer: Output) -> None:
    if not answer.is_text:
        answer.record(state)
        return
    if "shard_offsets" not in state:
        answer.record(state | {"subscriptions": ", ".join(state["subscriptions"]) or "none"})
        return
    answer.record(
        {
            "topic": state["topic"],
            "created": time_text(state["created_ms"] * 1000),
            "shards": state["shards"],
            "dispatch": state["dispatch"],
            "connected": f"{counted(state['producers'], 'producer')}, {counted(state['consumers'], 'consumer')}",
            "published": f"{counted(state['published_messages'], 'message')}, {size_text(state['published_bytes'])}, "
            "since the broker started",
            "in the log": size_text(state["held_bytes"]),
            "policies": policies_cell(state["effective_policies"]),
        }
    )
    shards, subscriptions, producers = state["shard_offsets"], state["subscriptions"], state["connected"]
    answer.print_line("")
    answer.table(_SHARD_COLUMNS, [[shard[name] for name in _SHARD_COLUMNS] for shard in shards])
    if any(shard["earliest"] is None for shard in shards):
        print_note("The table cannot be read at the moment: the earliest offset is unknown.")
    if subscriptions:
        answer.print_line("")
        answer.table(
            _SUBSCRIPTION_COLUMNS, [[entry[name] for name in _SUBSCRIPTION_COLUMNS] for entry in subscriptions]
        )
    if producers:
        answer.print_line("")
        answer.table(_PRODUCER_COLUMNS, [[entry[name] for name in _PRODUCER_COLUMNS] for entry in producers])


@app.command()
def policy(
    topic: TopicName,
    changes: Changes = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show or change the policies of a topic; those of its namespace apply where it sets none.

    Example: icestream topic policy /default/orders max_publish_rate=1000 max_producers=none
    """
    new_values = parse_policies(changes or (), TOPIC_KEYS)

    async def read_or_change(broker: BrokerCalls) -> Document:
        current = await broker.call(INSPECT_TOPIC, topic=topic)
        if not new_values:
            return current
        return await broker.call(SET_TOPIC_POLICIES, topic=topic, policies={**current["policies"], **new_values})

    state = call_broker(Target(broker, config, sets), read_or_change)
    effective: Document = state["effective_policies"]
    rows = [(key, _policy_cell(value), _policy_cell(effective[key])) for key, value in state["policies"].items()]
    Output(output).table(("policy", "topic", "effective"), rows)


def _policy_cell(value: int | str | None) -> Cell:
    return Cell(value, "-" if value is None else "unlimited" if value == 0 else str(value))
