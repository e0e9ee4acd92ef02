"""Names of tables and namespaces on the command line: levels with dots between them. `\\.` is a dot in a level."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from icestream import errors
from icestream.cli import completion

_DOT: Final = re.compile(r"(?<!\\)\.")
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="Such as shop.orders.", autocompletion=completion.tables)
]
CatalogNamespace = Annotated[
    str | None,
    typer.Argument(metavar="NAMESPACE", help="Such as shop.", autocompletion=completion.catalog_namespaces),
]


def levels_of(text: str) -> tuple[str, ...]:
    found = tuple(level.replace("\\.", ".") for level in _DOT.split(text))
    if not all(found):
        raise errors.InvalidInput(f"{text!r} is not a name of the catalog", hint="such as shop.orders")
    return found


def table_of(text: str) -> tuple[tuple[str, ...], str]:
    *namespace, name = levels_of(text)
    if not namespace:
        raise errors.InvalidInput(
            f"{text!r} names no namespace", hint="such as shop.orders; `icestream lake tables` lists them"
        )
    return tuple(namespace), name


def shown(levels: Sequence[str]) -> str:
    """The text that means these levels."""
    return ".".join(level.replace(".", "\\.") for level in levels)
