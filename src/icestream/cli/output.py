"""How commands answer: tables for people at a terminal, plain columns into a pipe, JSON for programs.

A command describes its answer once; which of the three it becomes is decided here. Answers go to stdout, everything
else (`say_aside`, errors) to stderr, so that `--output json | jq` always gets exactly one JSON document. An error has
the form that the command was asked for: two sentences, or one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from icestream.errors import IcestreamError, exit_code


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True)
class Cell:
    """A value that people read differently from programs: `64MiB` and 67108864."""

    value: object
    text: str

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
        return self._form is OutputFormat.TABLE

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows of equal kind. JSON: a list of objects with the columns as names."""
        rows = list(rows)
        if not self.for_people:
            self._json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
        elif self._stream.isatty():
            self._rich_table(columns, rows)
        else:
            self._plain_table(columns, rows)

    def record(self, values: Mapping[str, object]) -> None:
        """One thing with named properties. JSON: an object."""
        if not self.for_people:
            self._json({name: _plain(value) for name, value in values.items()})
            return
        width = max(map(len, values), default=0)
        for name, value in values.items():
            self._line(f"{name.ljust(width)}  {value}")

    def say(self, text: str) -> None:
        """A sentence for people; programs do not get it."""
        if self.for_people:
            self._line(text)

    def _line(self, text: str) -> None:
        print(text.rstrip(), file=self._stream)

    def _json(self, document: object) -> None:
        print(json.dumps(document, indent=2, ensure_ascii=False, default=str), file=self._stream)

    def _plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        texts = [list(columns), *(list(map(str, row)) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            self._line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))  # Text: a value in brackets is not markup
        Console(file=self._stream).print(table)


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


def size_text(size_bytes: int) -> str:
    """A size for people; programs get the bytes."""
    size = float(size_bytes)
    unit, *larger = ("B", "KiB", "MiB", "GiB")
    while size >= 1024 and larger:
        size, unit = size / 1024, larger.pop(0)
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
