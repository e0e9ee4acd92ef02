"""The settings of MQTT, as values for the broker's side. `processes/component_options.py` makes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from icestream import limits
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.mqtt.topics import covers, has_wildcard


class ReplayRoute(NamedTuple):
    """Messages of a filter, from a minimum QoS on, are stored in a topic; of several routes the first that matches."""

    filter: str
    min_qos: int
    topic: str  # /namespace/name
    retention_ms: int = 0  # what its topic keeps, unless a policy says otherwise; 0: not said
    retention_bytes: int = 0

    @property
    def way(self) -> tuple[str, int, str]:
        """Which messages go where."""
        return self.filter, self.min_qos, self.topic


def route_policies(replay: Iterable[ReplayRoute]) -> dict[TopicName, PolicyValues]:
    """What the topics of routes keep where no policy says otherwise."""
    return {
        TopicName.parse(route.topic): PolicyValues(
            retention_ms=route.retention_ms or None, retention_bytes=route.retention_bytes or None
        )
        for route in replay
    }


# Topics are tables: what is published is stored, unless an operator narrows it.
REPLAY_DEFAULT: Final = (ReplayRoute("#", 0, "/mqtt/messages"),)


class WideFilters(NamedTuple):
    """A rule about subscriptions that are too wide. It applies to each that matches at least what one of `filters`
    matches: `plant/#` stands for itself, `+/#` and `#`, and not for `plant/line-1/#` (R16). A filter without a wildcard
    is not wide: it stands for itself only."""

    filters: tuple[str, ...] = ()

    def applies_to(self, topic_filter: str) -> bool:
        """`topic_filter`: the part `filter` of a TopicFilter, without `$share` and `$replay`."""
        return any(topic_filter == rule or (has_wildcard(rule) and covers(topic_filter, rule)) for rule in self.filters)


_NO_FILTERS: Final = WideFilters()


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """What sessions, subscriptions, routes and retained messages need of the settings."""

    is_enabled: bool = True
    has_durable_sessions: bool = True  # False: sessions are kept in memory only, and no state is written (R14)
    replay: tuple[ReplayRoute, ...] = REPLAY_DEFAULT
    shards: int = limits.MQTT_SHARDS_DEFAULT  # of a topic that a route creates
    session_expiry_s_max: int = limits.MQTT_SESSION_EXPIRY_S_MAX_DEFAULT
    session_expiry_s_default: int = limits.MQTT_SESSION_EXPIRY_S_DEFAULT  # of 3.1.1, which names none
    receive_maximum: int = limits.MQTT_IN_FLIGHT_MAX  # in each direction
    packet_bytes_max: int = limits.MQTT_PACKET_BYTES_MAX_DEFAULT
    keep_alive_s_max: int = 0  # 0: what the client asks for, also none
    topic_aliases_max: int = limits.MQTT_TOPIC_ALIASES_MAX
    sessions_max: int = limits.MQTT_SESSIONS_MAX_DEFAULT
    subscriptions_per_session_max: int = limits.MQTT_SUBSCRIPTIONS_MAX_DEFAULT
    session_lag_bytes_max: int = 0  # 0: none
    refused_filters: WideFilters = _NO_FILTERS
    qos0_filters: WideFilters = _NO_FILTERS  # granted with QoS 0, so that nothing is kept for them
    retained_values_max: int = limits.RETAINED_VALUES_MAX
    retained_bytes_max: int = limits.RETAINED_BYTES_MAX
    has_shared_subscriptions: bool = True


# For brokers without the front end, such as those of tests.
NO_MQTT: Final = MqttOptions(is_enabled=False)
