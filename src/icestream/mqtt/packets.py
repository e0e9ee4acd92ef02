"""The packets of MQTT 3.1.1 and 5.0, as values. codec.py encodes and decodes them.

A packet of 3.1.1 is the same value without properties and with the reason codes of 5.0 in their place: CONNACK's return
codes are translated by the codec where they are written, and are raw where they are read by a client.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties
from icestream.mqtt.reason_codes import ReasonCode


class Will(msgspec.Struct, frozen=True):
    """The message that the broker publishes when its client is lost."""

    topic: str
    payload: bytes
    qos: int = 0
    is_retained: bool = False
    properties: Properties = NO_PROPERTIES


class ConnectPacket(msgspec.Struct, frozen=True):
    """`user_name` and `password`: None if the packet has none; empty is a value."""

    client_id: str
    version: ProtocolVersion = ProtocolVersion.V5
    is_clean_start: bool = True
    keep_alive_seconds: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES


class ConnackPacket(msgspec.Struct, frozen=True):
    reason_code: int = ReasonCode.SUCCESS
    is_session_present: bool = False
    properties: Properties = NO_PROPERTIES


class PublishPacket(msgspec.Struct, frozen=True):
    """`topic` is empty where an alias stands for it. `packet_id` is 0 for QoS 0."""

    topic: str
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    is_retained: bool = False
    is_duplicate: bool = False
    properties: Properties = NO_PROPERTIES


class _Acknowledgement(msgspec.Struct, frozen=True):
    packet_id: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubackPacket(_Acknowledgement, frozen=True):
    """Ends a QoS 1 flow."""


class PubrecPacket(_Acknowledgement, frozen=True):
    """The receiver owns a QoS 2 message, or refused it (a failure ends the flow)."""


class PubrelPacket(_Acknowledgement, frozen=True):
    """The sender has discarded a QoS 2 message."""


class PubcompPacket(_Acknowledgement, frozen=True):
    """Ends a QoS 2 flow."""


class SubscriptionRequest(msgspec.Struct, frozen=True):
    """A filter of SUBSCRIBE with its options; 3.1.1 has only `qos`. `retain_handling`: 0 send, 1 if new, 2 never."""

    filter: str
    qos: int = 0
    is_no_local: bool = False
    is_retain_as_published: bool = False
    retain_handling: int = 0


class SubscribePacket(msgspec.Struct, frozen=True):
    packet_id: int
    subscriptions: tuple[SubscriptionRequest, ...]
    properties: Properties = NO_PROPERTIES


class SubackPacket(msgspec.Struct, frozen=True):
    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class UnsubscribePacket(msgspec.Struct, frozen=True):
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class UnsubackPacket(msgspec.Struct, frozen=True):
    """`reason_codes` is empty in 3.1.1."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


class PingreqPacket(msgspec.Struct, frozen=True):
    pass


class PingrespPacket(msgspec.Struct, frozen=True):
    pass


class DisconnectPacket(msgspec.Struct, frozen=True):
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class AuthPacket(msgspec.Struct, frozen=True):
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Acknowledgement: TypeAlias = PubackPacket | PubrecPacket | PubrelPacket | PubcompPacket
Packet: TypeAlias = (
    ConnectPacket
    | ConnackPacket
    | PublishPacket
    | Acknowledgement
    | SubscribePacket
    | SubackPacket
    | UnsubscribePacket
    | UnsubackPacket
    | PingreqPacket
    | PingrespPacket
    | DisconnectPacket
    | AuthPacket
)
