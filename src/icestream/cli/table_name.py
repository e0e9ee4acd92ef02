"""Names of tables and namespaces on the command line: levels with dots between them. Behind a backslash a dot,
or a backslash, is itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from icestream import errors
from icestream.cli import completion

TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="Such as shop.orders.", autocompletion=completion.tables)
]
CatalogNamespace = Annotated[
    str | None,
    typer.Argument(metavar="NAMESPACE", help="Such as shop.", autocompletion=completion.catalog_namespaces),
]


def levels_of(text: str) -> tuple[str, ...]:
    found, is_escaped = [""], False
    for character in text:
        if character == "." and not is_escaped:
            found.append("")
        elif character != "\\" or is_escaped:
            found[-1] += character
        is_escaped = character == "\\" and not is_escaped
    if is_escaped or not all(found):
        raise errors.InvalidInput(f"{text!r} is not a name of the catalog", hint="such as shop.orders")
    return tuple(found)


def table_of(text: str) -> tuple[tuple[str, ...], str]:
    *namespace, name = levels_of(text)
    if not namespace:
        raise errors.InvalidInput(
            f"{text!r} names no namespace", hint="such as shop.orders; `icestream lake tables` lists them"
        )
    return tuple(namespace), name


def shown(levels: Sequence[str]) -> str:
    """The text that means these levels."""
    return ".".join(level.replace("\\", "\\\\").replace(".", "\\.") for level in levels)
