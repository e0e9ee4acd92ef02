"""Ways to damage a log that is a Picture: a flipped bit, a file that is cut or gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from icestream.runtime.simulated_disk import SimulatedDisk
from tests.support.small_log import Picture, Place


@dataclass(frozen=True)
class Flip:
    file: str
    bit: int

    def do(self, disk: SimulatedDisk) -> None:
        disk.flip(self.file, self.bit)

    def hits(self, place: Place) -> bool:
        """Whether a section cannot be read any more."""
        return self.file == place.file and (self.bit >> 3 in place.entry or self.bit >> 3 in place.body)


@dataclass(frozen=True)
class Cut:
    file: str
    size: int

    def do(self, disk: SimulatedDisk) -> None:
        disk.replace(self.file, disk.content(self.file)[: self.size])

    def hits(self, place: Place) -> bool:
        return self.file == place.file and self.size < place.body.stop


@dataclass(frozen=True)
class Gone:
    file: str

    def do(self, disk: SimulatedDisk) -> None:
        disk.remove(self.file)
        disk.sync()

    def hits(self, place: Place) -> bool:
        return self.file == place.file


Damage = Flip | Cut | Gone


def flips(picture: Picture, file: str, where: range, *, every_bit: bool = False) -> Iterator[Flip]:
    """In these bytes: every bit, or one in each byte."""
    for byte in where:
        if byte < len(picture.files[file]):
            for bit in range(8) if every_bit else (byte % 8,):
                yield Flip(file, 8 * byte + bit)
