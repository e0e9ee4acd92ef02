"""`mqtt`: how clients of MQTT are served, what of their messages is stored where, and how much each may hold.

A route is one text, because the tree has no lists of sections: `FILTER -> TOPIC`, or `FILTER qos N -> TOPIC` for
messages of QoS N and more; behind the topic `keep 7d`, `keep 10GiB` or `keep 7d 10GiB` say how long, and how much of
it, is kept. YAML reads a `#` behind a space as a comment, so a route is best quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Final, NamedTuple

from pydantic import Field, StrictBool

from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.settings import text, units
from icestream.settings.section import ONLINE, Broken, Section

_SIZE = units.size(0)
_EXPIRY = units.duration("s", 0, 0xFFFF_FFFF)
_ROUTE: Final = re.compile(
    r"(?P<filter>.+?)(?: qos (?P<qos>[012]))? -> (?P<topic>/[^ ]+)(?: keep (?P<keep>[^ ]+(?: [^ ]+)?))?", re.DOTALL
)
_KEPT_TIME: Final = units.duration("ms", 1, limits.OFFSET_MAX)
_KEPT_BYTES: Final = units.size(1, limits.OFFSET_MAX)
_LEVEL: Final = r"(?:\+|[^+#/\x00]*)"
_FILTER: Final = re.compile(rf"#|{_LEVEL}(?:/{_LEVEL})*(?:/#)?")


class RouteText(NamedTuple):
    """The parts of a route."""

    filter: str
    min_qos: int
    topic: str
    retention_ms: int = 0  # 0: not said
    retention_bytes: int = 0


def parse_route(route: str) -> RouteText | None:
    """The parts of `FILTER -> TOPIC`, `FILTER qos N -> TOPIC` and the same with `keep …`; None for anything else."""
    match = _ROUTE.fullmatch(route.strip())
    if match is None or not is_filter(match["filter"]):
        return None
    try:
        topic = TopicName.parse(match["topic"])
        kept = _parse_kept((match["keep"] or "").split())
    except (errors.InvalidInput, ValueError):
        return None
    return RouteText(match["filter"], int(match["qos"] or 0), str(topic), *kept)


def _parse_kept(words: list[str]) -> tuple[int, int]:
    """Milliseconds and bytes of `7d`, `10GiB` or both, in any order. Raises ValueError, also for two of a kind."""
    kept = {"ms": 0, "bytes": 0}
    for word in words:
        unit = word.lstrip("0123456789.")
        kind, quantity = ("ms", _KEPT_TIME) if unit in units.DURATION_UNITS else ("bytes", _KEPT_BYTES)
        if not unit or kept[kind]:
            raise ValueError("a time and a size, each with its unit")
        kept[kind] = quantity.read(word)
    return kept["ms"], kept["bytes"]


def is_filter(topic_filter: str) -> bool:
    """True for a filter of topics; those of shared subscriptions and replays are for clients only."""
    return (
        0 < len(topic_filter.encode(errors="surrogatepass")) <= limits.MQTT_TEXT_BYTES_MAX
        and topic_filter.count("/") < limits.MQTT_TOPIC_LEVELS_MAX
        and not topic_filter.startswith(("$share/", "$replay/"))
        and _FILTER.fullmatch(topic_filter) is not None
    )


def _is_network(network: str) -> bool:
    try:
        ip_network(network)
    except ValueError:
        return False
    return True


_ROUTE_TEXT: Final = text.Text(
    "a route such as `sensors/# -> /plant/sensors`, `sensors/# qos 1 -> /plant/sensors` from QoS 1 on, or "
    "`sensors/# -> /plant/sensors keep 7d 10GiB`",
    lambda route: parse_route(route) is not None,
)
_FILTER_TEXT: Final = text.Text("a topic filter such as `sensors/#`", is_filter)
_NETWORK: Final = text.Text("an address or a network, such as `10.1.2.3` or `10.1.0.0/16`", _is_network)
_PATH: Final = text.Text(
    "a path such as `/mqtt`", lambda path: re.fullmatch(r"/[A-Za-z0-9._~/-]{0,200}", path) is not None
)
_ORIGIN: Final = text.Text(
    "an origin such as `https://console.example.com`, or `*` for any",
    lambda origin: re.fullmatch(r"\*|https?://[a-z0-9.:\[\]_-]{1,253}", origin) is not None,
)


class DurableSessionsSection(Section):
    """Sessions that survive a restart of the broker."""

    enable: StrictBool = Field(
        default=True,
        description="Keep sessions in the log, so that a client finds its subscriptions and its backlog after any "
        "crash. Off: sessions live in memory and end with the broker; messages are stored all the same, as `replay` "
        "says.",
    )


class MqttSection(Section):
    """Clients of MQTT 3.1.1 and 5.0, at `ports.mqtt`, and by WebSocket at `ports.mqtt_ws` ([MQTT](mqtt.md))."""

    enable: StrictBool = Field(default=True, description="Serve clients of MQTT.")
    durable_sessions: DurableSessionsSection = DurableSessionsSection()
    replay: tuple[Annotated[str, _ROUTE_TEXT], ...] = Field(
        default=("# -> /mqtt/messages",),
        description="Which messages are stored in which topic, and so in which table; of several routes the first "
        "whose filter matches. `sensors/# qos 1 -> /plant/sensors` leaves messages of QoS 0 out. What matches none is "
        "stored only for sessions that subscribe to it with QoS 1 or 2, in the topic of the last route. "
        "`sensors/# -> /plant/sensors keep 7d 10GiB` keeps its messages for 7 days, and at most 10 GiB, unless a "
        "policy of the topic or its namespace says otherwise. Quote it: YAML reads ` #` as a comment. A change while "
        "the broker runs disconnects all clients of MQTT once, unless only what is kept changes.",
        json_schema_extra=ONLINE,
    )
    shards: Annotated[int, units.count(1, limits.SHARDS_PER_TOPIC_MAX)] = Field(
        default=limits.MQTT_SHARDS_DEFAULT,
        description="Shards of a topic that a route creates. The messages of an MQTT topic are in one shard and in "
        "order; members of a shared subscription divide the shards.",
    )
    session_expiry_max_s: Annotated[int, _EXPIRY] = Field(
        default=limits.MQTT_SESSION_EXPIRY_S_MAX_DEFAULT,
        description="How long a session outlives its connection at most, whatever its client asks for; the client is "
        "told. 4294967295 is for ever. The default is 30 days.",
    )
    session_expiry_default_s: Annotated[int, _EXPIRY] = Field(
        default=limits.MQTT_SESSION_EXPIRY_S_DEFAULT,
        description="The same for clients of 3.1.1 without clean session, which cannot ask. The default is a week.",
    )
    receive_maximum: Annotated[int, units.count(1, limits.MQTT_IN_FLIGHT_MAX)] = Field(
        default=limits.MQTT_IN_FLIGHT_MAX,
        description="QoS 1 and 2 messages of a connection that are not acked, in each direction; a client may ask for "
        "fewer. The log of sessions has an entry for each of those to clients.",
    )
    packet_bytes_max: Annotated[int, units.size(limits.KIB, limits.MESSAGE_BYTES_MAX)] = Field(
        default=limits.MQTT_PACKET_BYTES_MAX_DEFAULT,
        description="Largest packet of a client. It is told; one that sends a larger packet is disconnected.",
    )
    keep_alive_max_s: Annotated[int, units.duration("s", 0, limits.MQTT_KEEP_ALIVE_SECONDS_MAX)] = Field(
        default=0,
        description="Longest keep alive: a client of 5.0 that asks for a longer one, or for none, is told this one. A "
        "connection that is silent for 1.5 times its keep alive is closed. 0: what the client asks for.",
    )
    topic_aliases_max: Annotated[int, units.count(0, limits.MQTT_TOPIC_ALIASES_MAX)] = Field(
        default=limits.MQTT_TOPIC_ALIASES_MAX, description="Topic aliases of a connection, in each direction."
    )
    sessions_max: Annotated[int, units.count(1, limits.MQTT_SESSIONS_MAX)] = Field(
        default=limits.MQTT_SESSIONS_MAX_DEFAULT,
        description="Sessions of this node, of connected clients and of others. Beyond it a client without a session "
        "is refused (0x97).",
    )
    subscriptions_per_session_max: Annotated[int, units.count(1, limits.MQTT_SUBSCRIPTIONS_MAX)] = Field(
        default=limits.MQTT_SUBSCRIPTIONS_MAX_DEFAULT,
        description="Subscriptions of one session; a further one is refused (0x97).",
    )
    session_lag_bytes_max: Annotated[int, _SIZE] = Field(
        default=0,
        description="Bytes of messages for a session that it may be behind, as counted while the broker runs. Beyond "
        "it the session ends with its backlog, which is logged and counted, and its client is told (0x97); a shared "
        "subscription loses its backlog and goes on. 0: no bound, because a backlog is no copy: it is the log and the "
        "tables.",
    )
    refused_filters: tuple[Annotated[str, _FILTER_TEXT], ...] = Field(
        default=(),
        description="Subscriptions that are refused because they are too wide: each that matches all that one of these "
        "matches. `plant/#` refuses itself, `+/#` and `#`, and not `plant/line-1/#`; a filter without a wildcard "
        "refuses itself only. Who may read what is decided by rights, not by this.",
    )
    qos0_filters: tuple[Annotated[str, _FILTER_TEXT], ...] = Field(
        default=(),
        description="Subscriptions that are granted QoS 0 only, by the same rule: no session keeps a backlog for them.",
    )
    retained_values_max: Annotated[int, units.count(0, limits.RETAINED_VALUES_MAX)] = Field(
        default=limits.RETAINED_VALUES_MAX,
        description="Topics with a retained message. Beyond it the message of a further topic is stored and delivered, "
        "not retained, which is counted.",
    )
    retained_bytes_max: Annotated[int, _SIZE] = Field(
        default=limits.RETAINED_BYTES_MAX, description="Bytes of all retained messages, by the same rule."
    )
    shared_subscriptions: StrictBool = Field(
        default=True, description="Allow shared subscriptions, `$share/GROUP/FILTER`."
    )
    websocket_path: Annotated[str, _PATH] = Field(
        default="/mqtt", description="Path of WebSocket connections, at `ports.mqtt_ws`; any other one is not found."
    )
    websocket_origins: tuple[Annotated[str, _ORIGIN], ...] = Field(
        default=(),
        description="Web pages that may connect by WebSocket: their origins, as browsers send them. Pages of this "
        "machine may always, and clients that are no browsers, which send no origin. Without a bound every page "
        "that is open in a browser on this machine could read the topics of a broker without accounts.",
    )
    proxy_protocol_from: tuple[Annotated[str, _NETWORK], ...] = Field(
        default=(),
        description="Addresses of load balancers that send the PROXY protocol, version 2, in front of each connection. "
        "Their connections need it, and count as those of the client that it names; it is refused from all others. "
        "Empty: no PROXY protocol.",
    )

    def broken_rules(self) -> Iterator[Broken]:
        if not self.replay:
            yield Broken(
                ("replay",),
                "`replay` is empty, and what sessions subscribe to is stored in the topic of its last route",
                "name a topic with a filter that no client uses, such as `$none -> /mqtt/messages`",
            )
        kept: dict[str, tuple[int, int]] = {}
        for route in filter(None, map(parse_route, self.replay)):
            if kept.setdefault(route.topic, route[3:]) != route[3:]:
                yield Broken(
                    ("replay",),
                    f"two routes to {route.topic} keep its messages for different times or bytes",
                    "a topic is kept as a whole: say the same, or route one of the filters to a topic of its own",
                )
                break
        if len(self.replay) > limits.MQTT_ROUTES_MAX:
            yield Broken(
                ("replay",), f"{len(self.replay)} routes are too many", f"list at most {limits.MQTT_ROUTES_MAX}"
            )
        if self.session_expiry_default_s > self.session_expiry_max_s:
            yield Broken(
                ("session_expiry_default_s", "session_expiry_max_s"),
                "`session_expiry_default_s` is above `session_expiry_max_s`",
                "set both, the default to at most the maximum",
            )
