"""The options that every command has, and the one place where the environment of the process enters the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icestream.cli.output import Asked, OutputFormat

if TYPE_CHECKING:
    from icestream.settings import Loaded


def _setting_words() -> list[str]:
    from icestream.cli import completion  # which needs this module

    return completion.settings()


ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file (YAML); without it, the defaults.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, such as log.level=debug; repeatable.",
        autocompletion=_setting_words,
    ),
]


def note_output(context: typer.Context, chosen: str) -> str:
    """An error is then said in the same form."""
    asked = context.find_object(Asked)
    if asked is not None and chosen == OutputFormat.JSON:
        asked.form = OutputFormat.JSON
    return chosen


OutputChoice = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        help="A table as wide as the terminal, one with all columns (--wide says it, too), or JSON.",
        callback=note_output,
    ),
]

# What `Command.invoke` goes by.
Watch = Annotated[bool, typer.Option("--watch", help="Look again every 2 s, until Ctrl-C; a JSON document each time.")]


def load_settings(config: Path | None, sets: list[str] | None) -> Loaded:
    """File < environment < flags; a ConfigurationError names everything that is wrong."""
    from icestream.settings import load  # a tenth of a second: most commands do well without

    return load(config, os.environ, sets or ())
