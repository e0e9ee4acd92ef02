r"""Names of tables and namespaces on the command line: levels separated by dots, such as `shop.orders`.

A backslash escapes a dot or a backslash inside a level. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors


def parse_levels(text: str) -> tuple[str, ...]:
    """The levels of a name. Raises InvalidInput for an empty level or a trailing backslash."""
    levels, is_escaped = [""], False
    for character in text:
        if character == "." and not is_escaped:
            levels.append("")
        elif character != "\\" or is_escaped:
            levels[-1] += character
        is_escaped = character == "\\" and not is_escaped
    if is_escaped or not all(levels):
        raise errors.InvalidInput(f"{text!r} is not a valid table or namespace name", hint="such as shop.orders")
    return tuple(levels)


def parse_table(text: str) -> tuple[tuple[str, ...], str]:
    """Namespace and name of a table. Raises InvalidInput, also for the name of a topic."""
    if text.startswith("/"):
        levels = text.strip("/").split("/")
        example = format_levels(levels) if len(levels) == 2 and all(levels) else "shop.orders"
        raise errors.InvalidInput(
            f"{text!r} is a topic; a table name is expected here",
            hint=f"name the table, such as {example}, before the topic",
        )
    *namespace, name = parse_levels(text)
    if not namespace:
        raise errors.InvalidInput(
            f"table name {text!r} lacks a namespace", hint="such as shop.orders; `icestream lake tables` lists tables"
        )
    return tuple(namespace), name


def format_levels(levels: Sequence[str]) -> str:
    """The text that `parse_levels` reads as these levels."""
    return ".".join(level.replace("\\", "\\\\").replace(".", "\\.") for level in levels)
