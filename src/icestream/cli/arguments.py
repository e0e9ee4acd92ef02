"""Arguments that many commands share, with their shell completions.

A topic argument also accepts the name of a topic's table and prints which topic it stands for: output of commands shows
both names, and either gets copied.
"""

from __future__ import annotations

from typing import Annotated

import typer

from icestream.cli import completion
from icestream.cli.output import print_note
from icestream.cli.table_name import parse_levels


def resolve_topic(text: str | None) -> str | None:
    """The topic that the text means: a table name `a.b` becomes the topic `/a/b`. Anything else is returned unchanged:
    the broker refuses invalid names."""
    if text is None or "/" in text or "." not in text:
        return text
    levels = parse_levels(text)
    if len(levels) != 2:
        return text
    topic = f"/{levels[0]}/{levels[1]}"
    print_note(f"{text} is a table; using its topic {topic}")
    return topic


TopicName = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Such as /default/orders.", autocompletion=completion.topics, callback=resolve_topic
    ),
]
OptionalTopicName = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="Such as /default/orders; default: all topics.",
        autocompletion=completion.topics,
        callback=resolve_topic,
    ),
]
SubscriptionName = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Such as billing.", autocompletion=completion.subscriptions)
]
NamespaceName = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Such as default.", autocompletion=completion.namespaces)
]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="Such as shop.orders.", autocompletion=completion.tables)
]
OptionalTableName = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="Such as shop.orders; default: all.", autocompletion=completion.tables),
]
CatalogNamespace = Annotated[
    str | None,
    typer.Argument(metavar="NAMESPACE", help="Such as shop.", autocompletion=completion.catalog_namespaces),
]
