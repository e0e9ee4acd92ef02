"""Numbers and nouns as text for display; never parsed by a program."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count} {plural(count, noun)}"


def plural(count: int, noun: str) -> str:
    """The noun in the form that fits the number."""
    return noun if count == 1 else f"{noun}s"


def are(count: int) -> str:
    """`1 row is`, `2 rows are`."""
    return "is" if count == 1 else "are"


def were(count: int) -> str:
    """`1 row was`, `2 rows were`."""
    return "was" if count == 1 else "were"


def size_text(size_bytes: int) -> str:
    """`62.0 KiB`; programs get the bytes."""
    size = float(size_bytes)
    unit, *larger = ("B", "KiB", "MiB", "GiB", "TiB")
    while size >= 1024 and larger:
        size, unit = size / 1024, larger.pop(0)
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def duration_text(milliseconds: int) -> str:
    """`0.4 s`, `35 s`, `12 min`, `3.5 h`, `2.1 d`; programs get the milliseconds."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.1f} d"


def escaped(text: str) -> str:
    """The text with escapes for characters that are not printable: `\\x1b`, `\\n`."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
