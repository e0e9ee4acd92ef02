"""The data types of MQTT (section 1.5): numbers, variable byte integers, UTF-8 texts and binary data.

two, four bytes          big-endian
variable byte integer    7 bits a byte, the lowest first; bit 7: more follow; at most 4 bytes, and in 5.0 the fewest
                         that hold the value (MQTT-1.5.5-1)
text                     length in two bytes, then UTF-8 without surrogates and U+0000 (MQTT-1.5.4-1, -2)
binary                   length in two bytes, then the bytes
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.mqtt.reason_codes import ReasonCode

VARIABLE_INTEGER_MAX: Final = 268_435_455


def malformed(message: str) -> errors.PacketRefused:
    """The error for bytes that are no packet."""
    return errors.PacketRefused(message, reason_code=ReasonCode.MALFORMED_PACKET)


class Cursor:
    """Reads values of `data` up to `end`, which never lies behind the packet. Every read raises PacketRefused."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    def is_at_end(self) -> bool:
        return self.position >= self.end

    def byte(self) -> int:
        position = self.position
        if position >= self.end:
            raise malformed("the packet ends inside a byte field")
        self.position = position + 1
        return self.data[position]

    def two_bytes(self) -> int:
        position = self.position
        if position + 2 > self.end:
            raise malformed("the packet ends inside a two byte integer")
        self.position = position + 2
        return self.data[position] << 8 | self.data[position + 1]

    def four_bytes(self) -> int:
        return int.from_bytes(self._take(4, "a four byte integer"), "big")

    def variable_integer(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise malformed("a variable byte integer has more bytes than its value needs")
                return value
        raise malformed("a variable byte integer has more than four bytes")

    def text(self) -> str:
        data = self._take(self.two_bytes(), "a text")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise malformed(f"a text is not valid UTF-8: {error.reason} at byte {error.start}") from None
        if "\0" in text:
            raise malformed("a text contains U+0000")
        return text

    def binary(self) -> bytes:
        return self._take(self.two_bytes(), "binary data")

    def rest(self) -> bytes:
        data = self.data[self.position : self.end]
        self.position = self.end
        return data

    def _take(self, count: int, field: str) -> bytes:
        position = self.position
        end = position + count
        if end > self.end:
            raise malformed(f"{field} declares {count} bytes, {self.end - position} are left")
        self.position = end
        return self.data[position:end]


def variable_integer_bytes(value: int) -> bytes:
    """Raises PacketRefused for a value that four bytes do not hold."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= VARIABLE_INTEGER_MAX:
        raise errors.PacketRefused(
            f"{value} does not fit a variable byte integer", reason_code=ReasonCode.PACKET_TOO_LARGE
        )
    encoded = bytearray()
    while True:
        value, byte = value >> 7, value & 0x7F
        if not value:
            encoded.append(byte)
            return bytes(encoded)
        encoded.append(byte | 0x80)


def text_bytes(text: str) -> bytes:
    """Raises PacketRefused for a text that has no encoding."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise malformed(f"a text has no UTF-8 encoding: {error.reason}") from None
    if "\0" in text:
        raise malformed("a text contains U+0000")
    return binary_bytes(data)


def binary_bytes(data: bytes) -> bytes:
    """Raises PacketRefused for more than 65,535 bytes."""
    if len(data) > 0xFFFF:
        raise malformed(f"a field has {len(data)} bytes, the most are 65535")
    return len(data).to_bytes(2, "big") + data
