"""Asks before something is deleted: a person at a terminal; a program must say --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icestream import errors

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(what: str, *, is_sure: bool, undone: str = "nothing was deleted") -> None:
    """Raises InvalidInput where nobody can be asked; ends the command where somebody says no."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise errors.InvalidInput(f"{undone}: {what}?", hint="say --yes")
    typer.confirm(f"{what}?", abort=True, err=True)
