"""One answer, three forms: a terminal, a pipe, a program."""

from __future__ import annotations

import io
import json

import pytest

from icestream.cli.output import Cell, Output, OutputFormat, print_note

COLUMNS = ("name", "size")
ROWS = [("first", Cell(1024, "1KiB")), ("second, longer", Cell(0, "0B"))]


class TerminalOutput(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_aligned_columns() -> None:
    stream = io.StringIO()
    Output(OutputFormat.TABLE, stream).table(COLUMNS, ROWS)
    assert stream.getvalue() == "name            size\nfirst           1KiB\nsecond, longer    0B\n"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_a_bold_heading_unless_disabled(no_color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    stream = TerminalOutput()
    Output(OutputFormat.TABLE, stream).table(COLUMNS, ROWS)
    assert ("\x1b[" in stream.getvalue()) is (not no_color)


def test_only_numbers_are_right_aligned() -> None:
    stream = io.StringIO()
    Output(OutputFormat.TABLE, stream).table(("a", "b", "c"), [(1, "x", True), (1000, "yy", False)])
    assert stream.getvalue().splitlines() == ["   a  b   c", "   1  x   yes", "1000  yy  no"]


def test_output_contains_no_python_literals() -> None:
    values = {"a": None, "b": True, "c": False, "d": [None, "x"], "e": {"f": None}, "g": [], "h": {}, "i": 0}
    stream = io.StringIO()
    Output(OutputFormat.TABLE, stream).record(values)
    texts = [line.split("  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert texts == ["-", "yes", "no", "-, x", "f=-", "none", "none", "0"]
    stream = io.StringIO()
    Output(OutputFormat.TABLE, stream).table(list(values), [list(values.values())])
    assert stream.getvalue().splitlines()[1].split("  ") == [text.ljust(len(text)) for text in texts]


def test_a_column_without_a_heading_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="empty column heading"):
        Output(OutputFormat.TABLE, io.StringIO()).table(("column", ""), [("a", "required")])


def test_a_program_gets_values_instead_of_texts() -> None:
    stream = io.StringIO()
    Output(OutputFormat.JSON, stream).table(COLUMNS, ROWS)
    assert json.loads(stream.getvalue()) == [{"name": "first", "size": 1024}, {"name": "second, longer", "size": 0}]


def test_no_rows_are_an_empty_list_and_a_heading() -> None:
    for form, expected in ((OutputFormat.JSON, "[]\n"), (OutputFormat.TABLE, "name  size\n")):
        stream = io.StringIO()
        Output(form, stream).table(COLUMNS, [])
        assert stream.getvalue() == expected


def test_a_terminal_gets_every_character_and_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = TerminalOutput()
    Output(OutputFormat.TABLE, stream).table(("value",), [("[red]x[/red]",), ("y" * 100,)])
    assert "[red]x[/red]" in stream.getvalue()
    assert stream.getvalue().count("y") == 100


def test_a_record_is_lines_or_one_object() -> None:
    values = {"file": "a", "bytes": Cell(1024, "1KiB"), "more": {"x": [1]}}
    stream = io.StringIO()
    Output(OutputFormat.TABLE, stream).record(values)
    assert stream.getvalue().splitlines()[:2] == ["file   a", "bytes  1KiB"]
    stream = io.StringIO()
    Output(OutputFormat.JSON, stream).record(values)
    assert json.loads(stream.getvalue()) == {"file": "a", "bytes": 1024, "more": {"x": [1]}}


def test_sentences_are_for_people_only(capsys: pytest.CaptureFixture[str]) -> None:
    Output(OutputFormat.JSON).print_line("hello")
    assert capsys.readouterr().out == ""
    Output(OutputFormat.TABLE).print_line("hello")
    print_note("beside")
    assert capsys.readouterr() == ("hello\n", "beside\n")


def test_a_row_of_the_wrong_length_is_a_mistake() -> None:
    for form in OutputFormat:
        with pytest.raises(ValueError, match="zip"):
            Output(form, io.StringIO()).table(COLUMNS, [("only one",)])


def test_ids_of_snapshots_are_texts_and_no_number_is_rounded_by_its_reader() -> None:
    stream, large = io.StringIO(), 4_873_245_011_932_044_887
    document = {
        "snapshot_id": 1,
        "rows": [{"snapshot": large, "parent": None, "offset": 2**53}],
        "metadata": {"current-snapshot-id": large, "snapshots": [{"snapshot-id": 7, "sequence-number": 3}]},
        "other": large,
        "is_good": True,
    }
    Output(OutputFormat.JSON, stream).record(document)
    assert json.loads(stream.getvalue()) == {
        "snapshot_id": "1",
        "rows": [{"snapshot": str(large), "parent": None, "offset": 2**53}],
        "metadata": {"current-snapshot-id": str(large), "snapshots": [{"snapshot-id": "7", "sequence-number": 3}]},
        "other": str(large),
        "is_good": True,
    }
