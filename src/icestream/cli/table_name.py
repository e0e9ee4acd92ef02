"""Names of tables and namespaces on the command line: levels with dots between them. Behind a backslash a dot,
or a backslash, is itself. The name of a topic is taken for that of its table, and a sentence says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from icestream import errors
from icestream.cli import completion
from icestream.cli.output import say_aside

if TYPE_CHECKING:
    from icestream.cli.broker import Target
    from icestream.settings import Settings

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
    if text.startswith("/"):
        raise errors.InvalidInput(
            f"{text!r} names a topic, and a table is wanted",
            hint="such as shop.orders; the table comes before the topic",
        )
    *namespace, name = levels_of(text)
    if not namespace:
        raise errors.InvalidInput(
            f"{text!r} names no namespace", hint="such as shop.orders; `icestream lake tables` lists them"
        )
    return tuple(namespace), name


def shown(levels: Sequence[str]) -> str:
    """The text that means these levels."""
    return ".".join(level.replace("\\", "\\\\").replace(".", "\\.") for level in levels)


def table_named(text: str, target: Target) -> str:
    """The name of a table as it is; of a topic, that of its table. Raises UnknownTable for a topic that has none."""
    from icestream.cli.table_catalog import catalog_settings

    if not text.startswith("/"):
        return text
    levels = _table_of_topic(text, catalog_settings(target))
    if levels is None:
        raise errors.UnknownTable(
            f"topic {text} has no table yet",
            hint=f"`icestream lake commit-now {text}` writes what is published; `icestream lake tables` lists tables",
        )
    say_aside(f"{text} names a topic; its table is {shown(levels)}")
    return shown(levels)


def _table_of_topic(topic: str, settings: Settings) -> tuple[str, ...] | None:
    """Our own catalog knows it; elsewhere the table has the name that the pipeline gives it."""
    from icestream.catalogs.topic_table_name import fixed_namespace, table_for_topic
    from icestream.cli.lake_http import LakeApi
    from icestream.model.topic_name import TopicName

    if not settings.catalog_embedded:
        table = table_for_topic(TopicName.parse(topic), fixed_namespace(settings))
        return (*table.namespace, table.name)
    known = LakeApi(settings).get("topics", topic=topic)["table"]
    return (*known["namespace"], known["table"]) if known is not None else None
