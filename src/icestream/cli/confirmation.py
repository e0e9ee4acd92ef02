"""The question before a command deletes or changes something: asked at a terminal; a script must pass --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icestream import errors

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, *, is_confirmed: bool, unchanged: str = "nothing was deleted") -> None:
    """Asks the question, unless `is_confirmed`. Ends the command if the answer is no.

    Raises InvalidInput if stdin is not a terminal; `unchanged` says then what did not happen.
    """
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise errors.InvalidInput(f"{unchanged}: confirmation required: {question}", hint="pass --yes to confirm")
    typer.confirm(question, abort=True, err=True)
