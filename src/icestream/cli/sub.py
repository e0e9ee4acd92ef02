"""`icestream sub`: subscriptions of a topic, their positions, and how they treat messages that fail."""

from __future__ import annotations

from typing import Annotated

import typer

from icestream import errors
from icestream.admin_api.subscription_api import (
    CHANGE_SUBSCRIPTION,
    CREATE_SUBSCRIPTION,
    DELETE_SUBSCRIPTION,
    INSPECT_SUBSCRIPTION,
    PAGE_CONSUMERS,
    PAGE_SUBSCRIPTIONS,
    SEEK,
    ConnectedConsumer,
    SubscriptionShard,
    SubscriptionSummary,
)
from icestream.admin_api.topic_api import DESCRIBE_TOPIC
from icestream.cli import completion
from icestream.cli.arguments import OptionalTopicName, SubscriptionName, TopicName
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Output, OutputFormat, columns_of, print_note
from icestream.cli.policies import (
    DISPATCH_RATE,
    FAILURE_KEYS,
    Changes,
    PolicyOption,
    merge_failure_policy,
    parse_policies,
)
from icestream.cli.positions import parse_position, time_text
from icestream.client.start_position import start_arguments
from icestream.observability.words import counted

app = Commands("List, create, move, change and delete subscriptions.")

_COLUMNS = columns_of(SubscriptionSummary, "subscription", "type", "consumers", "state", "lag")
_SHARD_COLUMNS = columns_of(
    SubscriptionShard, "shard", "position", "next", "lag", "in_flight", "waiting_for_redelivery", "blocked", "pause"
)
_CONSUMER_COLUMNS = columns_of(ConnectedConsumer, "consumer", "peer", "is_active", "credit", "delivered_messages")
POSITION_HELP = "earliest, latest, an offset, a time, an age such as -10m, or snapshot:ID."


