"""The command line: `icestream <noun> <verb>`. `main` is its only entry point and turns errors into exit codes.

An IcestreamError is printed to stderr as message and hint, without a traceback; with `--output json` as one line of
JSON. Any other exception is a bug and keeps its traceback, which a bug report needs.

A command's module is imported when the command is called, so that `--help` does not load the broker's modules.
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

from icestream.cli.commands import Commands, Group
from icestream.cli.output import Invocation, output_errors, print_note
from icestream.error_codes import exit_code
from icestream.errors import IcestreamError

# Each name is a module of this package that has a `Commands` called `app`, or a function with the module's name.
SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Messages": {
        "produce": "Send each line of a file or of stdin as a message.",
        "consume": "Write the messages of a topic, a line each.",
    },
    "Topics": {
        "topic": "List, create, change and delete topics.",
        "sub": "List, create, move, change and delete subscriptions.",
        "namespace": "List, create, change and delete namespaces.",
        "mqtt": "Show MQTT sessions, topics and routes; disconnect clients.",
        "lake": "Inspect tables; bind, detach, adopt, rewind and recreate them.",
    },
    "Broker": {
        "serve": "Start a broker in the foreground.",
        "doctor": "Check this machine, the data and the running broker.",
        "verify": "Check that tables contain every committed message exactly once.",
        "top": "Show live rates, lag and connections per topic.",
        "bench": "Publish and consume for some seconds and report the throughput.",
        "context": "Name brokers and choose which one commands use.",
        "backup": "Make, list, show, verify and delete backups.",
        "config": "Show, check, explain and change the settings.",
        "wal": "Inspect and repair the write-ahead log.",
        "metadata": "Inspect and repair the metadata log of a node.",
        "cluster": "Show, change and verify the nodes of a cluster.",
        "security": "Accounts, tokens, roles, grants, and who may do what.",
        "pipeline": "Run the pipeline, show its status, install what it needs.",
    },
}
COMMANDS: Final = {name: summary for section in SECTIONS.values() for name, summary in section.items()}


class LazyCommands(Group):
    """Knows the names of its commands, and loads a command's module when the command is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=summary) for name, summary in COMMANDS.items()}

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
            formatter.write_text(
                "`icestream COMMAND --help` shows examples; docs/cli.md lists all of them and exit codes."
            )


def load(name: str) -> Any:
    """Imports the command's module and returns the command with all its options."""
    module = import_module(f"icestream.cli.{name}")
    commands = getattr(module, "app", None)
    if commands is None:
        commands = Commands("")
        commands.command(name)(getattr(module, name))
    command = get_command(commands)
    command.name = name
    return command


app = Commands(
    "A message broker whose topics are Apache Iceberg tables.", name="icestream", cls=LazyCommands, add_completion=True
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
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
    invocation = Invocation()
    try:
        try:
            app(obj=invocation)
        finally:
            with output_errors():
                sys.stdout.flush()  # here, where a failed write can still be reported
    except BrokenPipeError:
        code = 1
    except KeyboardInterrupt:
        print_note("icestream: interrupted")
        code = 130
    except IcestreamError as error:
        invocation.print_error(error)
        code = exit_code(error)
    _discard_output()
    sys.exit(code)


def _open_streams() -> None:
    """Replaces closed standard streams by /dev/null, and escapes characters that stdout cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discards output that cannot be written: the interpreter would try to write it once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
