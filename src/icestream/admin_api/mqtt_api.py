"""MQTT on a node: sessions, subscriptions, retained messages, topics and routes, each as rows with plain values.

A page of a listing goes on behind a cursor, the text `next` of the page before: client ids and topics may be too long
for a URL. Rows come in the order in which the node met them, sessions that lag in the order of their lag.

The lag of a session is what it has not looked at yet, and not what matches its filters: a backlog is no queue but a
part of the log and the tables, and only reading it would tell. It is an upper bound of what it will get.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, Answer, Listing, PageRequest
from icestream.model.field_metadata import Doc, Length

MqttText = Annotated[str, Length(1, limits.MQTT_TEXT_BYTES_MAX)]

# --- requests ---------------------------------------------------------------------------------------------------------


class PageMqttSessions(PageRequest, kw_only=True):
    client_id: str = ""  # a pattern with * and ?; empty: all
    is_connected: bool | None = None
    is_lagging: bool = False


class MqttClientOnly(msgspec.Struct):
    client_id: str


class KickMqttClient(msgspec.Struct, kw_only=True):
    client_id: MqttText
    delete_session: Annotated[bool, Doc("End its session too: its subscriptions and its backlog.")] = False


class PageMqttSubscriptions(PageRequest, kw_only=True):
    client_id: str = ""  # a pattern with * and ?; empty: all
    topic: str = ""  # those that match this topic; empty: all


class PageMqttTopics(PageRequest, kw_only=True):
    filter: str = ""  # a topic filter; empty: all
    contains: str = ""  # a part of the topic, whatever its case
    has_payload: bool = False  # with the last payload, as far as memory or the log has it


class PageMqttRetained(PageRequest, kw_only=True):
    filter: str = ""  # a topic filter; empty: all
    has_payload: bool = False


class ClearMqttRetained(msgspec.Struct):
    filter: MqttText


# --- answers ----------------------------------------------------------------------------------------------------------


class MqttSessionSummary(Answer):
    client_id: Annotated[str, Doc("Of a shared subscription `$share/GROUP/FILTER`.")]
    session: Annotated[int, Doc("A number that no other session ever has.")]
    is_connected: bool
    is_durable: Annotated[bool, Doc("Whether it survives a restart of the broker.")]
    principal: Annotated[str | None, Doc("Whose session it is; null on a broker without accounts.")]
    address: Annotated[str | None, Doc("Of the client; null while it is not connected.")]
    protocol: Annotated[str | None, Doc("`3.1.1` or `5.0`; null while it is not connected.")]
    members: Annotated[int | None, Doc("Of a shared subscription; null for the session of a client.")]
    subscriptions: int
    in_flight: Annotated[int, Doc("Messages of QoS 1 and 2 that were sent and are not acknowledged.")]
    sent_messages: Annotated[int, Doc("Since the broker started.")]
    lag_messages: Annotated[int, Doc("Stored messages that it has not looked at yet, whether they match or not.")]
    lag_bytes: Annotated[int, Doc("About how many bytes they have in the log.")]
    lag_age_ms: Annotated[int | None, Doc("About how long ago the oldest of them was stored; null if there is none.")]
    owed_bytes: Annotated[
        int | None,
        Doc("Bytes of messages that match, since the broker started; null unless `mqtt.session_lag_bytes_max` is set."),
    ]
    expiry_s: Annotated[int, Doc("Seconds that it outlives its connection; 4294967295: for ever.")]
    expiry_left_ms: Annotated[int | None, Doc("Until it expires; null while it is connected, or if it never does.")]
    wait_reason: Annotated[str, Doc("Why it does not get what it lags behind; empty if it lags behind nothing.")]


class MqttSubscription(Answer):
    client_id: str
    filter: Annotated[str, Doc("Of a shared subscription `$share/GROUP/FILTER`.")]
    qos: int
    identifier: Annotated[int | None, Doc("The subscription identifier of 5.0.")]
    is_no_local: bool
    is_retain_as_published: bool
    replay_from: Annotated[str, Doc("Where the client asked for history to begin; empty if it did not.")]
    is_open: Annotated[bool, Doc("False: unsubscribed, and messages from before are still sent.")]


class MqttReaderPosition(Answer):
    """How far a session has read one shard."""

    topic: str
    shard: int
    replay: Annotated[int, Doc("0, or the number of a replay, which reads by itself until it has caught up.")]
    position: Annotated[int, Doc("Everything below is sent, in flight, or does not match.")]
    next: Annotated[int, Doc("Offset of the next message of the shard.")]
    lag_messages: int
    lag_bytes: int
    lag_age_ms: int | None


class MqttInFlight(Answer):
    packet_id: int
    qos: int
    state: Annotated[str, Doc("`sent`, or `released`: PUBREC came, PUBCOMP is due.")]
    topic: str
    shard: int
    offset: int
    filter: Annotated[str, Doc("Of the subscription that it was sent for; empty for a retained message.")]


class MqttWill(Answer):
    topic: str
    bytes: int
    qos: int
    is_retained: bool
    delay_s: int


class MqttSharedGroup(Answer):
    """A shared subscription of which the session is a member."""

    group: str
    members: int
    lag_messages: int


class MqttSessionDetails(MqttSessionSummary):
    connected_ms: Annotated[int | None, Doc("For how long it is connected.")]
    received: Annotated[int, Doc("Messages of QoS 2 from the client whose PUBREL is due.")]
    subscription_list: Annotated[list[MqttSubscription], Doc("The first ones.")]
    positions: list[MqttReaderPosition]
    in_flight_list: Annotated[list[MqttInFlight], Doc("The oldest ones.")]
    will: MqttWill | None
    shared_groups: list[MqttSharedGroup]
    member_ids: Annotated[list[str], Doc("Client ids of a shared subscription; the first ones.")]


class KickedMqttClient(Answer):
    client_id: str
    was_connected: bool
    is_session_deleted: bool


class MqttTopicSummary(Answer):
    """A topic that had messages since the broker started, or has a retained one."""

    topic: str
    messages: Annotated[int, Doc("Since the broker started.")]
    last_ms: Annotated[int, Doc("When the last one was stored, milliseconds since 1970.")]
    is_retained: Annotated[bool, Doc("Whether it has a retained message.")]
    stored_in: Annotated[str, Doc("The topic of the broker that its messages go to.")]
    shard: int
    offset: Annotated[int | None, Doc("Of the last message; null if that was not stored.")]
    payload: Annotated[str | None, Doc("Of the last message, its first characters as text; null unless asked for.")]


class MqttRetainedMessage(Answer):
    topic: str
    bytes: Annotated[int, Doc("Of its payload.")]
    qos: int
    stored_ms: Annotated[int, Doc("When it was stored, milliseconds since 1970.")]
    publisher: Annotated[str, Doc("The client id.")]
    stored_in: str
    shard: int
    offset: int
    payload: Annotated[str | None, Doc("Its first characters as text; null unless asked for.")]


class ClearedMqttRetained(Answer):
    cleared: Annotated[int, Doc("Topics whose retained message was cleared.")]


class MqttRouteShard(Answer):
    shard: int
    earliest: Annotated[int, Doc("The oldest offset that the log has.")]
    next: int


class MqttRoute(Answer):
    """Messages of a filter, from a minimum QoS on, are stored in a topic. The first route that matches counts."""

    filter: str
    min_qos: int
    topic: str
    table: Annotated[
        list[str] | None, Doc("The name of its table in the embedded catalog, by levels; null before its first commit.")
    ]
    shards: Annotated[list[MqttRouteShard], Doc("Empty until the first client has connected.")]


PAGE_MQTT_SESSIONS: Final = AdminCall("page_mqtt_sessions", PageMqttSessions, Listing[MqttSessionSummary])
INSPECT_MQTT_SESSION: Final = AdminCall("inspect_mqtt_session", MqttClientOnly, MqttSessionDetails)
KICK_MQTT_CLIENT: Final = AdminCall("kick_mqtt_client", KickMqttClient, KickedMqttClient)
PAGE_MQTT_SUBSCRIPTIONS: Final = AdminCall("page_mqtt_subscriptions", PageMqttSubscriptions, Listing[MqttSubscription])
PAGE_MQTT_TOPICS: Final = AdminCall("page_mqtt_topics", PageMqttTopics, Listing[MqttTopicSummary])
PAGE_MQTT_RETAINED: Final = AdminCall("page_mqtt_retained", PageMqttRetained, Listing[MqttRetainedMessage])
CLEAR_MQTT_RETAINED: Final = AdminCall("clear_mqtt_retained", ClearMqttRetained, ClearedMqttRetained)
PAGE_MQTT_ROUTES: Final = AdminCall("page_mqtt_routes", PageRequest, Listing[MqttRoute])
