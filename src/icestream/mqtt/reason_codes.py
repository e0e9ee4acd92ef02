"""The reason codes of MQTT 5.0, which of them each packet may carry, and their return codes in 3.1.1.

Codes from 0x80 on are failures. A packet with a code that its type does not have is a protocol error.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ReasonCode(IntEnum):
    """A reason code of 5.0. 0x00 to 0x02 are named after PUBACK; SUBACK reads them as the granted QoS."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_INVALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


# The first code that is a failure.
FAILURE: Final = 0x80

CONNACK_CODES: Final = frozenset(
    (0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
     0x9C, 0x9D, 0x9F)
)  # fmt: skip
PUBACK_CODES: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
PUBREL_CODES: Final = frozenset((0x00, 0x92))
SUBACK_CODES: Final = frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
UNSUBACK_CODES: Final = frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
DISCONNECT_CODES: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
     0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2)
)  # fmt: skip
# What a client may say when it leaves; the others are the server's.
CLIENT_DISCONNECT_CODES: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)
AUTH_CODES: Final = frozenset((0x00, 0x18, 0x19))

# 3.1.1: the return codes of CONNACK, and of SUBACK.
CONNACK_RETURN_CODES: Final = frozenset(range(6))
SUBACK_RETURN_CODES: Final = frozenset((0x00, 0x01, 0x02, 0x80))
_RETURN_CODES: Final = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_INVALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}

# Where a packet may not carry a code, it carries the next one that it may; at last 0x80, which all of them have.
_NEAREST: Final = {
    ReasonCode.PROTOCOL_ERROR: ReasonCode.UNSPECIFIED_ERROR,
    ReasonCode.IMPLEMENTATION_ERROR: ReasonCode.UNSPECIFIED_ERROR,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ReasonCode.PROTOCOL_ERROR,  # of a second CONNECT
    ReasonCode.CLIENT_IDENTIFIER_INVALID: ReasonCode.PROTOCOL_ERROR,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.NOT_AUTHORIZED,  # of a credential that ended
    ReasonCode.BANNED: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_BUSY,
    ReasonCode.SERVER_BUSY: ReasonCode.IMPLEMENTATION_ERROR,  # valid, and not accepted
    ReasonCode.SERVER_SHUTTING_DOWN: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SESSION_TAKEN_OVER: ReasonCode.SERVER_BUSY,
    ReasonCode.ADMINISTRATIVE_ACTION: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.TOPIC_FILTER_INVALID: ReasonCode.IMPLEMENTATION_ERROR,
    ReasonCode.TOPIC_NAME_INVALID: ReasonCode.IMPLEMENTATION_ERROR,
    ReasonCode.PACKET_TOO_LARGE: ReasonCode.IMPLEMENTATION_ERROR,
    ReasonCode.MESSAGE_RATE_TOO_HIGH: ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.QUOTA_EXCEEDED: ReasonCode.IMPLEMENTATION_ERROR,
    ReasonCode.PAYLOAD_FORMAT_INVALID: ReasonCode.IMPLEMENTATION_ERROR,
    ReasonCode.USE_ANOTHER_SERVER: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_MOVED: ReasonCode.SERVER_UNAVAILABLE,
}


def nearest_reason(reason: int, codes: frozenset[int]) -> int:
    """The reason if it is one of `codes` (those of a packet, with 0x80), else the nearest of them."""
    assert ReasonCode.UNSPECIFIED_ERROR in codes, "every way ends there"
    while reason not in codes:
        reason = _NEAREST.get(ReasonCode(reason), ReasonCode.UNSPECIFIED_ERROR)
    return reason


def connack_return_code(reason: int) -> int:
    """The return code of 3.1.1 for a reason of CONNACK; 3, server unavailable, for those that 3.1.1 has no code for."""
    return _RETURN_CODES.get(ReasonCode(reason), 3)


def reason_name(reason: int) -> str:
    """The words of a reason code, for logs and reason strings."""
    try:
        return ReasonCode(reason).name.lower().replace("_", " ")
    except ValueError:
        return "unknown reason"
