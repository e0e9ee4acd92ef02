"""Whole numbers with a unit: how a setting is read, bounded, explained and shown.

A number in a settings file is a count of the key's own unit; a text names its unit: `64MiB`, `64MB`, `100ms`, `1.5s`.
A `Quantity` stands in the annotation of a field and is the only place that knows all four, so that the error message,
the reference and the parser can never disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

# Whatever a setting counts, it has to fit a signed 64-bit integer on its way into files and metrics.
NUMBER_MAX: Final = 2**63 - 1

# Bytes per unit. Binary units first: where both fit, they are what an operator of disks and memory expects to read.
SIZE_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
# Microseconds per unit.
DURATION_UNITS: Final[Mapping[str, int]] = {
    "us": 1,
    "ms": 1000,
    "s": 1000**2,
    "m": 60 * 1000**2,
    "h": 3600 * 1000**2,
    "d": 24 * 3600 * 1000**2,
}

# ASCII digits only, and few of them: `int` also takes other alphabets, and needs quadratic time for long texts.
_TEXT = re.compile(r"(?P<whole>[0-9]{1,20})(?:\.(?P<part>[0-9]{1,9}))? ?(?P<unit>[A-Za-z]*)", re.ASCII)


@dataclass(frozen=True, eq=False)
class Quantity:
    """A whole number of `unit` between two bounds. Made by `size`, `duration` and `count`."""

    noun: str
    unit: str
    units: Mapping[str, int]
    minimum: int
    maximum: int

    @property
    def allowed(self) -> str:
        if self.maximum == NUMBER_MAX:
            bounds = f"of at least {self.show(self.minimum)}"
        else:
            bounds = f"from {self.show(self.minimum)} to {self.show(self.maximum)}"
        return f"{self.noun} {bounds}"

    def read(self, value: object) -> int:
        """The number in the key's own unit, or a ValueError whose text says what is allowed."""
        number = self._parse(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"must be {self.allowed}")  # noqa: TRY004 pydantic collects ValueError, not TypeError
        if not self.minimum <= number <= self.maximum:
            raise ValueError(f"must be {self.allowed}")
        return number

    def show(self, number: int) -> str:
        """The shortest text that `read` turns back into exactly this number."""
        if not self.units:
            return str(number)
        smallest = number * self.units[self.unit]
        texts = [f"{smallest // factor}{name}" for name, factor in self.units.items() if smallest % factor == 0]
        return f"0{self.unit}" if number == 0 else min(texts, key=lambda text: len(text.rstrip("BKMGTiusmhd")))

    def _parse(self, text: str) -> int:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"must be {self.allowed}")
        factor = self._factor(match["unit"])
        part = match["part"] or ""
        scale: int = 10 ** len(part)
        smallest, rest = divmod(int(match["whole"] + part) * factor, scale)
        number, rest_of_unit = divmod(smallest, self.units.get(self.unit, 1))
        if rest or rest_of_unit:
            raise ValueError(f"must be {self.allowed}; {text!r} is not a whole number of {self.unit or 'ones'}")
        return number

    def _factor(self, unit: str) -> int:
        if unit in ("", self.unit):
            return self.units.get(self.unit, 1)
        # `64mb` is unambiguous: a size is never bits or megametres. But `M` in a duration could be minutes or months.
        names = {name.lower(): name for name in self.units} if self.units is SIZE_UNITS else {}
        name = names.get(unit.lower(), unit)
        if name not in self.units:
            known_units = f"; known units: {', '.join(self.units)}" if self.units else ""
            raise ValueError(f"must be {self.allowed}; {unit!r} is not a unit of it{known_units}")
        return self.units[name]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


def size(minimum: int = 0, maximum: int = NUMBER_MAX) -> Quantity:
    """Bytes; as text also `64MiB` (binary) or `64MB` (decimal)."""
    return Quantity("a size", "B", SIZE_UNITS, minimum, maximum)


def duration(unit: str, minimum: int = 0, maximum: int = NUMBER_MAX) -> Quantity:
    """A number of `unit`, which the key's name must contain (`sync_interval_ms`); as text also `100ms`, `5s`, `2m`."""
    return Quantity("a duration", unit, DURATION_UNITS, minimum, maximum)


def count(minimum: int = 0, maximum: int = NUMBER_MAX) -> Quantity:
    """A plain number of things."""
    return Quantity("a whole number", "", {}, minimum, maximum)
