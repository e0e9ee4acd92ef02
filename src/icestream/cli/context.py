"""`icestream context`: names for brokers, and which one the commands of this account ask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from icestream import errors
from icestream.cli.broker import VARIABLE, BrokerOption, Place, Target, place_at
from icestream.cli.command import Commands
from icestream.cli.connection import Reached, ask
from icestream.cli.contexts import Context, Contexts, read_contexts, write_contexts
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, say_aside

app = Commands("Name brokers, and choose which one the commands ask.")


def _names() -> list[str]:
    return sorted(read_contexts().entries)


ContextName = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the context, such as production.", autocompletion=_names)
]


@app.command()
def add(
    name: ContextName,
    where: Annotated[str, typer.Argument(metavar="WHERE", help="HOST:PORT, a local socket, or a data_dir.")],
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Holds the token of its API and catalog, if they want one."),
    ] = None,
    use_it: Annotated[bool, typer.Option("--use", help="Ask this broker from now on.")] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Give a broker a name; one that is there is replaced. Nothing is asked of the broker.

    Example: icestream context add production 10.0.0.1:6651 --token-file token.txt
    Example: icestream context add here icestream-data --use
    """
    place = place_at(where, "WHERE", Contexts())
    broker = str(place.socket.absolute()) if place.socket is not None else str(place.address)
    token = str(token_file.absolute()) if token_file is not None else None
    contexts = read_contexts().with_entry(Context(name, broker, token))
    write_contexts(contexts.using(name) if use_it else contexts)
    Output(output).record({"context": name, "broker": broker, "token_file": Cell(token, token or "none")})


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the context.", autocompletion=_names)] = None,
    none: Annotated[bool, typer.Option("--none", help="Use none any more.")] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Choose the context that commands use where neither an option nor ICESTREAM_BROKER says which broker.

    Example: icestream context use production
    Example: icestream context use --none
    """
    if none == (name is not None):
        raise errors.InvalidInput("a context, or --none", hint="`icestream context list` shows those that there are")
    write_contexts(read_contexts().using(name))
    Output(output).record({"context": Cell(name, name or "none")})
    if os.environ.get(VARIABLE):
        say_aside(f"{VARIABLE} is set, and beats it: {os.environ[VARIABLE]}")


@app.command("list")
def list_contexts(_watch: Watch = False, output: OutputChoice = OutputFormat.TABLE) -> None:
    """List the contexts, and which one is in use.

    Example: icestream context list
    """
    contexts = read_contexts()
    answer = Output(output)
    rows = [
        (name, entry.broker, Cell(name == contexts.current, "yes" if name == contexts.current else ""))
        for name, entry in sorted(contexts.entries.items())
    ]
    answer.table(("context", "broker", "in_use"), rows, keep=("broker",))
    if not rows and answer.for_people:
        say_aside("there are none; `icestream context add` names a broker")


@app.command()
def remove(name: ContextName, output: OutputChoice = OutputFormat.TABLE) -> None:
    """Forget a context; where it was in use, none is then.

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
    """Show which broker a command would ask, why that one, and where its parts listen.

    Example: icestream context show
    Example: icestream context show --broker 127.0.0.1:6651 --output json
    """
    target = Target(broker, config, sets)
    try:
        reached: Reached | None = ask(target, lambda calls: calls.reached())
        problem = None
    except errors.ConnectionLost as error:
        reached, problem = None, error
    Output(output).record(_shown(target.place, reached))
    if problem is not None:
        raise problem


def _shown(place: Place, reached: Reached | None) -> dict[str, object]:
    values: dict[str, object | None] = {
        "chosen_by": place.rule,
        "socket": None if place.socket is None else str(place.socket),
        "answers": reached is not None,
        "node": None if reached is None else reached.node,
        "instance": None if reached is None else reached.instance,
        "native": place.address if reached is None else reached.address,
        "http": None if reached is None else reached.http,
        "lake": None if reached is None else reached.lake,
        "pipeline": None if reached is None else reached.pipeline,
        "danube": None if reached is None else reached.danube,
    }
    return dict(values)
