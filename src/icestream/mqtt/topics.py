"""Topic names and topic filters: what is valid, and which filter matches which topic.

    topic name      1 to 65,535 bytes of UTF-8 without U+0000, `+` and `#`; levels are divided by `/` and may be empty
    topic filter    the same, where a level may be `+` (exactly one level) and the last one `#` (the level before it and
                    everything below)
    $share/GROUP/FILTER     a shared subscription; GROUP is one level without wildcards and not empty
    $replay/FROM/FILTER     a replay (an extension of Icestream): messages from FROM on, then live

A row of a table or of the log has its topic as its key. A native producer may give its messages any key: the topic of a
message whose key is no topic name is that of its Icestream topic, `mqtt/messages` for `/mqtt/messages` (ADR 60).

A topic whose first level begins with `$` matches no filter whose first level is a wildcard (MQTT-4.7.2-1): `#` does not
see `$SYS/uptime`, `$SYS/#` does.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors, limits
from icestream.mqtt.reason_codes import ReasonCode

SHARE_PREFIX: Final = "$share/"
REPLAY_PREFIX: Final = "$replay/"


class TopicFilter(msgspec.Struct, frozen=True):
    """A filter as a client wrote it, and its parts.

    `filter` is what topics are matched against. `share_group` and `replay_from` are empty for an ordinary subscription.
    """

    text: str
    filter: str
    share_group: str = ""
    replay_from: str = ""

    @property
    def is_shared(self) -> bool:
        return bool(self.share_group)

    @property
    def is_replay(self) -> bool:
        return bool(self.replay_from)


def check_topic_name(topic: str) -> None:
    """Raises PacketRefused for a topic that no message can have."""
    if not topic:
        raise errors.PacketRefused(
            "the topic name is empty", reason_code=ReasonCode.MALFORMED_PACKET, hint="publish to a topic with a name"
        )
    if "+" in topic or "#" in topic:
        raise errors.PacketRefused(
            f"topic name {topic[:100]!r} has a wildcard",
            reason_code=ReasonCode.MALFORMED_PACKET,
            hint="+ and # are for filters of subscriptions only",
        )
    if topic.count("/") >= limits.MQTT_TOPIC_LEVELS_MAX:
        raise errors.PacketRefused(
            f"topic name {topic[:100]!r} has more than {limits.MQTT_TOPIC_LEVELS_MAX} levels",
            reason_code=ReasonCode.TOPIC_NAME_INVALID,
            hint="use fewer levels",
        )


def parse_filter(text: str) -> TopicFilter:
    """The parts of a filter of SUBSCRIBE or UNSUBSCRIBE. Raises PacketRefused for one that is malformed."""
    if text.startswith(SHARE_PREFIX):
        group, slash, topic_filter = text[len(SHARE_PREFIX) :].partition("/")
        if not group or not slash or not topic_filter or "+" in group or "#" in group:
            raise errors.PacketRefused(
                f"shared subscription {text[:100]!r} is malformed",
                reason_code=ReasonCode.MALFORMED_PACKET,
                hint="write $share/GROUP/FILTER, with a group without / + #",
            )
        check_filter(topic_filter)
        return TopicFilter(text, topic_filter, share_group=group)
    if text.startswith(REPLAY_PREFIX):
        start, slash, topic_filter = text[len(REPLAY_PREFIX) :].partition("/")
        if not start or not slash or not topic_filter or "+" in start or "#" in start:
            raise errors.PacketRefused(
                f"replay {text[:100]!r} is malformed",
                reason_code=ReasonCode.MALFORMED_PACKET,
                hint="write $replay/FROM/FILTER, such as $replay/-24h/sensors/#",
            )
        check_filter(topic_filter)
        return TopicFilter(text, topic_filter, replay_from=start)
    check_filter(text)
    return TopicFilter(text, text)


def check_filter(topic_filter: str) -> None:
    """Raises PacketRefused for a filter whose wildcards are not where they may be (MQTT-4.7.1-1, -2)."""
    if not topic_filter:
        raise errors.PacketRefused(
            "the topic filter is empty", reason_code=ReasonCode.MALFORMED_PACKET, hint="subscribe to a filter such as #"
        )
    levels = topic_filter.split("/")
    if len(levels) > limits.MQTT_TOPIC_LEVELS_MAX:
        raise errors.PacketRefused(
            f"topic filter {topic_filter[:100]!r} has more than {limits.MQTT_TOPIC_LEVELS_MAX} levels",
            reason_code=ReasonCode.TOPIC_FILTER_INVALID,
            hint="use fewer levels, or #",
        )
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if ("#" in level and (level != "#" or index != last)) or ("+" in level and level != "+"):
            raise errors.PacketRefused(
                f"topic filter {topic_filter[:100]!r} has a wildcard inside a level, or # before the last level",
                reason_code=ReasonCode.MALFORMED_PACKET,
                hint="a wildcard is a whole level, and # is the last one",
            )


def has_wildcard(topic_filter: str) -> bool:
    """True for a valid filter that may match more than one topic."""
    return "+" in topic_filter or topic_filter.endswith("#")


def matches(topic_filter: str, topic: str) -> bool:
    """True if a valid filter (its part `filter`) matches a valid topic."""
    if not has_wildcard(topic_filter):
        return topic_filter == topic
    levels, parts = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and levels[0] in ("+", "#"):
        return False
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(parts) or (level != "+" and level != parts[index]):
            return False
    return len(levels) == len(parts)


def covers(wide: str, narrow: str) -> bool:
    """True if every topic that the filter `narrow` matches is matched by `wide` too (hazard 118).

    Both are valid filters without `$share` and `$replay`. A grant covers a SUBSCRIBE by this function, never by
    matching the subscriber's filter as if it were a topic.
    """
    # `#` and `+/#` match the same topics: a topic has at least one level.
    wide_levels, narrow_levels = wide.split("/"), ("+/#" if narrow == "#" else narrow).split("/")
    if narrow.startswith("$") and wide_levels[0] in ("+", "#"):
        return False
    for index, level in enumerate(wide_levels):
        if level == "#":
            return True
        if index >= len(narrow_levels):
            return False
        other = narrow_levels[index]
        if other == "#" or level not in ("+", other):
            return False
    return len(wide_levels) == len(narrow_levels)


def native_topic(topic_name: str) -> str:
    """The MQTT topic of messages of an Icestream topic (`/namespace/name`) whose key is no topic name."""
    return topic_name.removeprefix("/")


def row_topic(key: object, native_topic: str) -> str:
    """The MQTT topic of a row by its key. mqtt/topic_arrays.py is the same for columns."""
    if not isinstance(key, bytes) or len(key) > limits.MQTT_TEXT_BYTES_MAX:
        return native_topic
    try:
        topic = key.decode()
        check_topic_name(topic)
    except (UnicodeDecodeError, errors.PacketRefused):
        return native_topic
    return topic if "\0" not in topic else native_topic
