"""Names of topics: `/namespace/name`, and what Danube's clients call the shards of one.

A part of a name has letters and digits of any script, `_` and `-`. Danube knows a topic of several shards as several
topics `name-part-0`, `name-part-1`, …: that is how its shards are called outside (`shard_name`), so no topic may itself
be called that (`parse` refuses it, `parse_shard` reads it).
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import Final

from icestream import errors, limits

_PART: Final = re.compile(r"[\w-]+", re.UNICODE)
_SHARD: Final = re.compile(r"(?P<name>.+)-part-(?P<shard>0|[1-9][0-9]{0,9})")
_RULE: Final = "a topic is called /namespace/name, of letters, digits, _ and -, for example /default/orders"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parses `/namespace/name`. Raises InvalidInput."""
        return _checked(_split(text))

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.name}"

    def shard_name(self, shard: int, shards: int, *, is_partitioned: bool = False) -> str:
        """The public name of a shard.

        It is the topic's own name if the topic has one shard, unless the topic was created by naming its partitions.
        """
        return f"{self}-part-{shard}" if shards > 1 or is_partitioned else str(self)


def parse_shard(text: str) -> tuple[TopicName, int | None]:
    """Parses the name of a topic or shard; the shard is None if the name has none. Raises InvalidInput."""
    parts = _split(text)
    match = _SHARD.fullmatch(parts.name)
    if match is None:
        return _checked(parts), None
    return _checked(TopicName(parts.namespace, match["name"])), int(match["shard"])


def check_namespace(text: str) -> str:
    """Returns the namespace. Raises InvalidInput if it is malformed."""
    if not _PART.fullmatch(text) or len(text.encode()) > limits.NAME_BYTES_MAX:
        raise errors.InvalidInput(
            f"namespace {reprlib.repr(text)} is not a name",
            hint=f"letters, digits, _ and -, at most {limits.NAME_BYTES_MAX} bytes",
        )
    return text


def check_name(kind: str, text: str) -> str:
    """Returns the name of a subscription, producer or consumer. Raises InvalidInput if it is malformed.

    The rule is wider than for topics: clients build these names from host names, times and the like.
    """
    if not _is_name(text):
        raise errors.InvalidInput(
            f"{reprlib.repr(text)} is not the name of a {kind}",
            hint=f"printable characters without /, at most {limits.NAME_BYTES_MAX} bytes",
        )
    return text


def _is_name(text: object) -> bool:
    if not isinstance(text, str) or not text or not text.isprintable():
        return False
    return "/" not in text and len(text.encode()) <= limits.NAME_BYTES_MAX


def _split(text: object) -> TopicName:
    parts = text.split("/", 3) if isinstance(text, str) else []
    if len(parts) != 3 or parts[0] or not all(_PART.fullmatch(part) for part in parts[1:]):
        raise errors.InvalidInput(f"{reprlib.repr(text)} is not the name of a topic", hint=_meant(parts) + _RULE)
    return TopicName(parts[1], parts[2])


def _meant(parts: list[str]) -> str:
    """The likely intended name, if the namespace or the first slash is missing; for hints."""
    words = [part for part in parts if part]
    if len(words) > 2 or not words or not all(_PART.fullmatch(word) for word in words):
        return ""
    return f"do you mean /{'/'.join(words if len(words) == 2 else ['default', *words])[:100]}? "


def _checked(topic_name: TopicName) -> TopicName:
    """Returns the name. Raises InvalidInput for the name of a shard, and for a part that is too long."""
    if _SHARD.fullmatch(topic_name.name):
        raise errors.InvalidInput(
            f"{reprlib.repr(str(topic_name))} is the name of a shard",
            hint="omit -part-N and set the number of shards of the topic",
        )
    size = max(len(topic_name.namespace.encode()), len(topic_name.name.encode()))
    if size > limits.NAME_BYTES_MAX:
        raise errors.InvalidInput(
            f"topic name {reprlib.repr(str(topic_name))} has a part of {size} bytes",
            hint=f"at most {limits.NAME_BYTES_MAX} bytes each",
        )
    return topic_name
