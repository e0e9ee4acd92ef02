"""A topic, as `Client.describe_topic` and `Client.topic_policies` tell of it."""

from __future__ import annotations

from typing import NamedTuple

from icestream import errors, limits
from icestream.client.questions import Document
from icestream.rpc import document


class TopicInfo(NamedTuple):
    """A topic, as its broker describes it."""

    topic: str
    shards: int
    dispatch: str
    producers: int
    subscriptions: list[str]


TopicInfo.topic.__doc__ = "The name of the topic."
TopicInfo.shards.__doc__ = "How many shards it has; messages are in order in each."
TopicInfo.dispatch.__doc__ = "`reliable`: stored, acked and delivered again. `non-reliable`: to whoever is there."
TopicInfo.producers.__doc__ = "How many producers are connected to it."
TopicInfo.subscriptions.__doc__ = "The names of its subscriptions."


class TopicPolicies(NamedTuple):
    """The policies of a topic, by name; None: nothing is said."""

    policies: dict[str, int | str | None]
    effective: dict[str, int | str | None]


TopicPolicies.policies.__doc__ = "The topic's own policies."
TopicPolicies.effective.__doc__ = "What holds: the namespace's policy where the topic has none."


def topic_policies(found: Document) -> TopicPolicies:
    """Of an answer. Raises DecodeError."""
    return TopicPolicies(_policies(found, "policies"), _policies(found, "effective_policies"))


def _policies(found: Document, name: str) -> dict[str, int | str | None]:
    said = found.get(name)
    if not isinstance(said, dict) or not all(isinstance(one, int | str | None) for one in said.values()):
        raise errors.DecodeError(f"{name} of an answer are no policies")
    return said


def topic_info(found: Document) -> TopicInfo:
    """Of an answer. Raises DecodeError."""
    return TopicInfo(
        document.text_of(found, "topic", limits.TOPIC_NAME_BYTES_MAX),
        document.number_of(found, "shards", 1, limits.SHARDS_PER_TOPIC_MAX),
        document.text_of(found, "dispatch", limits.NAME_BYTES_MAX),
        document.number_of(found, "producers", 0, 2**63 - 1),
        list(document.texts_of(found, "subscriptions", limits.DOCUMENT_ITEMS_MAX, limits.NAME_BYTES_MAX)),
    )
