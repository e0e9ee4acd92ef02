"""The digest of a set of rows (docs/adr/0064): a count, and two sums of a hash of each row, mod 2^64.

    text    1:<rows>:<first sum, 16 hexadecimal digits><second sum, 16 hexadecimal digits>

It belongs to the rows alone: not to their order, nor to the files that they are in. So the digests of disjoint sets add
up, and the digest of a part can be subtracted. readers/row_hashes.py computes it; ingest writes it into the footer of
each data file from the bytes of the log, and a rewrite is committed only if its digests agree.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from icestream import errors

# The key of a data file's digest in the metadata of its Parquet footer.
FOOTER_KEY: Final = b"icestream.rows"
_VERSION: Final = "1"
_TEXT: Final = re.compile(r"1:([0-9]{1,19}):([0-9a-f]{16})([0-9a-f]{16})", re.ASCII)
_MASK: Final = 2**64 - 1


class RowDigest(NamedTuple):
    """The digest of some rows. The empty set has zeros."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def plus(self, other: RowDigest) -> RowDigest:
        """The digest of both sets of rows together; a row that is in both counts twice."""
        return RowDigest(
            self.rows + other.rows, (self.first + other.first) & _MASK, (self.second + other.second) & _MASK
        )

    def minus(self, part: RowDigest) -> RowDigest:
        """The digest of the rows that are not in `part`, which is a part of them."""
        return RowDigest(self.rows - part.rows, (self.first - part.first) & _MASK, (self.second - part.second) & _MASK)

    @property
    def text(self) -> str:
        return f"{_VERSION}:{self.rows}:{self.first:016x}{self.second:016x}"


def sum_of(digests: Iterable[RowDigest]) -> RowDigest:
    total = RowDigest()
    for digest in digests:
        total = total.plus(digest)
    return total


def parse_digest(text: str) -> RowDigest:
    """Raises InvalidInput for another form, such as that of a later version."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise errors.InvalidInput(
            f"{reprlib.repr(text)} is not a digest of rows", hint=f"this release reads version {_VERSION}"
        )
    return RowDigest(int(match[1]), int(match[2], 16), int(match[3], 16))
