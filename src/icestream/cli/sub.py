"""`icestream sub`: subscriptions of a topic, where they stand, and how they treat messages that fail."""

from __future__ import annotations

from typing import Annotated

import typer

from icestream import errors
from icestream.cli import completion
from icestream.cli.arguments import OptionalTopicName, SubscriptionName, TopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.command import Commands
from icestream.cli.confirm import Yes, confirm
from icestream.cli.connection import BrokerCalls, Document, ask
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Output, OutputFormat, say_aside
from icestream.cli.places import place_of, time_text
from icestream.cli.policies import DISPATCH_RATE, FAILURE_KEYS, Changes, PolicyOption, changed_failure, changes_of
from icestream.cli.topics import all_topics
from icestream.client.start_position import start_arguments
from icestream.observability.words import counted

app = Commands("List, make, move, change and delete subscriptions.")

_LINE = ("subscription", "type", "consumers", "state", "lag")
_POSITION = ("shard", "position", "next", "lag", "in_flight", "waiting_for_redelivery", "blocked", "pause")


@app.command("list")
def list_subscriptions(
    topic: OptionalTopicName = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the subscriptions of a topic, or of all, with their lag; over an address, their names only.

    Example: icestream sub list
    Example: icestream sub list /default/orders
    """
    found = ask(
        Target(broker, config, sets),
        lambda calls: subscriptions_of_all(calls) if topic is None else subscriptions_of(calls, topic),
    )
    line = _LINE if topic is not None else ("topic", *_LINE)
    columns = [name for name in line if not found or name in found[0]]
    answer = Output(output)
    answer.table(columns, [[line[name] for name in columns] for line in found], drop=("type", "consumers"))
    if not found and answer.for_people:
        where = f"{topic} has no subscriptions" if topic is not None else "there are no subscriptions yet"
        say_aside(f"{where}; `icestream sub create`, or the first consumer of one, makes it")


async def subscriptions_of(broker: BrokerCalls, topic: str) -> list[Document]:
    if broker.is_local:
        return await broker.items("page_subscriptions", topic=topic)
    names = (await broker.call("describe_topic", topic=topic))["subscriptions"]
    return [{"subscription": name} for name in names]


async def subscriptions_of_all(broker: BrokerCalls) -> list[Document]:
    """Topic by topic, those of this node. A topic that is deleted meanwhile has none; one elsewhere is named aside."""
    topics = await all_topics(broker)
    entries: list[Document] = []
    elsewhere = 0
    for topic in topics:
        if topic.get("subscriptions") == 0:
            continue
        try:
            found = await subscriptions_of(broker, topic["topic"])
        except errors.UnknownTopic:
            continue
        except errors.TopicElsewhere:
            elsewhere += 1
            continue
        entries += [{"topic": topic["topic"], **one} for one in found]
    if elsewhere:
        say_aside(f"{counted(elsewhere, 'topic')} of other nodes: ask those for their subscriptions, by --broker")
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
            metavar="PLACE",
            help="earliest, latest, an offset, a time, or -10m.",
            autocompletion=completion.places,
        ),
    ] = "latest",
    policy: PolicyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a subscription that nobody consumes yet: messages wait for it.

    Example: icestream sub create /default/orders billing --type shared --from earliest --policy poison=drop
    """
    failure = changes_of(policy or (), FAILURE_KEYS)
    arguments: Document = {
        "topic": topic,
        "subscription": subscription,
        "type": kind,
        **start_arguments(place_of(start)),
    }
    if failure:
        arguments["failure"] = {key: value for key, value in failure.items() if value is not None}

    async def created(broker: BrokerCalls) -> Document:
        return await broker.call("create_subscription", **arguments)

    _show(ask(Target(broker, config, sets), created), Output(output))


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
    """Show where a subscription stands in each shard, who consumes it, and its policy.

    Example: icestream sub describe /default/orders billing
    """

    async def described(broker: BrokerCalls) -> Document:
        found = await broker.call("inspect_subscription", topic=topic, subscription=subscription)
        consumers = await broker.items("page_consumers", topic=topic, subscription=subscription)
        return found | {"connected": consumers}

    _show(ask(Target(broker, config, sets), described), Output(output))


def _show(found: Document, answer: Output) -> None:
    if not answer.for_people:
        answer.record(found)
        return
    shards, connected = found.pop("shard_positions"), found.pop("connected", [])
    found["created"] = time_text(found.pop("created_ms") * 1000)
    found["failure"] = ", ".join(f"{key}={value}" for key, value in found["failure"].items() if value is not None)
    answer.record(found)
    answer.say("")
    rows = [[shard[name] for name in _POSITION] for shard in shards]
    answer.table(_POSITION, rows, drop=("next", "waiting_for_redelivery", "in_flight"))
    for shard in shards:
        for stall in shard["stalls"]:
            answer.say("")
            since = time_text(stall["since_ms"] * 1000)
            answer.say(f"{stall['kind']} at offset {stall['offset']} since {since}: {stall['reason']}")
            answer.say(f"  hint: {stall['hint']}")
    if connected:
        answer.say("")
        columns = ("consumer", "peer", "is_active", "credit", "delivered_messages")
        answer.table(columns, [[one[name] for name in columns] for one in connected])


@app.command()
def seek(
    topic: TopicName,
    subscription: SubscriptionName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, an offset, a time, or -10m.",
            autocompletion=completion.places,
        ),
    ],
    shard: Annotated[int | None, typer.Option("--shard", metavar="NUMBER", min=0, help="Only in this shard.")] = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Move a subscription, whether it is consumed or not: everything from there on is delivered.

    Example: icestream sub seek /default/orders billing --to 2026-07-01T12:00
    """
    arguments: Document = {"topic": topic, "subscription": subscription, **start_arguments(place_of(to))}
    if shard is not None:
        arguments["shard"] = shard

    async def sought(broker: BrokerCalls) -> list[int]:
        positions: list[int] = (await broker.call("seek", **arguments))["positions"]
        return positions

    Output(output).table(("shard", "position"), list(enumerate(ask(Target(broker, config, sets), sought))))


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
    """Show or change what happens to messages that fail, and how fast messages are sent.

    Example: icestream sub policy /default/orders billing max_redelivery_count=3 max_dispatch_rate=500
    Example: icestream sub policy /default/orders billing poison=dead-letter dead_letter_topic=/default/failed
    """
    wanted = changes_of(changes or (), (*FAILURE_KEYS, DISPATCH_RATE))
    place = {"topic": topic, "subscription": subscription}

    async def changed(broker: BrokerCalls) -> Document:
        found = await broker.call("inspect_subscription", **place)
        if not wanted:
            return found
        arguments: Document = {DISPATCH_RATE: wanted.pop(DISPATCH_RATE)} if DISPATCH_RATE in wanted else {}
        if wanted:
            arguments["failure"] = changed_failure(found["failure"], wanted)
        return await broker.call("change_subscription", **place, **arguments)

    found = ask(Target(broker, config, sets), changed)
    values = {**found["failure"], DISPATCH_RATE: found[DISPATCH_RATE]}
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
    """Delete a subscription: its consumers are closed, its position is forgotten, messages stay.

    Example: icestream sub delete /default/orders billing --yes
    """
    confirm(f"delete subscription {subscription} of {topic}", is_sure=yes)

    async def deleted(broker: BrokerCalls) -> None:
        await broker.call("delete_subscription", topic=topic, subscription=subscription)

    ask(Target(broker, config, sets), deleted)
    Output(output).record({"deleted": subscription, "topic": topic})
