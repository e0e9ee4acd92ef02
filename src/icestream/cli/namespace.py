"""`icestream namespace`: groups of topics, with policies for all topics of a group. Over the local socket only."""

from __future__ import annotations

from icestream.admin_api.namespace_api import (
    CREATE_NAMESPACE,
    DELETE_NAMESPACE,
    DESCRIBE_NAMESPACE,
    LIST_NAMESPACES,
    SET_NAMESPACE_POLICIES,
    NamespaceDetails,
)
from icestream.cli.arguments import NamespaceName
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Output, OutputFormat, columns_of
from icestream.cli.policies import TOPIC_KEYS, Changes, PolicyOption, parse_policies, policies_cell

app = Commands("List, create, change and delete namespaces.")

_COLUMNS = columns_of(NamespaceDetails, "namespace", "policies")


@app.command("list")
def list_namespaces(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the namespaces with their policies.

    Example: icestream namespace list
    """

    async def list_all(broker: BrokerCalls) -> list[Document]:
        return await broker.items(LIST_NAMESPACES)

    entries = call_broker(Target(broker, config, sets), list_all)
    rows = [(entry["namespace"], policies_cell(entry["policies"])) for entry in entries]
    Output(output).table(_COLUMNS, rows, keep=("policies",))


@app.command()
def create(
    namespace: NamespaceName,
    policy: PolicyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a namespace.

    Example: icestream namespace create shop --policy max_producers=100
    """
    policies = parse_policies(policy or (), TOPIC_KEYS)

    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(CREATE_NAMESPACE, namespace=namespace, policies=policies)

    _show(call_broker(Target(broker, config, sets), send), Output(output))


@app.command()
def delete(
    namespace: NamespaceName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a namespace that has no topics.

    Example: icestream namespace delete shop --yes
    """
    confirm(f"Delete namespace {namespace}?", is_confirmed=yes)

    async def send(broker: BrokerCalls) -> None:
        await broker.call(DELETE_NAMESPACE, namespace=namespace)

    call_broker(Target(broker, config, sets), send)
    Output(output).record({"deleted": namespace})


@app.command()
def policy(
    namespace: NamespaceName,
    changes: Changes = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show or change the policies of a namespace; they apply to its topics that do not set their own.

    Example: icestream namespace policy shop max_publish_rate=1000
    """
    new_values = parse_policies(changes or (), TOPIC_KEYS)

    async def read_or_change(broker: BrokerCalls) -> Document:
        current = await broker.call(DESCRIBE_NAMESPACE, namespace=namespace)
        if not new_values:
            return current
        policies = {**current["policies"], **new_values}
        return await broker.call(SET_NAMESPACE_POLICIES, namespace=namespace, policies=policies)

    _show(call_broker(Target(broker, config, sets), read_or_change), Output(output))


def _show(entry: Document, answer: Output) -> None:
    answer.record({"namespace": entry["namespace"], "policies": policies_cell(entry["policies"])})
