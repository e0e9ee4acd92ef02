"""The options that every command has, and the one place where the environment of the process enters the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icestream.cli.output import Invocation, OutputFormat

if TYPE_CHECKING:
    from icestream.settings import Loaded


def complete_assignments() -> list[str]:
    """Completions of `--set`: every setting key with `=`, so that the value follows."""
    from icestream.settings import KEYS

    return [f"{path}=" for path in KEYS]


ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file (YAML); without it, the defaults apply.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, such as log.level=debug; repeatable.",
        autocompletion=complete_assignments,
    ),
]


def remember_output_format(context: typer.Context, output_format: str) -> str:
    """Records `--output json`, so that an error of this command is printed as JSON as well; returns its argument."""
    invocation = context.find_object(Invocation)
    if invocation is not None and output_format == OutputFormat.JSON:
        invocation.form = OutputFormat.JSON
    return output_format


OutputChoice = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        help="A table that fits the terminal, a table with all columns (same as --wide), or JSON.",
        callback=remember_output_format,
    ),
]

# `Command.invoke` reads this parameter by its name, `_watch`.
Watch = Annotated[
    bool, typer.Option("--watch", help="Repeat every 2 s until Ctrl-C; with JSON, one document each time.")
]


def load_settings(config: Path | None, sets: list[str] | None, *, are_typed: bool = True) -> Loaded:
    """Loads the settings: file < environment < flags. Raises ConfigurationError naming every invalid setting, and for a
    secret in a flag, which every account of this machine can read (`ps`). `are_typed`: the flags are a command line's;
    False: a command has made them."""
    from icestream import errors
    from icestream.settings import KEYS, load  # loading takes 0.1 s, which most commands can avoid
    from icestream.settings.keys import has_secret

    for assignment in (sets or ()) if are_typed else ():
        path, _, value = assignment.partition("=")
        key = KEYS.get(path.strip())
        if key is not None and has_secret(key, value):
            raise errors.ConfigurationError(
                f"{key.path} is a secret, and every account of this machine can read a command line",
                hint=(f"--set {key.path}=file:PATH (or env:NAME, command:COMMAND), or " if key.secret else "")
                + f"set {key.env}, or write it into a settings file (mode 0600)",
            )
    return load(config, os.environ, sets or ())
