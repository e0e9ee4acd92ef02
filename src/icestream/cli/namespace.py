"""`icestream namespace`: what topics are grouped by, with policies for all of a group. Over the local socket only."""

from __future__ import annotations

from icestream.cli.arguments import NamespaceName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.command import Commands
from icestream.cli.confirm import Yes, confirm
from icestream.cli.connection import BrokerCalls, Document, ask
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Output, OutputFormat
from icestream.cli.policies import TOPIC_KEYS, Changes, PolicyOption, changes_of, policies_cell

app = Commands("List, make, change and delete namespaces.")


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

    async def listed(broker: BrokerCalls) -> list[Document]:
        return await broker.items("list_namespaces")

    found = ask(Target(broker, config, sets), listed)
    rows = [(one["namespace"], policies_cell(one["policies"])) for one in found]
    Output(output).table(("namespace", "policies"), rows, keep=("policies",))


@app.command()
def create(
    namespace: NamespaceName,
    policy: PolicyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a namespace.

    Example: icestream namespace create shop --policy max_producers=100
    """
    policies = changes_of(policy or (), TOPIC_KEYS)

    async def created(broker: BrokerCalls) -> Document:
        return await broker.call("create_namespace", namespace=namespace, policies=policies)

    _show(ask(Target(broker, config, sets), created), Output(output))


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
    confirm(f"delete namespace {namespace}", is_sure=yes)

    async def deleted(broker: BrokerCalls) -> None:
        await broker.call("delete_namespace", namespace=namespace)

    ask(Target(broker, config, sets), deleted)
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
    """Show or change the policies of a namespace; they count for its topics that have none of their own.

    Example: icestream namespace policy shop max_publish_rate=1000
    """
    wanted = changes_of(changes or (), TOPIC_KEYS)

    async def changed(broker: BrokerCalls) -> Document:
        found = await broker.call("describe_namespace", namespace=namespace)
        if not wanted:
            return found
        policies = {**found["policies"], **wanted}
        return await broker.call("set_namespace_policies", namespace=namespace, policies=policies)

    _show(ask(Target(broker, config, sets), changed), Output(output))


def _show(found: Document, answer: Output) -> None:
    answer.record({"namespace": found["namespace"], "policies": policies_cell(found["policies"])})
