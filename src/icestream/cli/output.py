"""How commands answer: tables for people at a terminal, plain columns into a pipe, JSON for programs.

A table keeps to the width of its terminal (layout.py).

A command describes its answer once; which of the three it becomes is decided here. Answers go to stdout, everything
else (`say_aside`, errors) to stderr, so that `--output json | jq` always gets exactly one JSON document. An error has
the form that the command was asked for: two sentences, or one line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TextIO

from icestream.cli.layout import GAP, Column, Layout, laid_out, wrapped
from icestream.error_codes import exit_code
from icestream.errors import IcestreamError

EXACT_MAX: Final = 2**53  # beyond it not every whole number is a double
# How snapshots are named in answers, and in Iceberg's metadata.
SNAPSHOT_IDS: Final = frozenset(
    {
        "snapshot",
        "snapshot_id",
        "first_snapshot_id",
        "parent",
        "snapshot-id",
        "parent-snapshot-id",
        "current-snapshot-id",
    }
)
_BOLD: Final = "\x1b[1m"
_NORMAL: Final = "\x1b[0m"
_CLEAR: Final = "\x1b[H\x1b[2J"


class OutputFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"  # a table with every column in full, however long its lines are; --wide says it, too
    JSON = "json"


@dataclass(frozen=True)
class Cell:
    """A value that people read differently from programs: `64MiB` and 67108864. `short`: the text for narrow tables."""

    value: object
    text: str
    short: str | None = None

    def __str__(self) -> str:
        return self.text


class Output:
    """The answer of one command: call exactly one of `table` and `record`, `say` as often as needed."""

    def __init__(self, form: OutputFormat = OutputFormat.TABLE, stream: TextIO | None = None) -> None:
        self._form = form
        # Looked up now, not at import: tests and redirections replace sys.stdout.
        self._stream = stream if stream is not None else sys.stdout

    @property
    def for_people(self) -> bool:
        return self._form is not OutputFormat.JSON

    @property
    def width(self) -> int | None:
        """Characters that a line may have; None: any number, in a pipe and where every column is wanted."""
        if self._form is not OutputFormat.TABLE or not self._stream.isatty():
            return None
        return shutil.get_terminal_size().columns

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        drop: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> None:
        """Rows of equal kind. JSON: a list of objects with the columns as names. `drop`: columns that a narrow terminal
        does without, the first one first; then those at the right go, but none of `keep`."""
        rows = list(rows)
        if not self.for_people:
            self._json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
            return
        layout = table_layout(columns, rows, self.width, drop, keep)
        is_bold = self._stream.isatty() and not os.environ.get("NO_COLOR")
        for line in layout.heading:
            self._line(f"{_BOLD}{line}{_NORMAL}" if is_bold else line)
        for line in layout.lines:
            self._line(line)
        if layout.omitted:
            omitted = f"not shown for want of width: {', '.join(layout.omitted)}; --wide shows all"
            for line in wrapped(omitted, self.width or len(omitted)):
                say_aside(line)

    def record(self, values: Mapping[str, object]) -> None:
        """One thing with named properties. JSON: an object."""
        if not self.for_people:
            self._json({name: _plain(value) for name, value in values.items()})
            return
        indent = max(map(len, values), default=0) + len(GAP)
        for name, value in values.items():
            text = text_of(value)
            lines = [text] if self.width is None else wrapped(text, self.width - indent)
            self._line(f"{name.ljust(indent)}{lines[0]}")
            for line in lines[1:]:
                self._line(" " * indent + line)

    def document(self, document: object) -> None:
        """For programs only, as it is."""
        self._json(document)

    def say(self, text: str) -> None:
        """A sentence for people; programs do not get it. One that names a command is left to the terminal to wrap, so
        that the command can be copied in one piece."""
        if self.for_people:
            is_whole = self.width is None or "`" in text or "\n" in text
            for line in [text] if is_whole else wrapped(text, self.width or len(text)):
                self._line(line)

    def _line(self, text: str) -> None:
        with writing():
            print(text.rstrip(), file=self._stream)

    def _json(self, document: object) -> None:
        with writing():
            print(json.dumps(exact(document), indent=2, ensure_ascii=False, default=str), file=self._stream)


def exact(document: object) -> object:
    """The same without numbers that a reader may round: ids of snapshots are texts, always, and so is whatever does not
    fit a double. Offsets, counts, sizes and times stay numbers."""
    match document:
        case Mapping():
            return {name: _text_id(name, exact(value)) for name, value in document.items()}
        case list() | tuple():
            return [exact(value) for value in document]
        case int() if abs(document) > EXACT_MAX:
            return str(document)
    return document


def _text_id(name: object, value: object) -> object:
    is_id = isinstance(name, str) and name in SNAPSHOT_IDS and type(value) is int
    return str(value) if is_id else value


@contextmanager
def writing() -> Iterator[None]:
    """A disk that is full under the output is said in a sentence. A reader that is gone is another matter (main.py)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise IcestreamError(
            f"the output cannot be written: {error.strerror or error}", hint="where does it go, and is there room?"
        ) from None


def table_layout(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    width: int | None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> Layout:
    """Of rows of values and cells. Raises ValueError for a row of another length, and for a column without a heading:
    nobody could be told that it was left out."""
    if not all(headings):
        raise ValueError(f"a column without a heading: {headings}")
    return laid_out(_columns(headings, rows), width, drop, keep)


def text_of(value: object) -> str:
    """A value as people read it: `yes`, `no`, `-` for what is not known, items with commas between them."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name}={text_of(one)}" for name, one in value.items()) or "none"
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(text_of, value)) or "none"
    return str(value)


def _columns(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[Column]:
    cells: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [()] * len(headings)
    return [
        Column(heading, [text_of(cell) for cell in column], [_short(cell) for cell in column], _are_numbers(column))
        for heading, column in zip(headings, cells, strict=True)
    ]


def _short(cell: object) -> str:
    return cell.short if isinstance(cell, Cell) and cell.short is not None else text_of(cell)


def _are_numbers(cells: Sequence[object]) -> bool:
    """Numbers are compared by their ends. What is not known says nothing of the others."""
    values = [value for cell in cells if (value := _plain(cell)) is not None]
    return bool(values) and all(type(value) in (int, float) for value in values)


def clear_screen() -> None:
    """Before another look at the same thing; into a pipe nothing."""
    if sys.stdout.isatty():
        print(_CLEAR, end="")


def say_aside(text: str) -> None:
    """A sentence beside the answer, on stderr."""
    print(text, file=sys.stderr)


@dataclass
class Asked:
    """What the command that runs was asked for; `options.py` notes it, `main.py` looks at it when there is an error."""

    form: OutputFormat = OutputFormat.TABLE

    def say_error(self, error: IcestreamError) -> None:
        if self.form is OutputFormat.JSON:
            say_aside(json.dumps(_error_document(error), ensure_ascii=False))
            return
        say_aside(f"icestream: {error.message}")
        if error.hint:
            say_aside(f"hint: {error.hint}")


def _error_document(error: IcestreamError) -> dict[str, object]:
    return {
        "error": error.code,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
        "exit_code": exit_code(error),
    }


def _plain(value: object) -> object:
    return value.value if isinstance(value, Cell) else value
