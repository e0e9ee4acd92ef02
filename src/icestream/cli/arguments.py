"""Names that many commands take, with what a shell may offer for them."""

from __future__ import annotations

from typing import Annotated

import typer

from icestream.cli import completion

TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Such as /default/orders.", autocompletion=completion.topics)
]
SubscriptionName = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Such as billing.", autocompletion=completion.subscriptions)
]
NamespaceName = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Such as default.", autocompletion=completion.namespaces)
]
