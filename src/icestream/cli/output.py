"""How commands answer: tables for people at a terminal, plain columns into a pipe, JSON for programs.

A command describes its answer once; which of the three it becomes is decided here. Answers go to stdout, everything
else (`say_aside`, errors) to stderr, so that `--output json | jq` always gets exactly one JSON document. An error has
the form that the command was asked for: two sentences, or one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from icestream.errors import IcestreamError
from icestream.said import exit_code


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
        with writing():
            print(text.rstrip(), file=self._stream)

    def _json(self, document: object) -> None:
        with writing():
            print(json.dumps(document, indent=2, ensure_ascii=False, default=str), file=self._stream)

    def _plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        texts = [list(columns), *(list(map(str, row)) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        sides = [str.rjust if is_number else str.ljust for is_number in _are_numbers(columns, rows)]
        for row in texts:
            cells = (side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True))
            self._line("  ".join(cells))

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="" if os.environ.get("NO_COLOR") else "bold")
        for column, is_number in zip(columns, _are_numbers(columns, rows), strict=True):
            table.add_column(column, overflow="fold", justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))  # Text: a value in brackets is not markup
        with writing():
            Console(file=self._stream).print(table)


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


def _are_numbers(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """For each column, whether it holds numbers: those are compared by their ends."""
    values = [[_plain(row[at]) for row in rows] for at in range(len(columns))]
    return [bool(found) and all(type(value) in (int, float) for value in found) for found in values]


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
