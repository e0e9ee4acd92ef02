"""The command line: `icestream <noun> <verb>`. `main` is its only entry and turns our errors into exit codes.

An error of our own tree becomes its message and its hint on stderr, never a traceback: it tells a person what to do.
With `--output json` it is one line of JSON there: it tells a program the same.
Anything else is a mistake of ours and keeps its traceback, because without it nobody could report it.

A command is loaded when it is called, and not before: nobody waits for the broker's modules to read a help text.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from icestream.cli.command import Commands, Group
from icestream.cli.output import Asked, say_aside, writing
from icestream.error_codes import exit_code
from icestream.errors import IcestreamError

# Each is a module of this package with a `Commands` called `app`, or with a function of its own name.
SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Messages": {
        "produce": "Send each line of a file or of stdin as a message.",
        "consume": "Write the messages of a topic, a line each.",
    },
    "Topics": {
        "topic": "List, make, change and delete topics.",
        "sub": "List, make, move, change and delete subscriptions.",
        "namespace": "List, make, change and delete namespaces.",
        "lake": "Look at tables; bind, detach, adopt, rewind and recreate them.",
    },
    "Broker": {
        "serve": "Start a broker in the foreground.",
        "doctor": "Check this machine, the data and the running broker.",
        "verify": "Check that tables hold every committed message once.",
        "top": "Show what the broker is doing, topic by topic.",
        "bench": "Publish and consume for some seconds: how fast is it here?",
        "context": "Name brokers, and choose which one the commands ask.",
        "config": "Show, check, explain and change the settings.",
        "wal": "Look into the write-ahead log, and repair it.",
        "metadata": "Look into the metadata log of a node, and repair it.",
        "cluster": "Look at the nodes of a cluster, change and verify them.",
        "pipeline": "Set up what the pipeline runs on: Java, PySpark, Iceberg's jar.",
    },
}
COMMANDS: Final = {name: words for section in SECTIONS.values() for name, words in section.items()}


class Lazy(Group):
    """Knows the names of its commands, and loads one when it is called."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {name: TyperCommand(name, help=words) for name, words in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("`icestream COMMAND --help` shows examples. docs/cli.md has them all, and exit codes.")


def load(name: str) -> Any:
    """A command with all its options."""
    module = import_module(f"icestream.cli.{name}")
    found = getattr(module, "app", None)
    if found is None:
        found = Commands("")
        found.command(name)(getattr(module, name))
    command = get_command(found)
    command.name = name
    return command


app = Commands(
    "A message broker whose topics are Apache Iceberg tables.", name="icestream", cls=Lazy, add_completion=True
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"icestream {version('icestream')}")
        except PackageNotFoundError:
            typer.echo("icestream (not installed as a package)")
        raise typer.Exit


@app.callback()
def icestream(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A message broker whose topics are Apache Iceberg tables."""


def main() -> None:
    _open_streams()
    asked = Asked()
    try:
        try:
            app(obj=asked)
        finally:
            with writing():
                sys.stdout.flush()  # here, where somebody who is told can still be told
    except BrokenPipeError:
        code = 1
    except KeyboardInterrupt:
        say_aside("icestream: interrupted")
        code = 130
    except IcestreamError as error:
        asked.say_error(error)
        code = exit_code(error)
    _give_up_output()
    sys.exit(code)


def _open_streams() -> None:
    """A stream that the caller has closed is an empty one. A name that the terminal cannot show is shown escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # until the end of the process
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _give_up_output() -> None:
    """What nobody takes: the end of the process would try once more to write it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
