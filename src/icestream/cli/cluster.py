"""`icestream cluster`: shows and changes the nodes of a cluster through one of them, over its local socket."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from icestream import errors, limits
from icestream.admin_api.admin_call import AdminCall
from icestream.admin_api.cluster_api import (
    CLUSTER_ADD,
    CLUSTER_JOIN_TOKEN,
    CLUSTER_PROMOTE,
    CLUSTER_REMOVE,
    CLUSTER_SNAPSHOT,
    CLUSTER_STATUS,
    CLUSTER_TRANSFER,
    CLUSTER_VERIFY,
    MemberDigest,
    MemberState,
)
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, columns_of, output_errors
from icestream.observability.words import counted
from icestream.wal.log_file import LOCK_NAME

_JOIN_MINUTES: Final = limits.JOIN_TOKEN_SECONDS_DEFAULT // 60
app = Commands("Show, change and verify the nodes of a cluster.")
_COLUMNS = columns_of(
    MemberState,
    "node", "name", "role", "address", "native", "is_up", "applied", "commit", "revision", "snapshot_index",
)  # fmt: skip
_DIGEST_COLUMNS = columns_of(MemberDigest, "name", "node", "sha256")
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, or its id as `status` shows it.")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIRECTORY", help="The metadata store; default: that of the settings."),
]


def _call(target: Target, call: AdminCall[Any, Any], **arguments: object) -> Document:
    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(call, **arguments)

    return call_broker(target, send)


@app.command()
def status(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the nodes: roles, which are up, and how far each has applied the log.

    Example: icestream cluster status
    """
    state = _call(Target(broker, config, sets), CLUSTER_STATUS)
    answer = Output(output)
    if not answer.is_text:
        answer.record(state)
        return
    answer.print_line(f"cluster {state['cluster']}, term {state['term']}")
    rows = [[node[name] for name in _COLUMNS] for node in state["nodes"]]
    answer.table(_COLUMNS, rows, drop=("snapshot_index", "revision", "commit", "native"))


