"""What is acted on: resources in canonical form, and the patterns of rules. Pure.

    kind            segments                       text
    cluster                                        cluster
    namespace       levels                         namespace:/shop; the catalog has namespaces of several levels
    topic           namespace, name                topic:/shop/orders
    subscription    namespace, topic, name         subscription:/shop/orders/billing
    schema          subject                        schema:/orders-value
    table           levels of namespace, name      table:/raw/clicks; only tables that are no topic's
    mqtt            levels of an MQTT topic or     mqtt:sensors/1/t, mqtt:sensors/+/#; as clients write them, so that
                    of a topic filter              `mqtt:/a` has two levels

In a text, `/` and `%` of a segment are `%2F` and `%25`, except in MQTT's topics, whose levels have no `/`.

A resource is made from parsed values only (TopicName, Identifier), so the decision never sees the text of a client: the
spellings of one resource decide alike (hazard 117). A table that is bound to a topic is the resource of that topic, on
every protocol (hazard 110).

A pattern has the same form. Each of its segments is a literal, `*` (one segment), `{claims.NAME}` (one segment, filled
in from the identity), or, as the last one, `**` (one or more). A claim whose value is not a plain name fills nothing:
the pattern then matches nothing, so that a claim `x/*` cannot widen a rule.

A pattern of a topic also matches its subscriptions. A pattern of a namespace matches the namespace, not its topics:
name them with `topic:/shop/*`. A pattern *reaches into* a namespace if it can match something below it: a
principal that sees a topic or table sees that its namespaces exist, else no engine would find it.

A pattern of MQTT is a topic filter: its wildcards are `+` and `#`, and a whole level may be `{claims.NAME}`. It matches
a filter only if it covers it: every topic that the filter can match, it matches (hazard 118). It is about messages by
their MQTT topic, and about no topic, table or backup that they are stored in (mqtt_rights.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.mqtt import topics

ANY: Final = "*"
_MQTT_PREFIX: Final = "mqtt:"
REST: Final = "**"
_CLAIM: Final = re.compile(r"\{claims\.([A-Za-z0-9_.-]{1,100})\}")
# What a claim may fill in, and what a literal of a pattern may have. Wildcards of every protocol are excluded.
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff/*+#${}\\%?]+")
# A literal level of an MQTT pattern. `*` and braces are refused, because they are meant as a wildcard or a claim.
_MQTT_LITERAL: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff/*+#{}]*")


class ResourceKind(Enum):
    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    SCHEMA = "schema"
    TABLE = "table"
    MQTT = "mqtt"


class Resource(NamedTuple):
    kind: ResourceKind
    segments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _text(self.kind, self.segments)

    @classmethod
    def parse(cls, text: str) -> Resource:
        """The resource of a text that `str` made. Raises InvalidInput."""
        if text == ResourceKind.CLUSTER.value:
            return CLUSTER
        if text.startswith(_MQTT_PREFIX):
            return mqtt_filter_resource(text[len(_MQTT_PREFIX) :])
        kind_text, _, path = text.partition(":/")
        kind = next((kind for kind in ResourceKind if kind.value == kind_text), None)
        segments = tuple(_unescaped(segment) for segment in path.split("/"))
        length = _LENGTHS.get(kind, len(segments)) if kind is not None else 0
        if kind is None or kind is ResourceKind.CLUSTER or len(segments) != length or not all(segments):
            raise _invalid(text)
        return cls(kind, segments)


CLUSTER: Final = Resource(ResourceKind.CLUSTER)


def namespace_resource(*levels: str) -> Resource:
    return Resource(ResourceKind.NAMESPACE, levels)


def topic_resource(name: TopicName) -> Resource:
    return Resource(ResourceKind.TOPIC, (name.namespace, name.name))


def subscription_resource(name: TopicName, subscription: str) -> Resource:
    return Resource(ResourceKind.SUBSCRIPTION, (name.namespace, name.name, subscription))


def schema_resource(subject: str) -> Resource:
    return Resource(ResourceKind.SCHEMA, (subject,))


def table_resource(levels: Sequence[str]) -> Resource:
    """A table or view that is bound to no topic: the levels of its namespace, then its name."""
    return Resource(ResourceKind.TABLE, tuple(levels))


def mqtt_topic_resource(topic: str) -> Resource:
    """The MQTT topic of a message. Raises PacketRefused for one that no message can have."""
    topics.check_topic_name(topic)
    return Resource(ResourceKind.MQTT, tuple(topic.split("/")))


def mqtt_filter_resource(text: str) -> Resource:
    """The topics that a SUBSCRIBE asks for; `$share/GROUP/` and `$replay/FROM/` before a filter change nothing.

    Raises PacketRefused.
    """
    return Resource(ResourceKind.MQTT, tuple(topics.parse_filter(text).filter.split("/")))


class Pattern(NamedTuple):
    """The resources that a rule is about."""

    kind: ResourceKind
    segments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parses the text form. `/shop/orders` alone is a topic, `*` everything of the kinds that have segments.

        Raises InvalidInput.
        """
        if text == ResourceKind.CLUSTER.value:
            return cls(ResourceKind.CLUSTER)
        if text.startswith(_MQTT_PREFIX):
            return cls(ResourceKind.MQTT, _parse_mqtt_pattern(text))
        kind_text, separator, path = text.partition(":") if not text.startswith("/") else ("topic", ":", text)
        kind = next((kind for kind in ResourceKind if kind.value == kind_text), None)
        if not separator or kind is None or kind is ResourceKind.CLUSTER or not path.startswith("/"):
            raise _invalid(text)
        segments = tuple(path[1:].split("/"))
        if not _fits(kind, segments) or not all(_is_segment(segment) for segment in segments):
            raise _invalid(text)
        return cls(kind, segments)

    def __str__(self) -> str:
        return _text(self.kind, self.segments)

    def matches(self, resource: Resource, claims: Mapping[str, str]) -> bool:
        """True if the rule is about the resource, for an identity with these claims."""
        segments = resource.segments
        if resource.kind is not self.kind:
            if self.kind is not ResourceKind.TOPIC or resource.kind is not ResourceKind.SUBSCRIPTION:
                return False
            segments = segments[:2]  # the topic of the subscription
        if self.kind is ResourceKind.MQTT:
            own = self._mqtt_filter(claims)
            return own is not None and topics.covers(own, "/".join(segments))
        has_rest = bool(self.segments) and self.segments[-1] == REST
        fixed = self.segments[:-1] if has_rest else self.segments
        if len(segments) < len(fixed) + has_rest or (not has_rest and len(segments) > len(fixed)):
            return False
        return all(_segment_matches(own, other, claims) for own, other in zip(fixed, segments, strict=False))

    def literals(self, claims: Mapping[str, str]) -> tuple[tuple[int, str], ...] | None:
        """The segments that every resource has which the pattern matches, with their positions; None if it matches
        none, because a claim fills nothing."""
        literals: list[tuple[int, str]] = []
        for position, segment in enumerate(self.segments):
            if (match := _CLAIM.fullmatch(segment)) is not None:
                value = claims.get(match[1], "")
                if not is_plain(value):
                    return None
                literals.append((position, value))
            elif segment not in _WILDCARDS[self.kind is ResourceKind.MQTT]:
                literals.append((position, segment))
        return tuple(literals)

    def _mqtt_filter(self, claims: Mapping[str, str]) -> str | None:
        """The topic filter with the claims filled in; None if one of them fills nothing."""
        levels: list[str] = []
        for level in self.segments:
            if (match := _CLAIM.fullmatch(level)) is None:
                levels.append(level)
            elif is_plain(value := claims.get(match[1], "")):
                levels.append(value)
            else:
                return None
        return "/".join(levels)

    def encloses(self, resource: Resource) -> bool:
        """True if the resource is the one of this pattern, or lies in it: a topic in its namespace, a subscription in
        its topic. For a pattern without wildcards."""
        levels = resource.segments[: len(self.segments)]
        is_inside = self.kind is ResourceKind.NAMESPACE and resource.kind in _IN_NAMESPACES and levels == self.segments
        return is_inside or self.matches(resource, {})

    def reaches_into(self, namespace: Resource, claims: Mapping[str, str]) -> bool:
        """True if the pattern can match a topic, subscription or table below a namespace."""
        if self.kind not in _IN_NAMESPACES or namespace.kind is not ResourceKind.NAMESPACE:
            return False
        levels = namespace.segments
        # A topic lies in a namespace of one level; only tables lie deeper.
        if self.kind is not ResourceKind.TABLE and len(levels) > 1:
            return False
        has_rest = self.segments[-1] == REST
        fixed = self.segments[:-1] if has_rest else self.segments
        if not has_rest and len(fixed) <= len(levels):
            return False
        # A claim that fills nothing matches nothing, so a segment with it further down hides the namespace too.
        return all(_can_match(own, claims) for own in fixed[len(levels) :]) and all(
            _segment_matches(own, other, claims) for own, other in zip(fixed, levels, strict=False)
        )


