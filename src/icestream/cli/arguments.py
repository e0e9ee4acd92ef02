"""Names that many commands take, with what a shell may offer for them.

The name of a table is taken where a topic's is wanted, and a sentence says which topic was taken for it: both are on
the screen of whoever types one of them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from icestream.cli import completion
from icestream.cli.output import say_aside
from icestream.cli.table_name import levels_of


def topic_named(text: str | None) -> str | None:
    """The name of a topic as it is; that of a table as the topic of the same name. Anything else is for the broker to
    refuse."""
    if text is None or "/" in text or "." not in text:
        return text
    levels = levels_of(text)
    if len(levels) != 2:
        return text
    topic = f"/{levels[0]}/{levels[1]}"
    say_aside(f"{text} names a table; taken for the topic {topic}")
    return topic


TopicName = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Such as /default/orders.", autocompletion=completion.topics, callback=topic_named
    ),
]
OptionalTopicName = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="Such as /default/orders; else all.",
        autocompletion=completion.topics,
        callback=topic_named,
    ),
]
SubscriptionName = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Such as billing.", autocompletion=completion.subscriptions)
]
NamespaceName = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Such as default.", autocompletion=completion.namespaces)
]
