"""`icestream topic`: what topics there are, and what they are like."""

from __future__ import annotations

from typing import Annotated

import typer

from icestream.cli import completion
from icestream.cli.arguments import TopicName
from icestream.cli.command import Commands
from icestream.cli.confirm import Yes, confirm
from icestream.cli.connection import AddressOption, BrokerCalls, Document, SocketOption, Target, ask
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Cell, Output, OutputFormat, say_aside
from icestream.cli.places import time_text
from icestream.cli.policies import TOPIC_KEYS, Changes, PolicyOption, changes_of, policies_cell
from icestream.cli.table_name import shown
from icestream.model.topic_end import RestEnd, TableEnd
from icestream.observability.words import counted, size_text

app = Commands("List, make, change and delete topics.")

_LINE = ("topic", "shards", "dispatch", "producers", "consumers", "subscriptions", "lag", "node")
_SHARD = ("shard", "earliest", "next", "synced", "epoch", "gap_count")
_PRODUCER = ("producer", "peer", "epoch")
_SUBSCRIPTION = ("subscription", "type", "consumers", "lag")


@app.command("list")
def list_topics(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAME", help="Only of this one.", autocompletion=completion.namespaces),
    ] = None,
    address: AddressOption = None,
    socket: SocketOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the topics; over an --address, their names only.

    Example: icestream topic list --namespace default
    """

    async def listed(broker: BrokerCalls) -> list[Document]:
        if broker.is_local:
            return await broker.items("page_topics", namespace=namespace or "")
        names: list[str] = []
        page: Document = {"next": ""}
        while (after := page.get("next")) is not None:
            page = await broker.call("list_topics", after=after)
            names += page["topics"]
        return [{"topic": name} for name in names if not namespace or name.startswith(f"/{namespace}/")]

    found = ask(Target(address, socket, config, sets), listed)
    columns = [name for name in _LINE if not found or name in found[0]]
    answer = Output(output)
    unknown = "-" if answer.for_people else None  # what only the node of the topic knows
    answer.table(columns, [[unknown if line[name] is None else line[name] for name in columns] for line in found])
    if not found and answer.for_people:
        say_aside("there are no topics yet; `icestream topic create`, or the first message to one, makes it")


@app.command()
def create(
    topic: TopicName,
    shards: Annotated[
        int, typer.Option("--shards", metavar="NUMBER", min=1, help="How many; it cannot be changed.")
    ] = 1,
    non_reliable: Annotated[
        bool, typer.Option("--non-reliable", help="Deliver once, to whoever has room at that moment.")
    ] = False,
    policy: PolicyOption = None,
    address: AddressOption = None,
    socket: SocketOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a topic.

    Example: icestream topic create /default/orders --shards 4 --policy max_message_bytes=100000
    """
    policies = changes_of(policy or (), TOPIC_KEYS)
    dispatch = "non-reliable" if non_reliable else "reliable"

    async def created(broker: BrokerCalls) -> Document:
        return await broker.call("create_topic", topic=topic, shards=shards, dispatch=dispatch, policies=policies)

    found = ask(Target(address, socket, config, sets), created)
    Output(output).record({name: found[name] for name in ("topic", "id", "shards", "dispatch")})


_TableEnd = Annotated[
    TableEnd | None, typer.Option("--table", help="What becomes of its table; else as its policies say.")
]
_RestEnd = Annotated[
    RestEnd | None, typer.Option("--rest", help="And of its messages that are in no table; else the same.")
]


