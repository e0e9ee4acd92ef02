"""Output of commands: tables at a terminal (within its width: layout.py), plain columns into a pipe, JSON for programs.

A command describes its result once; the output format is chosen here. Results go to stdout, everything else
(`print_note`, errors) to stderr, so that `--output json | jq` always gets exactly one JSON document. Errors follow
--output as well: message and hint, or one line of JSON.
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
from typing import Any, Final, TextIO

from icestream.cli.layout import GAP, Column, Layout, lay_out, wrap_words
from icestream.error_codes import exit_code
from icestream.errors import IcestreamError

EXACT_MAX: Final = 2**53  # larger integers are not all representable as a double
# Fields with snapshot ids, in our results and in Iceberg's metadata.
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
    WIDE = "wide"  # a table with every column in full, however long its lines are; same as --wide
    JSON = "json"


@dataclass(frozen=True)
class Cell:
    """A value with a text for people: 67108864 and `64MiB`. `short` is the text for narrow tables."""

    value: object
    text: str
    short: str | None = None

    def __str__(self) -> str:
        return self.text


def columns_of(answer: type[Any], *names: str, computed: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of fields of a declared answer (admin_api), as columns; `computed` ones the command adds by itself.

    Raises LookupError for a name that the declaration does not have, when the command's module is loaded.
    """
    unknown = [name for name in names if name not in answer.__struct_fields__ and name not in computed]
    if unknown:
        raise LookupError(f"{answer.__name__} has no field {', '.join(unknown)}")
    return names


class Output:
    """The output of one command: call exactly one of `table` and `record`, `print_line` as often as needed."""

    def __init__(self, form: OutputFormat = OutputFormat.TABLE, stream: TextIO | None = None) -> None:
        self._form = form
        # Read now, not at import: tests and redirections replace sys.stdout.
        self._stream = stream if stream is not None else sys.stdout

    @property
    def is_text(self) -> bool:
        """Whether the output is for people, not JSON."""
        return self._form is not OutputFormat.JSON

    @property
    def width(self) -> int | None:
        """Characters of a line of the terminal; None (unlimited) into a pipe and with --wide."""
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
        """Prints rows; as JSON, a list of objects with the columns as names.

        A narrow terminal omits the columns of `drop`, in this order, then others from the right, but none of `keep`.
        """
        rows = list(rows)
        if not self.is_text:
            self._json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
            return
        layout = table_layout(columns, rows, self.width, drop, keep)
        is_bold = self._stream.isatty() and not os.environ.get("NO_COLOR")
        for line in layout.heading:
            self._line(f"{_BOLD}{line}{_NORMAL}" if is_bold else line)
        for line in layout.lines:
            self._line(line)
        if layout.omitted:
            omitted = f"columns not shown, terminal too narrow: {', '.join(layout.omitted)}; --wide shows all"
            for line in wrap_words(omitted, self.width or len(omitted)):
                print_note(line)

    def record(self, values: Mapping[str, object]) -> None:
        """Prints one entity with named properties; as JSON, an object."""
        if not self.is_text:
            self._json({name: _plain(value) for name, value in values.items()})
            return
        indent = max(map(len, values), default=0) + len(GAP)
        for name, value in values.items():
            text = format_value(value)
            lines = [text] if self.width is None else wrap_words(text, self.width - indent)
            self._line(f"{name.ljust(indent)}{lines[0]}")
            for line in lines[1:]:
                self._line(" " * indent + line)

    def document(self, document: object) -> None:
        """Prints a JSON document unchanged; for --output json only."""
        self._json(document)

    def print_line(self, text: str) -> None:
        """Prints a sentence for people; omitted from JSON."""
        if self.is_text:
            # A sentence with a command is left to the terminal to wrap, so that the command can be copied in one piece.
            is_unwrapped = self.width is None or "`" in text or "\n" in text
            for line in [text] if is_unwrapped else wrap_words(text, self.width or len(text)):
                self._line(line)

    def _line(self, text: str) -> None:
        with output_errors():
            print(text.rstrip(), file=self._stream)

    def _json(self, document: object) -> None:
        with output_errors():
            print(json.dumps(json_safe(document), indent=2, ensure_ascii=False, default=str), file=self._stream)


def json_safe(document: object) -> object:
    """The document without integers that a JSON parser may round: snapshot ids always become strings, as do other
    integers beyond 2^53. Offsets, counts, sizes and times stay numbers."""
    match document:
        case Mapping():
            return {name: _text_id(name, json_safe(value)) for name, value in document.items()}
        case list() | tuple():
            return [json_safe(value) for value in document]
        case int() if abs(document) > EXACT_MAX:
            return str(document)
    return document


def _text_id(name: object, value: object) -> object:
    is_id = isinstance(name, str) and name in SNAPSHOT_IDS and type(value) is int
    return str(value) if is_id else value


@contextmanager
def output_errors() -> Iterator[None]:
    """Turns a failed write of the output (a full disk) into an IcestreamError. BrokenPipeError passes: main.py ends the
    command quietly."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise IcestreamError(
            f"cannot write the output: {error.strerror or error}", hint="check the free space where the output goes"
        ) from None


def table_layout(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    width: int | None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> Layout:
    """The layout of rows of values and cells. Raises ValueError for a row of another length and for an empty heading,
    which could not be named if the column were omitted."""
    if not all(headings):
        raise ValueError(f"empty column heading: {headings}")
    return lay_out(_columns(headings, rows), width, drop, keep)


def format_value(value: object) -> str:
    """A value as text: `yes`, `no`, `-` for None, items separated by commas."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name}={format_value(item)}" for name, item in value.items()) or "none"
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(format_value, value)) or "none"
    return str(value)


def _columns(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[Column]:
    cells: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [()] * len(headings)
    return [
        Column(
            heading, [format_value(cell) for cell in column], [_short(cell) for cell in column], _are_numbers(column)
        )
        for heading, column in zip(headings, cells, strict=True)
    ]


def _short(cell: object) -> str:
    return cell.short if isinstance(cell, Cell) and cell.short is not None else format_value(cell)


def _are_numbers(cells: Sequence[object]) -> bool:
    """Whether a column is right-aligned: all its known values are numbers."""
    values = [value for cell in cells if (value := _plain(cell)) is not None]
    return bool(values) and all(type(value) in (int, float) for value in values)


def clear_screen() -> None:
    """Clears the terminal before a repeated output; does nothing into a pipe."""
    if sys.stdout.isatty():
        print(_CLEAR, end="")


def print_note(text: str) -> None:
    """Prints a sentence to stderr, so that it does not mix with the result on stdout."""
    print(text, file=sys.stderr)


@dataclass
class Invocation:
    """The output format of the running command: options.py records it, main.py prints an error in it."""

    form: OutputFormat = OutputFormat.TABLE

    def print_error(self, error: IcestreamError) -> None:
        if self.form is OutputFormat.JSON:
            print_note(json.dumps(_error_document(error), ensure_ascii=False))
            return
        print_note(f"icestream: {error.message}")
        if error.hint:
            print_note(f"hint: {error.hint}")


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