@app.command("list")
def list_subscriptions(
    topic: OptionalTopicName = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the subscriptions of a topic, or of all topics, with their lag; over an address only their names.

    Example: icestream sub list
    Example: icestream sub list /default/orders
    """
    entries = call_broker(
        Target(broker, config, sets),
        lambda calls: list_all_subscriptions(calls) if topic is None else list_topic_subscriptions(calls, topic),
    )
    all_columns = _COLUMNS if topic is not None else ("topic", *_COLUMNS)
    columns = [name for name in all_columns if not entries or name in entries[0]]
    answer = Output(output)
    answer.table(columns, [[entry[name] for name in columns] for entry in entries], drop=("type", "consumers"))
    if not entries and answer.is_text:
        summary = f"{topic} has no subscriptions." if topic is not None else "No subscriptions."
        print_note(f"{summary} `icestream sub create`, or the first consumer, creates one.")


async def list_topic_subscriptions(broker: BrokerCalls, topic: str) -> list[Document]:
    """The subscriptions of a topic; over an address only their names are known."""
    if broker.is_local:
        return await broker.items(PAGE_SUBSCRIPTIONS, topic=topic)
    names = (await broker.call(DESCRIBE_TOPIC, topic=topic))["subscriptions"]
    return [{"subscription": name} for name in names]


async def list_all_subscriptions(broker: BrokerCalls) -> list[Document]:
    """The subscriptions of all topics of this node; a note gives the number of topics on other nodes."""
    entries: list[Document] = []
    remote_topics = 0
    for topic in await broker.topics():
        if topic.get("subscriptions") == 0:
            continue
        try:
            subscriptions = await list_topic_subscriptions(broker, topic["topic"])
        except errors.UnknownTopic:  # deleted in the meantime
            continue
        except errors.TopicElsewhere:
            remote_topics += 1
            continue
        entries += [{"topic": topic["topic"], **subscription} for subscription in subscriptions]
    if remote_topics:
        print_note(f"{counted(remote_topics, 'topic')} on other nodes not listed; name those nodes with --broker")
    return entries


@app.command()
def create(
    topic: TopicName,
    subscription: SubscriptionName,
    kind: Annotated[
        str,
        typer.Option(
            "--type", metavar="TYPE", help="exclusive, shared, failover or key-shared.", autocompletion=completion.types
        ),
    ] = "exclusive",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help=POSITION_HELP,
            autocompletion=completion.positions,
        ),
    ] = "latest",
    policy: PolicyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a subscription without a consumer; its messages wait for one.

    Example: icestream sub create /default/orders billing --type shared --from earliest --policy poison=drop
    """
    failure = parse_policies(policy or (), FAILURE_KEYS)
    arguments: Document = {
        "topic": topic,
        "subscription": subscription,
        "type": kind,
        **start_arguments(parse_position(start)),
    }
    if failure:
        arguments["failure"] = {key: value for key, value in failure.items() if value is not None}

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(CREATE_SUBSCRIPTION, **arguments)

    _show(call_broker(Target(broker, config, sets), send), Output(output))


@app.command()
def describe(
    topic: TopicName,
    subscription: SubscriptionName,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the position of a subscription in each shard, its consumers, and its policy.

    Example: icestream sub describe /default/orders billing
    """

    async def read(broker: BrokerCalls) -> Document:
        state = await broker.call(INSPECT_SUBSCRIPTION, topic=topic, subscription=subscription)
        consumers = await broker.items(PAGE_CONSUMERS, topic=topic, subscription=subscription)
        return state | {"connected": consumers}

    _show(call_broker(Target(broker, config, sets), read), Output(output))


def _show(state: Document, answer: Output) -> None:
    if not answer.is_text:
        answer.record(state)
        return
    shards, connected = state.pop("shard_positions"), state.pop("connected", [])
    state["created"] = time_text(state.pop("created_ms") * 1000)
    state["failure"] = ", ".join(f"{key}={value}" for key, value in state["failure"].items() if value is not None)
    answer.record(state)
    answer.print_line("")
    rows = [[shard[name] for name in _SHARD_COLUMNS] for shard in shards]
    answer.table(_SHARD_COLUMNS, rows, drop=("next", "waiting_for_redelivery", "in_flight"))
    for shard in shards:
        for stall in shard["stalls"]:
            answer.print_line("")
            since = time_text(stall["since_ms"] * 1000)
            answer.print_line(f"{stall['kind']} at offset {stall['offset']} since {since}: {stall['reason']}")
            answer.print_line(f"  hint: {stall['hint']}")
    if connected:
        answer.print_line("")
        answer.table(_CONSUMER_COLUMNS, [[consumer[name] for name in _CONSUMER_COLUMNS] for consumer in connected])


@app.command()
def seek(
    topic: TopicName,
    subscription: SubscriptionName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help=POSITION_HELP,
            autocompletion=completion.positions,
        ),
    ],
    shard: Annotated[int | None, typer.Option("--shard", metavar="NUMBER", min=0, help="Only in this shard.")] = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Move a subscription, with or without consumers: everything from this position on is delivered.

    Example: icestream sub seek /default/orders billing --to 2026-07-01T12:00
    """
    arguments: Document = {"topic": topic, "subscription": subscription, **start_arguments(parse_position(to))}
    if shard is not None:
        arguments["shard"] = shard

    async def send(broker: BrokerCalls) -> list[int]:
        positions: list[int] = (await broker.call(SEEK, **arguments))["positions"]
        return positions

    positions = call_broker(Target(broker, config, sets), send)
    Output(output).table(("shard", "position"), list(enumerate(positions)))


@app.command()
def policy(
    topic: TopicName,
    subscription: SubscriptionName,
    changes: Changes = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show or change how failed messages are treated, and the maximum dispatch rate.

    Example: icestream sub policy /default/orders billing max_redelivery_count=3 max_dispatch_rate=500
    Example: icestream sub policy /default/orders billing poison=dead-letter dead_letter_topic=/default/failed
    """
    new_values = parse_policies(changes or (), (*FAILURE_KEYS, DISPATCH_RATE))
    names = {"topic": topic, "subscription": subscription}

    async def read_or_change(broker: BrokerCalls) -> Document:
        current = await broker.call(INSPECT_SUBSCRIPTION, **names)
        if not new_values:
            return current
        arguments: Document = {DISPATCH_RATE: new_values.pop(DISPATCH_RATE)} if DISPATCH_RATE in new_values else {}
        if new_values:
            arguments["failure"] = merge_failure_policy(current["failure"], new_values)
        return await broker.call(CHANGE_SUBSCRIPTION, **names, **arguments)

    state = call_broker(Target(broker, config, sets), read_or_change)
    values = {**state["failure"], DISPATCH_RATE: state[DISPATCH_RATE]}
    Output(output).record(values)


@app.command()
def delete(
    topic: TopicName,
    subscription: SubscriptionName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a subscription: its consumers are disconnected, its position is deleted, messages are kept.

    Example: icestream sub delete /default/orders billing --yes
    """
    confirm(f"Delete subscription {subscription} of {topic}? The topic's messages are kept.", is_confirmed=yes)

    async def send(broker: BrokerCalls) -> None:
        await broker.call(DELETE_SUBSCRIPTION, topic=topic, subscription=subscription)

    call_broker(Target(broker, config, sets), send)
    Output(output).record({"deleted": subscription, "topic": topic})