def _segment_matches(own: str, other: str, claims: Mapping[str, str]) -> bool:
    if own == ANY:
        return True
    if (match := _CLAIM.fullmatch(own)) is not None:
        value = claims.get(match[1], "")
        return is_plain(value) and value == other
    return own == other


def _can_match(own: str, claims: Mapping[str, str]) -> bool:
    """True unless the segment is a claim that the identity lacks, or whose value is no name."""
    match = _CLAIM.fullmatch(own)
    return match is None or is_plain(claims.get(match[1], ""))


def is_plain(value: object) -> bool:
    """True for a text that may stand for one segment: a name without separators and wildcards, in normal form."""
    return (
        isinstance(value, str)
        and _PLAIN.fullmatch(value) is not None
        and value not in (".", "..")
        and len(value.encode()) <= limits.NAME_BYTES_MAX
        and value == unicodedata.normalize("NFKC", value)
    )


def _parse_mqtt_pattern(text: str) -> tuple[str, ...]:
    """The levels of a pattern of MQTT. Raises InvalidInput."""
    topic_filter = text[len(_MQTT_PREFIX) :]
    if topic_filter.startswith((topics.SHARE_PREFIX, topics.REPLAY_PREFIX)):
        raise errors.InvalidInput(
            f"{text[:200]!r} names a shared subscription or a replay",
            hint="grant its topic filter alone: that covers shared subscriptions and replays of it",
        )
    if len(topic_filter.encode()) > limits.MQTT_PATTERN_BYTES_MAX:
        raise errors.InvalidInput(
            f"{text[:200]!r} is longer than {limits.MQTT_PATTERN_BYTES_MAX} bytes", hint="use wildcards"
        )
    topics.check_filter(topic_filter)  # raises PacketRefused, an InvalidInput
    levels = tuple(topic_filter.split("/"))
    for level in levels:
        if level not in ("+", "#") and not _MQTT_LITERAL.fullmatch(level) and not _CLAIM.fullmatch(level):
            raise errors.InvalidInput(
                f"level {level[:100]!r} of {text[:200]!r} is not a literal, +, # or a claim",
                hint="wildcards of MQTT are + for one level and # at the end; a claim is a whole level: "
                "mqtt:sensors/{claims.device}/#",
            )
    return levels


