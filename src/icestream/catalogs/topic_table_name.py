"""The name of a topic's table. Pure.

Without a fixed namespace it has the name of the topic: `/shop/orders` is the table `orders` in the namespace `shop`.

In one namespace for all (`storage.iceberg_config.namespace`; with AWS Glue, `catalog.database`):

    /default/orders       orders                                    the namespace `default` is left out
    /shop/orders          shop__orders
    /shop/My-Orders       shop__my_orders__a7637f216ea9f26f         slugs, and 16 hex digits of SHA-256

A part is kept if it is short and has only a-z, 0-9 and single underscores in between: then two underscores separate the
namespace. Otherwise both parts become slugs, and a digest of the whole name distinguishes topics with the same slugs.
Such names are valid in every catalog, also in Glue, which has neither upper case nor most special characters. Two
topics never share a table, even if their names collided: a table is bound to one topic.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from icestream.iceberg.identifier import Identifier
from icestream.model.topic_name import TopicName

DEFAULT: Final = "default"
_PLAIN: Final = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_PART_MAX: Final = 100  # Glue takes 255 characters in all
_DIGEST_CHARACTERS: Final = 16


def table_for_topic(topic: TopicName, fixed: tuple[str, ...] | None) -> Identifier:
    if fixed is None:
        return Identifier((topic.namespace,), topic.name)
    return Identifier(fixed, single_namespace_name(topic))


def single_namespace_name(topic: TopicName) -> str:
    parts = (topic.namespace, topic.name)
    if all(_PLAIN.fullmatch(part) and len(part) <= _PART_MAX for part in parts):
        return topic.name if topic.namespace == DEFAULT else f"{topic.namespace}__{topic.name}"
    # Over the whole name, so that topics whose slugs are equal have different tables.
    digest = hashlib.sha256(str(topic).encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return "__".join((*map(_slug, parts), digest))


def _slug(part: str) -> str:
    return _NOT_PLAIN.sub("_", part.lower()).strip("_")[:_PART_MAX].strip("_") or "x"
