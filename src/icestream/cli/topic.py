"""`icestream topic`: what topics there are, and what they are like."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from icestream import errors
from icestream.cli import completion
from icestream.cli.arguments import TopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.command import Commands
from icestream.cli.confirm import Yes, confirm
from icestream.cli.connection import BrokerCalls, Document, ask
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, say_aside
from icestream.cli.places import time_text
from icestream.cli.policies import TOPIC_KEYS, Changes, PolicyOption, changes_of, policies_cell
from icestream.cli.table_name import shown
from icestream.cli.topics import all_topics
from icestream.model.topic_end import RestEnd, TableEnd
from icestream.observability.words import counted, size_text

app = Commands("List, make, change and delete topics.")

_LINE = ("topic", "shards", "dispatch", "producers", "consumers", "subscriptions", "lag", "node")
_SHARD = ("shard", "earliest", "log_start", "next", "synced", "epoch", "gap_count")
_PRODUCER = ("producer", "peer", "epoch")
_SUBSCRIPTION = ("subscription", "type", "consumers", "lag")


@app.command("list")
def list_topics(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAME", help="Only of this one.", autocompletion=completion.namespaces),
    ] = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the topics; over an address, their names only.

    Example: icestream topic list --namespace default
    """

    found = ask(Target(broker, config, sets), lambda calls: all_topics(calls, namespace))
    columns = [name for name in _LINE if not found or name in found[0]]
    answer = Output(output)
    rows = [[line[name] for name in columns] for line in found]  # None: what only the node of the topic knows
    answer.table(columns, rows, drop=("dispatch", "node", "shards", "producers"))
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
    broker: BrokerOption = None,
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

    found = ask(Target(broker, config, sets), created)
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
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a topic with its subscriptions; messages that are in no table are committed first, and its table stays.

    Its policies and the settings may say otherwise, and so may the options.

    Example: icestream topic delete /default/orders --yes
    """
    target = Target(broker, config, sets)
    if not yes:
        ends = ask(target, lambda calls: _ends_by_policy(calls, topic))
        confirm(
            deletion_text(topic, table or ends.get("deleted_table"), rest or ends.get("deleted_rest")), is_sure=False
        )

    async def deleted(broker: BrokerCalls) -> Document:
        return await broker.call("delete_topic", topic=topic, table=table, rest=rest)

    found, answer = ask(target, deleted), Output(output)
    name = shown(found["table"]) if found["table"] else None
    more = {key: found[key] for key in ("table_end", "rest", "rest_messages")}
    answer.record({"deleted": topic} | ({} if answer.for_people else {"table": name, **more}))
    if answer.for_people:
        for line in _said_of_deletion(topic, name, found):
            say_aside(line)


async def _ends_by_policy(broker: BrokerCalls, topic: str) -> Document:
    """The policies that count for a topic. Empty where there is none: one that was deleted may still have a rest."""
    with contextlib.suppress(errors.UnknownTopic):
        return dict((await broker.call("topic_policies", topic=topic))["effective_policies"])
    return {}


def deletion_text(topic: str, table: str | None, rest: str | None) -> str:
    """What is asked before: what goes, and what stays. None: as the settings of the broker say."""
    ends = {
        TableEnd.KEEP: "its table stays with its rows, until it is dropped",
        TableEnd.DROP: "its table is dropped, its files stay",
        TableEnd.PURGE: "its table goes with its files",
    }
    rests = {
        RestEnd.COMMIT: "messages that are in no table are committed first",
        RestEnd.DISCARD: "messages that are in no table are lost",
    }
    words = [
        ends[TableEnd(table)] if table else "its table goes or stays as broker.deleted_table says (keep by default)",
        rests[RestEnd(rest)] if rest else "messages in no table are treated as broker.deleted_rest says",
    ]
    return f"delete {topic} and its subscriptions ({'; '.join(words)})"


def _said_of_deletion(topic: str, table: str | None, found: Document) -> list[str]:
    lines = []
    if lost_with := found.get("lost_with"):
        lines.append(f"what only the log of {lost_with} had, which was removed from the cluster, is lost")
    if (messages := found["rest_messages"]) and found["rest"] == RestEnd.COMMIT:
        way = f"{counted(messages, 'message')} on the way into the table"
        lines.append(f"{way}; `icestream topic delete {topic} --rest discard` gives up on that")
    elif messages:
        lines.append(f"{counted(messages, 'message')} in no table went with it")
    if table and found["table_end"] == TableEnd.KEEP:
        drop = f"`icestream lake drop {table} --purge` drops it with its files"
        lines.append(f"its table stays with its rows, for good: {table}. {drop}")
    elif table:
        lines.append(f"its table goes: {table}" + (", and its files" if found["table_end"] == TableEnd.PURGE else ""))
    return lines


@app.command()
def takeover(
    topic: TopicName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Serve a topic, whose node was removed from the cluster, by the node that is asked, with what its table holds.

    What was in the log of the removed node alone is lost: a declared gap, behind which offsets go on.

    Example: icestream topic takeover /default/orders --yes
    """
    confirm(f"serve {topic} here, without what only the log of its removed node had", is_sure=yes)

    async def taken(broker: BrokerCalls) -> Document:
        return await broker.call("takeover_topic", topic=topic)

    found, answer = ask(Target(broker, config, sets), taken), Output(output)
    if not answer.for_people:
        answer.record({"topic": topic, **found})
        return
    answer.say(f"{topic} is served by this node now; {found['former']} served it before")
    answer.table(("shard", "gap_start", "gap_end"), [tuple(one.values()) for one in found["shards"]])


@app.command()
def describe(
    topic: TopicName,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show everything about a topic; over an address, the outline only.

    Example: icestream topic describe /default/orders --output json
    """

    async def described(broker: BrokerCalls) -> Document:
        if not broker.is_local:
            return await broker.call("describe_topic", topic=topic)
        found = await broker.call("inspect_topic", topic=topic)
        found["shard_offsets"] = with_history(
            found["shard_offsets"], (await broker.call("topic_history", topic=topic))["starts"]
        )
        found["connected"] = await broker.items("page_producers", topic=topic)
        return found | {"subscriptions": await broker.items("page_subscriptions", topic=topic)}

    _show(ask(Target(broker, config, sets), described), Output(output))


def with_history(shards: list[Document], starts: list[int | None]) -> list[Document]:
    """The shards with `earliest` where history begins, None if that is not known, and `log_start` where the log does.

    `shards`: as the broker's log knows them. `starts`: the oldest offset of each that can be read, in whatever tier.
    """
    return [
        {**shard, "earliest": start, "log_start": shard["earliest"]}
        for shard, start in zip(shards, starts, strict=True)
    ]


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
    if any(shard["earliest"] is None for shard in found["shard_offsets"]):
        say_aside("the table does not answer: where history begins is not known now")
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
    broker: BrokerOption = None,
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

    found = ask(Target(broker, config, sets), changed)
    effective: Document = found["effective_policies"]
    rows = [(key, _policy_cell(value), _policy_cell(effective[key])) for key, value in found["policies"].items()]
    Output(output).table(("policy", "topic", "effective"), rows)


def _policy_cell(value: int | str | None) -> Cell:
    return Cell(value, "-" if value is None else "no bound" if value == 0 else str(value))
