"""What the table of a topic is called. Pure.

Without a fixed namespace: as the topic is. `/shop/orders` is the table `orders` in the namespace `shop`.

In one namespace for all (`storage.iceberg_config.namespace`; with AWS Glue, `catalog.database`):

    /default/orders       orders                                    the namespace `default` is left out
    /shop/orders          shop__orders
    /shop/My-Orders       shop__my_orders__a7637f216ea9f26f         slugs, and the first half of SHA-256's first half

A part stays as it is when it has lower-case letters of the alphabet, digits and single underscores between them alone,
and is short: then two underscores are where the namespace ends. Otherwise both are made such (slugs), and a digest of
the whole name tells it from others of the same slugs. These names hold in every catalog, Glue included, which knows no
upper case and few characters. Two topics never share a table: a table is bound to one, whatever it is called.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from icestream.iceberg.identifier import Identifier
from icestream.model.topic_name import TopicName
from icestream.settings import Settings

DEFAULT: Final = "default"
_PLAIN: Final = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_PART_MAX: Final = 100  # Glue takes 255 characters in all
_DIGEST_CHARACTERS: Final = 16


def fixed_namespace(settings: Settings) -> tuple[str, ...] | None:
    """None: each table lies in the namespace of its topic."""
    iceberg = settings.storage.iceberg_config
    if iceberg.namespace is not None:
        return tuple(iceberg.namespace.replace("/", ".").split("."))
    if iceberg.catalog.type == "glue" and iceberg.catalog.database is not None:
        return (iceberg.catalog.database,)
    return None


def table_for_topic(topic: TopicName, fixed: tuple[str, ...] | None) -> Identifier:
    if fixed is None:
        return Identifier((topic.namespace,), topic.name)
    return Identifier(fixed, single_namespace_name(topic))


def single_namespace_name(topic: TopicName) -> str:
    parts = (topic.namespace, topic.name)
    if all(_PLAIN.fullmatch(part) and len(part) <= _PART_MAX for part in parts):
        return topic.name if topic.namespace == DEFAULT else f"{topic.namespace}__{topic.name}"
    digest = hashlib.sha256(str(topic).encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return "__".join((*map(_slug, parts), digest))


def _slug(part: str) -> str:
    return _NOT_PLAIN.sub("_", part.lower()).strip("_")[:_PART_MAX].strip("_") or "x"
