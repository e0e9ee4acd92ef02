"""The message expiry interval of MQTT messages, from their properties as they were sent (the column `wire`).

A list of properties (mqtt/properties.py) is a length and then entries of different sizes, so the place of the interval
is known only after all entries before it. All rows go from entry to entry together, with numpy: as many steps as the
longest list has entries. A row whose list is not valid has no interval: the row itself is not refused, because it was
acked.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import errors
from icestream.mqtt.packet_type import PacketType
from icestream.mqtt.properties import RULES, PropertyId, decode_properties
from icestream.mqtt.wire_values import Cursor

Ints = NDArray[np.int64]
_FIXED_BYTES: Final = {"BYTE": 1, "TWO_BYTES": 2, "FOUR_BYTES": 4}
_TEXTS: Final = {"TEXT": 1, "BINARY": 1, "TEXT_PAIR": 2}  # texts and binary data: a length of two bytes, then so many
# Lists with more entries are decoded one by one: a few messages with hundreds of user properties.
_STEPS_MAX: Final = 64


def _size_tables() -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """By identifier: the bytes of a value of fixed size (-1: not fixed), the number of texts, and whether its value is
    a variable byte integer."""
    fixed, texts, is_variable = np.full(256, -1, np.int64), np.zeros(256, np.int64), np.zeros(256, np.bool_)
    for identifier, rule in RULES.items():
        if PacketType.PUBLISH in rule.packets:
            fixed[identifier] = _FIXED_BYTES.get(rule.kind.name, -1)
            texts[identifier] = _TEXTS.get(rule.kind.name, 0)
            is_variable[identifier] = rule.kind.name == "VARIABLE"
    return fixed, texts, is_variable


_FIXED, _TEXT_COUNTS, _IS_VARIABLE = _size_tables()


def message_expiry(wire: Any) -> Any:
    """The interval in seconds of each row, as an Arrow array with nulls; None if no row has one. `wire`: Arrow binary,
    maybe in chunks; None: no row has properties."""
    if wire is None:
        return None
    binary = wire.combine_chunks() if isinstance(wire, pa.ChunkedArray) else wire
    binary = pc.fill_null(binary, b"")
    ends = np.frombuffer(binary.buffers()[1], np.int32)[binary.offset : binary.offset + len(binary) + 1].astype(
        np.int64
    )
    content = binary.buffers()[2]
    if content is None or not len(binary) or ends[-1] == ends[0]:
        return None
    seconds = _Lists(np.frombuffer(content, np.uint8), ends[:-1], ends[1:]).expiry()
    return None if (seconds < 0).all() else pa.array(seconds, pa.int64(), mask=seconds < 0)


class _Lists:
    """The lists of all rows: bytes, and where each begins and ends."""

    def __init__(self, data: NDArray[np.uint8], start: Ints, end: Ints) -> None:
        self._data = data
        self._start = start
        self._end = end

    def expiry(self) -> Ints:
        """Seconds of each row; -1 if it has none."""
        seconds = np.full(len(self._start), -1, np.int64)
        rows = np.flatnonzero(self._start < self._end)
        length, at = self._variable_integer(rows, self._start[rows])
        is_valid = (at > 0) & (at + length == self._end[rows])
        rows, at = rows[is_valid], at[is_valid]
        for _ in range(_STEPS_MAX):
            is_inside = at < self._end[rows]
            rows, at = rows[is_inside], at[is_inside]
            if not len(rows):
                return seconds
            identifier, at = self._byte(at), at + 1
            is_expiry = (identifier == PropertyId.MESSAGE_EXPIRY_INTERVAL) & (at + 4 <= self._end[rows])
            seconds[rows[is_expiry]] = self._four_bytes(at[is_expiry])
            at = np.where(is_expiry, -1, self._behind_value(rows, identifier, at))
            rows, at = rows[at > 0], at[at > 0]
        for row in rows.tolist():
            seconds[row] = self._decoded(row)
        return seconds

    def _decoded(self, row: int) -> int:
        data = self._data[self._start[row] : self._end[row]].tobytes()
        try:
            properties = decode_properties(Cursor(data), PacketType.PUBLISH)
        except errors.PacketRefused:
            return -1
        interval = properties.number(PropertyId.MESSAGE_EXPIRY_INTERVAL)
        return -1 if interval is None else interval

    def _behind_value(self, rows: Ints, identifier: Ints, at: Ints) -> Ints:
        """Where the next entry of each row begins; -1 if its list is not valid."""
        behind = np.where(_FIXED[identifier] > 0, at + _FIXED[identifier], -1)
        for text in range(2):
            is_text = _TEXT_COUNTS[identifier] > text
            begin = at if text == 0 else behind
            behind = np.where(is_text & (begin >= 0), begin + 2 + self._two_bytes(np.maximum(begin, 0)), behind)
        is_variable = _IS_VARIABLE[identifier]
        if is_variable.any():
            behind[is_variable] = self._variable_integer(rows[is_variable], at[is_variable])[1]
        return np.where(behind <= self._end[rows], behind, -1)

    def _variable_integer(self, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """The values, and where what follows begins; -1 if there is none."""
        value, behind = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
        is_open = np.ones(len(rows), np.bool_)
        for number in range(4):
            byte = self._byte(at + number)
            value = np.where(is_open, value | (byte & 0x7F) << 7 * number, value)
            behind = np.where(is_open & (byte < 0x80), at + number + 1, behind)
            is_open &= byte >= 0x80
        return value, np.where(behind <= self._end[rows], behind, -1)

    def _byte(self, at: Ints) -> Ints:
        # Clipped: behind the end of the bytes anything may stand, because such a list is found to be too short.
        values: Ints = self._data[np.minimum(at, len(self._data) - 1)].astype(np.int64)
        return values

    def _two_bytes(self, at: Ints) -> Ints:
        return self._byte(at) << 8 | self._byte(at + 1)

    def _four_bytes(self, at: Ints) -> Ints:
        return self._two_bytes(at) << 16 | self._two_bytes(at + 2)
