"""Lays out a table within the width of a terminal. Pure.

    it fits               printed unchanged
    it is wider           cells use their short form, if any, and sentences wrap between words
    it is still wider     columns are omitted: first those in `drop`, then from the right
    the first column      is never omitted, nor are those in `keep`: a listing needs the names of what it lists
    what stays is wider   a cell of `keep` that is too long extends beyond its column, and beyond the terminal
    sentences at the end  keep their column; a long word in them, such as a path, may extend beyond the terminal

A word is never split: names, ids and paths can be copied from any table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

GAP: Final = "  "
# A narrower column would wrap a sentence after every word.
SENTENCE_CHARACTERS_MIN: Final = 16


class Column(NamedTuple):
    """A heading and its cells as texts. `shorts` are the texts of the same cells for a narrow terminal."""

    heading: str
    texts: Sequence[str]
    shorts: Sequence[str]
    is_number: bool


class Layout(NamedTuple):
    """The lines to print, and the headings of the omitted columns."""

    heading: list[str]
    lines: list[str]
    omitted: list[str]


def lay_out(columns: Sequence[Column], width: int | None, drop: Sequence[str] = (), keep: Sequence[str] = ()) -> Layout:
    """The layout for a line of `width` characters (None: unlimited). `drop`: headings in the order in which they are
    omitted. `keep`: headings that are never omitted, besides the first."""
    natural_widths = [_natural_width(column) for column in columns]
    if width is None or _total_width(natural_widths) <= width:
        return _draw(columns, natural_widths, [])
    remaining = [column._replace(texts=column.shorts) for column in columns]
    order = [*drop, *(column.heading for column in reversed(columns[1:]) if column.heading not in (*drop, *keep))]
    omitted: list[str] = []
    while _total_width(_min_widths(remaining, keep)) > width and order:
        heading = order.pop(0)
        if any(column.heading == heading for column in remaining[1:]):
            remaining = [remaining[0], *(column for column in remaining[1:] if column.heading != heading)]
            omitted.append(heading)
    widths = _distribute(_min_widths(remaining, keep), [_natural_width(column) for column in remaining], width)
    return _draw(remaining, widths, omitted)


def wrap_words(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; a longer word is not split. At least one line."""
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _natural_width(column: Column) -> int:
    """The width at which no cell wraps."""
    return max(map(len, (column.heading, *column.texts)))


def _min_widths(columns: Sequence[Column], keep: Sequence[str]) -> list[int]:
    min_widths = [*map(_min_width, columns[:-1]), *map(_min_width_at_end, columns[-1:])]
    return [
        _min_width_in_keep(column, width) if number > 0 and column.heading in keep else width
        for number, (column, width) in enumerate(zip(columns, min_widths, strict=True))
    ]


def _min_width(column: Column) -> int:
    """The width below which a word would be split."""
    words = [word for text in (column.heading, *column.texts) for word in text.split()]
    return max([*map(len, words), _min_sentence_width(column)])


def _min_width_at_end(column: Column) -> int:
    # A long word in the last column pushes no other column aside, so it does not widen the column.
    return max(_min_sentence_width(column), len(column.heading)) if _has_sentences(column) else _min_width(column)


def _min_width_in_keep(column: Column, min_width: int) -> int:
    # Long cells may extend beyond a column of `keep`: one long path must not force out the other columns.
    return max(len(column.heading), min(min_width, SENTENCE_CHARACTERS_MIN))


def _min_sentence_width(column: Column) -> int:
    return min(_natural_width(column), SENTENCE_CHARACTERS_MIN) if _has_sentences(column) else 0


def _has_sentences(column: Column) -> bool:
    return any(" " in text for text in column.texts)


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _distribute(min_widths: list[int], natural_widths: list[int], width: int) -> list[int]:
    """The minimum widths plus the remaining width, distributed evenly; no column gets more than its natural width."""
    widths, rest = list(min_widths), max(width - _total_width(min_widths), 0)
    shortages = sorted(
        (natural - minimum, index)
        for index, (natural, minimum) in enumerate(zip(natural_widths, min_widths, strict=True))
        if natural > minimum
    )
    while shortages:
        shortage, index = shortages.pop(0)
        granted = min(shortage, rest // (len(shortages) + 1))
        widths[index] += granted
        rest -= granted
    return widths


def _draw(columns: Sequence[Column], widths: Sequence[int], omitted: list[str]) -> Layout:
    def row(texts: Sequence[str]) -> list[str]:
        cells = [
            wrap_words(text, wide) if len(text) > wide else [text] for text, wide in zip(texts, widths, strict=True)
        ]
        lines = []
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            lines.append(GAP.join(map(_align, parts, columns, widths)).rstrip())
        return lines

    rows = zip(*(column.texts for column in columns), strict=True)
    lines = [line for texts in rows for line in row(texts)]
    return Layout(row([column.heading for column in columns]), lines, omitted)


def _align(text: str, column: Column, width: int) -> str:
    return text.rjust(width) if column.is_number else text.ljust(width)
