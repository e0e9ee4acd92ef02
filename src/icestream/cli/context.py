"""`icestream context`: named brokers, and which of them the commands of this account use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from icestream import errors
from icestream.cli.broker_connection import BrokerEndpoints, call_broker
from icestream.cli.broker_location import BROKER_VARIABLE, BrokerLocation, BrokerOption, Target, parse_location
from icestream.cli.commands import Commands
from icestream.cli.contexts import Context, Contexts, read_contexts, write_contexts
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, print_note

app = Commands("Name brokers and choose which one commands use.")


def _names() -> list[str]:
    return sorted(read_contexts().entries)


ContextName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the context, such as production.", autocompletion=_names)
]


@app.command()
def add(
    name: ContextName,
    where: Annotated[str, typer.Argument(metavar="WHERE", help="HOST:PORT, a local socket, or a data_dir.")],
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="File with the token of its API and catalog, if required."),
    ] = None,
    use_it: Annotated[bool, typer.Option("--use", help="Use this context from now on.")] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Add a context, or replace the one of that name. Does not connect to the broker.

    Example: icestream context add production 10.0.0.1:6651 --token-file token.txt
    Example: icestream context add here icestream-data --use
    """
    location = parse_location(where, "WHERE", Contexts())
    broker = str(location.socket.absolute()) if location.socket is not None else str(location.address)
    token = str(token_file.absolute()) if token_file is not None else None
    contexts = read_contexts().with_entry(Context(name, broker, token))
    write_contexts(contexts.using(name) if use_it else contexts)
    Output(output).record({"context": name, "broker": broker, "token_file": Cell(token, token or "none")})


@app.command()
def use(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=_names)
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Stop using a context.")] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Choose the context for commands that get no broker by option or ICESTREAM_BROKER.

    Example: icestream context use production
    Example: icestream context use --none
    """
    if none == (name is not None):
        raise errors.InvalidInput("name either a context or --none", hint="`icestream context list` lists the contexts")
    write_contexts(read_contexts().using(name))
    Output(output).record({"context": Cell(name, name or "none")})
    if os.environ.get(BROKER_VARIABLE):
        print_note(f"{BROKER_VARIABLE} is set and takes precedence: {os.environ[BROKER_VARIABLE]}")


@app.command("list")
def list_contexts(_watch: Watch = False, output: OutputChoice = OutputFormat.TABLE) -> None:
    """List the contexts and mark the one in use.

    Example: icestream context list
    """
    contexts = read_contexts()
    answer = Output(output)
    rows = [
        (name, entry.broker, Cell(name == contexts.current, "yes" if name == contexts.current else ""))
        for name, entry in sorted(contexts.entries.items())
    ]
    answer.table(("context", "broker", "in_use"), rows, keep=("broker",))
    if not rows and answer.is_text:
        print_note("No contexts. `icestream context add` adds one.")


@app.command()
def remove(name: ContextName, output: OutputChoice = OutputFormat.TABLE) -> None:
    """Remove a context. If it was in use, no context is in use afterwards.

    Example: icestream context remove production
    """
    write_contexts(read_contexts().without(name))
    Output(output).record({"removed": name})


@app.command()
def show(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show which broker commands use, what chose it, and its addresses.

    Example: icestream context show
    Example: icestream context show --broker 127.0.0.1:6651 --output json
    """
    target = Target(broker, config, sets)
    try:
        endpoints: BrokerEndpoints | None = call_broker(target, lambda calls: calls.endpoints())
        problem = None
    except errors.ConnectionLost as error:
        endpoints, problem = None, error
    Output(output).record(_location_record(target.location, endpoints))
    if problem is not None:
        raise problem


def _location_record(location: BrokerLocation, endpoints: BrokerEndpoints | None) -> dict[str, object]:
    values: dict[str, object | None] = {
        "chosen_by": location.chosen_by,
        "socket": None if location.socket is None else str(location.socket),
        "answers": endpoints is not None,
        "node": None if endpoints is None else endpoints.node,
        "instance": None if endpoints is None else endpoints.instance,
        "native": location.address if endpoints is None else endpoints.address,
        "http": None if endpoints is None else endpoints.http,
        "lake": None if endpoints is None else endpoints.lake,
        "pipeline": None if endpoints is None else endpoints.pipeline,
        "danube": None if endpoints is None else endpoints.danube,
    }
    return dict(values)
