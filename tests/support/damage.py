"""Ways to damage a log that is a Picture: a flipped bit, a file that is cut or gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from icestream.runtime.simulated_disk import SimulatedDisk
from tests.support.small_log import LogImage, SectionPlace


@dataclass(frozen=True)
class FlippedBit:
    file: str
    bit: int

    def do(self, disk: SimulatedDisk) -> None:
        disk.flip(self.file, self.bit)

    def hits(self, place: SectionPlace) -> bool:
        """True if the damage makes the section unreadable."""
        return self.file == place.file and (self.bit >> 3 in place.entry or self.bit >> 3 in place.body)


@dataclass(frozen=True)
class TruncatedFile:
    file: str
    size: int

    def do(self, disk: SimulatedDisk) -> None:
        disk.replace(self.file, disk.content(self.file)[: self.size])

    def hits(self, place: SectionPlace) -> bool:
        return self.file == place.file and self.size < place.body.stop


@dataclass(frozen=True)
class MissingFile:
    file: str

    def do(self, disk: SimulatedDisk) -> None:
        disk.remove(self.file)
        disk.sync()

    def hits(self, place: SectionPlace) -> bool:
        return self.file == place.file


Damage = FlippedBit | TruncatedFile | MissingFile


def flips(picture: LogImage, file: str, where: range, *, every_bit: bool = False) -> Iterator[FlippedBit]:
    """In these bytes: every bit, or one in each byte."""
    for byte in where:
        if byte < len(picture.files[file]):
            for bit in range(8) if every_bit else (byte % 8,):
                yield FlippedBit(file, 8 * byte + bit)