@app.command()
def delete(
    topic: TopicName,
    table: _TableEnd = None,
    rest: _RestEnd = None,
    yes: Yes = False,
    address: AddressOption = None,
    socket: SocketOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a topic with its subscriptions; messages that are in no table are committed first, and its table stays.

    Its policies and the settings may say otherwise, and so may the options.

    Example: icestream topic delete /default/orders --yes
    """
    confirm(f"delete {topic} with all its messages and subscriptions", is_sure=yes)

    async def deleted(broker: BrokerCalls) -> Document:
        return await broker.call("delete_topic", topic=topic, table=table, rest=rest)

    found, answer = ask(Target(address, socket, config, sets), deleted), Output(output)
    name = shown(found["table"]) if found["table"] else None
    more = {key: found[key] for key in ("table_end", "rest", "rest_messages")}
    answer.record({"deleted": topic} | ({} if answer.for_people else {"table": name, **more}))
    if answer.for_people:
        for line in _said_of_deletion(topic, name, found):
            say_aside(line)


def _said_of_deletion(topic: str, table: str | None, found: Document) -> list[str]:
    lines = []
    if (messages := found["rest_messages"]) and found["rest"] == RestEnd.COMMIT:
        way = f"{counted(messages, 'message')} on the way into the table"
        lines.append(f"{way}; `icestream topic delete {topic} --rest discard` gives up on that")
    elif messages:
        lines.append(f"{counted(messages, 'message')} in no table went with it")
    if table and found["table_end"] == TableEnd.KEEP:
        lines.append(f"its table stays: {table}. `icestream lake drop {table} --purge` drops it with its files")
    elif table:
        lines.append(f"its table goes: {table}" + (", and its files" if found["table_end"] == TableEnd.PURGE else ""))
    return lines


@app.command()
def describe(
    topic: TopicName,
    address: AddressOption = None,
    socket: SocketOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show everything about a topic; over an --address, the outline only.

    Example: icestream topic describe /default/orders --output json
    """

    async def described(broker: BrokerCalls) -> Document:
        if not broker.is_local:
            return await broker.call("describe_topic", topic=topic)
        found = await broker.call("inspect_topic", topic=topic)
        found["connected"] = await broker.items("page_producers", topic=topic)
        return found | {"subscriptions": await broker.items("page_subscriptions", topic=topic)}

    _show(ask(Target(address, socket, config, sets), described), Output(output))


def _show(found: Document, answer: Output) -> None:
    if not answer.for_people:
        answer.record(found)
        return
    if "shard_offsets" not in found:
        answer.record(found | {"subscriptions": ", ".join(found["subscriptions"]) or "none"})
        return
    answer.record(
        {
            "topic": found["topic"],
            "created": time_text(found["created_ms"] * 1000),
            "shards": found["shards"],
            "dispatch": found["dispatch"],
            "connected": f"{counted(found['producers'], 'producer')}, {counted(found['consumers'], 'consumer')}",
            "published": f"{counted(found['published_messages'], 'message')}, {size_text(found['published_bytes'])}, "
            "since the broker started",
            "in the log": size_text(found["held_bytes"]),
            "policies": policies_cell(found["effective_policies"]),
        }
    )
    answer.say("")
    answer.table(_SHARD, [[shard[name] for name in _SHARD] for shard in found["shard_offsets"]])
    if found["subscriptions"]:
        answer.say("")
        answer.table(_SUBSCRIPTION, [[one[name] for name in _SUBSCRIPTION] for one in found["subscriptions"]])
    if found["connected"]:
        answer.say("")
        answer.table(_PRODUCER, [[one[name] for name in _PRODUCER] for one in found["connected"]])


@app.command()
def policy(
    topic: TopicName,
    changes: Changes = None,
    socket: SocketOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show or change the policies of a topic; the namespace's count where it has none.

    Example: icestream topic policy /default/orders max_publish_rate=1000 max_producers=none
    """
    wanted = changes_of(changes or (), TOPIC_KEYS)

    async def changed(broker: BrokerCalls) -> Document:
        found = await broker.call("inspect_topic", topic=topic)
        if not wanted:
            return found
        return await broker.call("set_topic_policies", topic=topic, policies={**found["policies"], **wanted})

    found = ask(Target(None, socket, config, sets), changed)
    effective: Document = found["effective_policies"]
    rows = [(key, _policy_cell(value), _policy_cell(effective[key])) for key, value in found["policies"].items()]
    Output(output).table(("policy", "topic", "effective"), rows)


def _policy_cell(value: int | str | None) -> Cell:
    return Cell(value, "-" if value is None else "no bound" if value == 0 else str(value))
