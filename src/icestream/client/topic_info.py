"""A topic, as `Client.describe_topic` tells of it."""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits
from icestream.client.questions import Document
from icestream.protocol import document


class TopicInfo(NamedTuple):
    topic: str
    shards: int
    dispatch: str
    producers: int
    subscriptions: list[str]


def topic_info(found: Document) -> TopicInfo:
    """Of an answer. Raises DecodeError."""
    return TopicInfo(
        document.text_of(found, "topic", limits.TOPIC_NAME_BYTES_MAX),
        document.number_of(found, "shards", 1, limits.SHARDS_PER_TOPIC_MAX),
        document.text_of(found, "dispatch", limits.NAME_BYTES_MAX),
        document.number_of(found, "producers", 0, 2**63 - 1),
        list(document.texts_of(found, "subscriptions", limits.DOCUMENT_ITEMS_MAX, limits.NAME_BYTES_MAX)),
    )
