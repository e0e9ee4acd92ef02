"""A table within the width of a terminal. Pure.

    it fits               as it is
    it is wider           cells take their short form, where they have one, and sentences wrap between words
    it is still wider     columns are left out: those that the command names first, then from the right
    the first column      always stays, and so do those that the command keeps: a listing without what it lists is none
    what stays is wider   a kept cell that is too long reaches beyond its column, and beyond the terminal
    sentences at the end  keep their column; a long word in them, such as a path, may reach beyond the terminal

A word is never split: names, ids and paths can be copied from any table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

GAP: Final = "  "
# Narrower than this a sentence is a tower of words.
SENTENCE_CHARACTERS_MIN: Final = 16


class Column(NamedTuple):
    """A heading and its cells as texts. `shorts`: the same cells where there is little room."""

    heading: str
    texts: Sequence[str]
    shorts: Sequence[str]
    is_number: bool


class Layout(NamedTuple):
    """`heading` and `lines` to be printed, and the headings of the columns that are left out."""

    heading: list[str]
    lines: list[str]
    omitted: list[str]


def laid_out(
    columns: Sequence[Column], width: int | None, drop: Sequence[str] = (), keep: Sequence[str] = ()
) -> Layout:
    """`width`: characters of a line, None for any number. `drop`: headings in the order in which they are left out.
    `keep`: headings that are never left out, beside the first one."""
    if width is None or _total([_natural(one) for one in columns]) <= width:
        return _drawn(columns, [_natural(one) for one in columns], [])
    kept = [one._replace(texts=one.shorts) for one in columns]
    order = [*drop, *(one.heading for one in reversed(columns[1:]) if one.heading not in (*drop, *keep))]
    omitted: list[str] = []
    while _total(_leasts(kept, keep)) > width and order:
        heading = order.pop(0)
        if any(one.heading == heading for one in kept[1:]):
            kept = [kept[0], *(one for one in kept[1:] if one.heading != heading)]
            omitted.append(heading)
    return _drawn(kept, _shared(_leasts(kept, keep), [_natural(one) for one in kept], width), omitted)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters where words allow it; at least one."""
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _natural(column: Column) -> int:
    return max(map(len, (column.heading, *column.texts)))


def _leasts(columns: Sequence[Column], keep: Sequence[str]) -> list[int]:
    least = [*map(_least, columns[:-1]), *(_least_at_end(one) for one in columns[-1:])]
    is_kept = [number > 0 and column.heading in keep for number, column in enumerate(columns)]
    return [_least_kept(one, wide) if kept else wide for one, wide, kept in zip(columns, least, is_kept, strict=True)]


def _least(column: Column) -> int:
    """The width below which a word would be split."""
    words = [word for text in (column.heading, *column.texts) for word in text.split()]
    return max([*map(len, words), _least_of_sentences(column)])


def _least_at_end(column: Column) -> int:
    """Nothing stands behind the last column that a long word could push aside."""
    return max(_least_of_sentences(column), len(column.heading)) if _has_sentences(column) else _least(column)


def _least_kept(column: Column, least: int) -> int:
    """Its long cells may reach beyond it: one path must not cost the other columns their room."""
    return max(len(column.heading), min(least, SENTENCE_CHARACTERS_MIN))


def _least_of_sentences(column: Column) -> int:
    return min(_natural(column), SENTENCE_CHARACTERS_MIN) if _has_sentences(column) else 0


def _has_sentences(column: Column) -> bool:
    return any(" " in text for text in column.texts)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shared(least: list[int], natural: list[int], width: int) -> list[int]:
    """The room beyond the least widths, handed out evenly, to none more than it can use."""
    widths, room = list(least), max(width - _total(least), 0)
    wanting = sorted((natural[at] - least[at], at) for at in range(len(least)) if natural[at] > least[at])
    while wanting:
        want, at = wanting.pop(0)
        granted = min(want, room // (len(wanting) + 1))
        widths[at] += granted
        room -= granted
    return widths


def _drawn(columns: Sequence[Column], widths: Sequence[int], omitted: list[str]) -> Layout:
    def row(texts: Sequence[str]) -> list[str]:
        cells = [wrapped(text, wide) if len(text) > wide else [text] for text, wide in zip(texts, widths, strict=True)]
        lines = []
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            lines.append(GAP.join(map(_aligned, parts, columns, widths)).rstrip())
        return lines

    rows = zip(*(column.texts for column in columns), strict=True)
    lines = [line for texts in rows for line in row(texts)]
    return Layout(row([column.heading for column in columns]), lines, omitted)


def _aligned(text: str, column: Column, width: int) -> str:
    return text.rjust(width) if column.is_number else text.ljust(width)