def _is_segment(segment: str) -> bool:
    return segment in (ANY, REST) or _CLAIM.fullmatch(segment) is not None or is_plain(segment)


_WILDCARDS: Final = (frozenset({ANY, REST}), frozenset({"+", "#"}))  # of names, and of MQTT topics
_IN_NAMESPACES: Final = frozenset({ResourceKind.TOPIC, ResourceKind.SUBSCRIPTION, ResourceKind.TABLE})
_LENGTHS: Final = {
    ResourceKind.TOPIC: 2,
    ResourceKind.SUBSCRIPTION: 3,
    ResourceKind.SCHEMA: 1,
}


def _fits(kind: ResourceKind, segments: tuple[str, ...]) -> bool:
    """True if a pattern of these segments can match a resource of the kind."""
    if REST in segments[:-1] or len(segments) > limits.CATALOG_LEVELS_MAX + 1:
        return False
    length = _LENGTHS.get(kind)
    if length is None:  # namespaces and tables: any number of levels
        return len(segments) >= 2 or kind is ResourceKind.NAMESPACE or segments[-1] == REST
    return len(segments) <= length if segments[-1] == REST else len(segments) == length


def _text(kind: ResourceKind, segments: tuple[str, ...]) -> str:
    if kind is ResourceKind.MQTT:
        return _MQTT_PREFIX + "/".join(segments)
    return f"{kind.value}:/{'/'.join(map(_escaped, segments))}" if segments else kind.value


def _escaped(segment: str) -> str:
    """A level of a table's namespace may have a slash: its text must not be that of two levels (hazard 117)."""
    return segment.replace("%", "%25").replace("/", "%2F")


def _unescaped(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")


def _invalid(text: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{text[:200]!r} is not a resource",
        hint="for example /shop/orders, topic:/shop/*, subscription:/shop/orders/billing, namespace:/shop, "
        "schema:/orders-value, table:/raw/**, mqtt:sensors/+/#, cluster",
    )