@app.command()
def add(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Raft address of the waiting node.")],
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Add a waiting node to this cluster: as a learner, which becomes a voter if one is missing.

    A node that is started with `icestream serve --join HOST:PORT` joins by itself.

    Example: icestream cluster add 10.0.0.4:7650
    """
    result = _call(Target(broker, config, sets), CLUSTER_ADD, address=address)
    _print_result(output, result, f"node {result.get('node')} joins the cluster")


@app.command("join-token")
def join_token(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node.name of the node that will join.")],
    minutes: Annotated[int, typer.Option(min=1, help="How long the token is valid.")] = _JOIN_MINUTES,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="Write the token there, for its owner only, instead of printing it."
        ),
    ] = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a token with which one node joins a cluster that has accounts, once. It is not stored anywhere.

    Start the node with --join HOST:PORT and --set meta_store.join_token=file:FILE.

    Example: icestream cluster join-token node-4 --file node-4.token
    """
    from icestream.runtime.secret_file import create_secret_file

    if file is not None and file.exists():
        raise errors.AlreadyExists(f"{file} exists", hint="remove it, or name another file")
    issued = _call(Target(broker, config, sets), CLUSTER_JOIN_TOKEN, node=node, ttl_seconds=minutes * 60)
    expires = datetime.fromtimestamp(issued["expires_ms"] / 1_000, UTC).isoformat(timespec="seconds")
    if file is None:
        Output(output).record({**issued, "expires_ms": expires})
        return
    create_secret_file(file, f"{issued['token']}\n".encode())
    _print_result(
        output,
        {"file": str(file), "node": node, "expires_ms": expires},
        f"the token for {node} is in {file}, until {expires}",
    )


@app.command()
def promote(
    node: NodeName,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Promote a learner to a voter now.

    Example: icestream cluster promote node-4
    """
    _call(Target(broker, config, sets), CLUSTER_PROMOTE, node=node)
    _print_result(output, {"promoted": node}, f"{node} is a voter")


@app.command()
def remove(
    node: NodeName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Remove a node permanently: its id is never reused, and its topics are no longer served.

    Example: icestream cluster remove node-2 --yes
    """
    confirm(
        f"Remove {node} from the cluster permanently? Its topics will not be served by any node.",
        is_confirmed=yes,
        unchanged="nothing was changed",
    )
    _call(Target(broker, config, sets), CLUSTER_REMOVE, node=node)
    _print_result(output, {"removed": node}, f"{node} is removed")


@app.command()
def transfer(
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="A voter; default: the most up-to-date one.")] = "",
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Transfer leadership to another node.

    Example: icestream cluster transfer node-3
    """
    result = _call(Target(broker, config, sets), CLUSTER_TRANSFER, node=node)
    _print_result(output, result, f"node {result['leader']} is the leader")


@app.command()
def snapshot(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Take a snapshot of this node's metadata store, so that its log can be truncated.

    Example: icestream cluster snapshot
    """
    Output(output).record(_call(Target(broker, config, sets), CLUSTER_SNAPSHOT))


@app.command()
def verify(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Compare the SHA-256 of all nodes' states at the same log entry.

    Example: icestream cluster verify
    """
    result = _call(Target(broker, config, sets), CLUSTER_VERIFY)
    answer = Output(output)
    if answer.is_text:
        rows = [(node["name"], node["node"], node["sha256"] or "unreachable") for node in result["nodes"]]
        answer.table(_DIGEST_COLUMNS, rows, drop=("node",), keep=("sha256",))
    else:
        answer.record(result)
    if not result["is_equal"]:
        raise errors.MetadataDamaged(
            f"the states of the nodes differ at entry {result['index']}",
            hint="keep the data_dir of each node for a bug report",
        )
    unreachable = f"; {counted(result['away'], 'node')} unreachable" if result["away"] else ""
    answer.print_line(f"equal at entry {result['index']}{unreachable}")


# --- on a stopped node ------------------------------------------------------------------------------------------------


@app.command("force-new-cluster")
def force_new_cluster(
    directory: Folder = None,
    yes: Yes = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a new cluster from the metadata of one stopped node, when most voters are permanently lost.

    Metadata that only the other nodes had is lost. They cannot return: start them with empty directories, and they join
    as new nodes. A directory from a backup works as well, if nothing else is left.

    Example: icestream cluster force-new-cluster --dir icestream-cluster/7650/raft --yes
    """
    from icestream.cluster.force_new_cluster import force_new_cluster as force
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.randomness import SystemRandomness

    path = _store_path(directory, config, sets)
    confirm(
        f"Create a new cluster from the node in {path}? Metadata that only other nodes have is lost.",
        is_confirmed=yes,
        unchanged="nothing was changed",
    )
    result = asyncio.run(force(path, SystemClock(), SystemRandomness()))
    Output(output).record(
        {
            "node": f"{result.node_id:016x}",
            "cluster": result.cluster_id.hex(),
            "keys": result.keys,
            "removed": ", ".join(result.removed) or "none",
            "forgotten": result.forgotten or "nothing",
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
    """Prepare a stopped node to rejoin its cluster after damage to its metadata log or after its removal.

    The metadata log is moved aside, not deleted. The other nodes must have a majority without this one. At its next
    start it gets a new id and all metadata from them. Its message log is not changed.

    Example: icestream cluster rejoin --dir icestream-cluster/7650/raft --yes
    """
    from icestream.cluster.rejoin import leave

    path = _store_path(directory, config, sets)
    confirm(
        f"Discard the metadata log in {path} and rejoin the cluster at the next start?",
        is_confirmed=yes,
        unchanged="nothing was changed",
    )
    departure = leave(path)
    answer = Output(output)
    answer.record({"node": departure.node or "unknown", "cluster": departure.cluster, "moved_to": departure.left})
    answer.print_line("Start the node as before (with its seed nodes, or with --join HOST:PORT).")


@app.command()
def export(
    directory: Folder = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Write the metadata store of a stopped node, snapshot and log, as JSON Lines (one document per line).

    Example: icestream cluster export --dir icestream-cluster/7650/raft
    """
    from icestream.cluster.export import export as exported
    from icestream.runtime.clock import SystemClock

    async def write(path: Path) -> None:
        async for line in exported(path, SystemClock()):
            with output_errors():
                typer.echo(json.dumps(line, ensure_ascii=False))

    asyncio.run(write(_store_path(directory, config, sets)))


@app.command()
def certificates(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory for certificates and keys.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="File name of the certificate and its key.")] = "node",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Name or address that other nodes dial; default: loopback."),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(metavar="CLUSTER", help="The certificate is for the node --name of this cluster, and no other."),
    ] = "",
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a certificate for nodes, for development, signed by an authority that is created once in the directory.

    Example: icestream cluster certificates certificates --name node
    """
    from icestream.cluster.development_authority import LOOPBACK, make_certificate

    files = make_certificate(directory, name, tuple(host or LOOPBACK), datetime.now(UTC), cluster)
    Output(output).record(
        {
            "meta_store.tls_certificate": str(files.certificate),
            "meta_store.tls_key": str(files.key),
            "meta_store.tls_authority": str(files.authority),
        }
    )


def _store_path(directory: Path | None, config: Path | None, sets: list[str] | None) -> Path:
    """The directory of the metadata store. Raises InvalidInput if there is none."""
    path = directory or load_settings(config, sets).settings.meta_store.data_dir
    if not (path / LOCK_NAME).exists():
        raise errors.InvalidInput(f"no metadata store in {path}", hint="name its directory: --dir DATA_DIR/raft")
    return path


def _print_result(output: OutputFormat, document: Document, sentence: str) -> None:
    answer = Output(output)
    if answer.is_text:
        answer.print_line(sentence)
    else:
        answer.record(document)
