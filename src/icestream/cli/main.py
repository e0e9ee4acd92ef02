"""The command line: `icestream <noun> <verb>`. `main` is its only entry and turns our errors into exit codes.

An error of our own tree becomes its message and its hint on stderr, never a traceback: it tells a person what to do.
With `--output json` it is one line of JSON there: it tells a program the same.
Anything else is a mistake of ours and keeps its traceback, because without it nobody could report it.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from icestream.cli import config, lake, namespace, sub, topic, wal
from icestream.cli.bench import bench
from icestream.cli.consume import consume
from icestream.cli.doctor import doctor
from icestream.cli.output import Asked, say_aside
from icestream.cli.produce import produce
from icestream.cli.serve import serve
from icestream.cli.top import top
from icestream.errors import IcestreamError, exit_code

app = typer.Typer(
    name="icestream",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A message broker whose topics are Apache Iceberg tables.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
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


app.command()(serve)
app.command()(produce)
app.command()(consume)
app.command()(doctor)
app.command()(bench)
app.command()(top)
app.add_typer(topic.app, name="topic")
app.add_typer(sub.app, name="sub")
app.add_typer(namespace.app, name="namespace")
app.add_typer(wal.app, name="wal")
app.add_typer(config.app, name="config")
app.add_typer(lake.app, name="lake")


def main() -> None:
    asked = Asked()
    try:
        app(obj=asked)
    except KeyboardInterrupt:
        say_aside("icestream: interrupted")
        sys.exit(130)
    except IcestreamError as error:
        asked.say_error(error)
        sys.exit(exit_code(error))
