"""`icestream cluster`: the nodes of a cluster, asked and changed through one of them, over its local socket."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from icestream import errors
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.command import Commands
from icestream.cli.confirm import Yes, confirm
from icestream.cli.connection import BrokerCalls, Document, ask
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, writing
from icestream.wal.log_file import LOCK_NAME

app = Commands("Look at the nodes of a cluster, change and verify them.")
_LINE = ("node", "name", "role", "address", "native", "is_up", "applied", "commit", "revision", "snapshot_index")
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The name of a node, or its id as `status` shows it.")]
Folder = Annotated[
    Path | None, typer.Option("--dir", metavar="DIRECTORY", help="The metadata store; else that of the settings.")
]


def _asked(target: Target, method: str, **arguments: object) -> Document:
    async def question(broker: BrokerCalls) -> Document:
        return await broker.call(method, **arguments)

    return ask(target, question)


@app.command()
def status(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the nodes: who leads, who votes, who answers, and how far each is.

    Example: icestream cluster status
    """
    found = _asked(Target(broker, config, sets), "cluster_status")
    answer = Output(output)
    if not answer.for_people:
        answer.record(found)
        return
    answer.say(f"cluster {found['cluster']}, term {found['term']}")
    rows = [[one[name] for name in _LINE] for one in found["nodes"]]
    answer.table(_LINE, rows, drop=("snapshot_index", "revision", "commit", "native"))


@app.command()
def add(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The Raft port of a node that waits.")],
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Let a node that waits for others join this cluster: a learner, then a voter where one is missing.

    A node that is started with `icestream serve --join HOST:PORT` needs no such word.

    Example: icestream cluster add 10.0.0.4:7650
    """
    found = _asked(Target(broker, config, sets), "cluster_add", address=address)
    _said(output, found, f"node {found.get('node')} joins")


@app.command()
def promote(
    node: NodeName,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a learner a voter, now.

    Example: icestream cluster promote node-4
    """
    _asked(Target(broker, config, sets), "cluster_promote", node=node)
    _said(output, {"promoted": node}, f"{node} is a voter")


@app.command()
def remove(
    node: NodeName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Remove a node for good: its id never comes back, and nobody serves its topics.

    Example: icestream cluster remove node-2 --yes
    """
    confirm(f"remove {node} from the cluster for good; nobody serves its topics then", is_sure=yes)
    _asked(Target(broker, config, sets), "cluster_remove", node=node)
    _said(output, {"removed": node}, f"{node} is removed")


@app.command()
def transfer(
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="A voter; else the one that is furthest.")] = "",
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Hand the lead over.

    Example: icestream cluster transfer node-3
    """
    found = _asked(Target(broker, config, sets), "cluster_transfer", node=node)
    _said(output, found, f"node {found['leader']} leads")


@app.command()
def snapshot(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Take a snapshot of this node's metadata store, so that its log can be cut.

    Example: icestream cluster snapshot
    """
    Output(output).record(_asked(Target(broker, config, sets), "cluster_snapshot"))


@app.command()
def verify(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Compare the SHA-256 of all nodes' states at one place of the log.

    Example: icestream cluster verify
    """
    found = _asked(Target(broker, config, sets), "cluster_verify")
    answer = Output(output)
    if answer.for_people:
        rows = [(one["name"], one["node"], one["sha256"] or "away") for one in found["nodes"]]
        answer.table(("name", "node", "sha256"), rows, drop=("node",), keep=("sha256",))
    else:
        answer.record(found)
    if not found["is_equal"]:
        raise errors.MetadataDamaged(
            f"the states of the nodes differ at entry {found['index']}", hint="keep the data_dir of each for a report"
        )
    answer.say(f"equal at entry {found['index']}" + (f"; {found['away']} away" if found["away"] else ""))


# --- on a node that does not run --------------------------------------------------------------------------------------


@app.command("force-new-cluster")
def force_new_cluster(
    directory: Folder = None,
    yes: Yes = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a cluster of one node out of what a stopped node has, when most voters are lost for good.

    What only the others had is lost. They never come back: start them with empty directories, they join as new nodes. A
    directory from a backup is taken, too, when nothing else is left.

    Example: icestream cluster force-new-cluster --dir icestream-cluster/7650/raft --yes
    """
    from icestream.cluster.force_new_cluster import force_new_cluster as force
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.randomness import SystemRandomness

    path = _store_of(directory, config, sets)
    confirm(f"make a new cluster of the one node in {path}; what only other nodes have is lost", is_sure=yes)
    found = asyncio.run(force(path, SystemClock(), SystemRandomness()))
    Output(output).record(
        {
            "node": f"{found.node_id:016x}",
            "cluster": found.cluster_id.hex(),
            "keys": found.keys,
            "removed": ", ".join(found.removed) or "nobody",
            "forgotten": found.forgotten or "nothing",
        }
    )


@app.command()
def rejoin(
    directory: Folder = None,
    yes: Yes = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Let a stopped node join its cluster anew, with its topics: its metadata log is damaged, or it was removed.

    The metadata log is moved away, not deleted. The other nodes must be a majority without this one. At its next start
    they give it everything, under a new id. Its message log stays as it is.

    Example: icestream cluster rejoin --dir icestream-cluster/7650/raft --yes
    """
    from icestream.cluster.rejoin import leave

    path = _store_of(directory, config, sets)
    confirm(f"give up the metadata log in {path}, and join the cluster anew at the next start", is_sure=yes)
    left = leave(path)
    answer = Output(output)
    answer.record({"node": left.node or "unknown", "cluster": left.cluster, "moved_to": left.left})
    answer.say("start the node as before (with its seed nodes, or with --join HOST:PORT)")


@app.command()
def export(
    directory: Folder = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Write the metadata store of a stopped node, snapshot and log, as lines of JSON, whoever reads them.

    Example: icestream cluster export --dir icestream-cluster/7650/raft
    """
    from icestream.cluster.export import export as exported
    from icestream.runtime.clock import SystemClock

    async def write(path: Path) -> None:
        async for line in exported(path, SystemClock()):
            with writing():
                typer.echo(json.dumps(line, ensure_ascii=False))

    asyncio.run(write(_store_of(directory, config, sets)))


@app.command()
def certificates(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where they are, or will be.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the certificate and its key.")] = "node",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A name or address that others dial; loopback else."),
    ] = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a certificate for nodes, for development, signed by an authority that is made once in the directory.

    Example: icestream cluster certificates certificates --name node
    """
    try:
        from icestream.cluster.development_authority import LOOPBACK, make_certificate
    except ImportError:
        raise errors.ConfigurationError(
            "making certificates needs cryptography, which is not installed", hint="pip install 'icestream[tls]'"
        ) from None
    made = make_certificate(directory, name, tuple(host or LOOPBACK), datetime.now(UTC))
    Output(output).record(
        {
            "meta_store.tls_certificate": str(made.certificate),
            "meta_store.tls_key": str(made.key),
            "meta_store.tls_authority": str(made.authority),
        }
    )


def _store_of(directory: Path | None, config: Path | None, sets: list[str] | None) -> Path:
    path = directory or load_settings(config, sets).settings.meta_store.data_dir
    if not (path / LOCK_NAME).exists():
        raise errors.InvalidInput(
            f"there is no metadata store in {path}", hint="name it: --dir DATA_DIR/raft, as the node has it"
        )
    return path


def _said(output: OutputFormat, document: Document, sentence: str) -> None:
    answer = Output(output)
    if answer.for_people:
        answer.say(sentence)
    else:
        answer.record(document)
