"""The packet types of MQTT and the bits that their fixed header must have."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class PacketType(IntEnum):
    """The upper four bits of the first byte. WILL is the part of CONNECT with properties of its own."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ProtocolVersion(IntEnum):
    """The protocol level of CONNECT."""

    V3_1_1 = 4
    V5 = 5


# The lower four bits of every type but PUBLISH (MQTT-2.1.3-1).
FLAGS: Final[dict[PacketType, int]] = {
    packet: 2 if packet in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else 0
    for packet in PacketType
    if packet is not PacketType.PUBLISH
}
