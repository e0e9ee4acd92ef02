"""Passwords of commands: from a prompt, a file, or stdin; never from a flag, which `ps` would show."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from icestream import errors

_BYTES_MAX = 64 * 1024
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password from this file (mode 0600); default: ask for it, or read it from stdin in a pipe.",
    ),
]


def read_password(path: Path | None, *, is_new: bool) -> str:
    """The password; a new one is asked for twice at a terminal. Raises InvalidInput, without the password in it, and
    ConfigurationError for a file that other accounts may read."""
    if path is not None:
        return _checked(_of_file(path))
    if not sys.stdin.isatty():
        return _checked(sys.stdin.readline())
    password = getpass.getpass("Password: ")
    if is_new and getpass.getpass("The same again: ") != password:
        raise errors.InvalidInput("the two passwords differ", hint="type the same password twice")
    return _checked(password)


def _of_file(path: Path) -> str:
    from icestream.runtime.secret_file import check_secret_file

    check_secret_file("--password-file", path)
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode()
    except OSError as error:
        raise errors.InvalidInput(
            f"cannot read the password in {path}: {error.strerror or error}", hint="name a file with one line"
        ) from None
    except UnicodeDecodeError:
        raise errors.InvalidInput(f"{path} is not a text", hint="name a file with one line") from None


def _checked(text: str) -> str:
    password = text.rstrip("\r\n")
    if not password or "\n" in password:
        raise errors.InvalidInput(
            "no password, or more than one line", hint="type it, pipe it to the command, or use --password-file"
        )
    return password
