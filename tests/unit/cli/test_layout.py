"""Tables in the width of a terminal: words are never split, and omitted columns are named."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import testing
from icestream.cli.layout import GAP, Column, lay_out
from icestream.cli.output import Cell, Output, OutputFormat
from tests.support.command_line import icestream, icestream_process
from tests.support.serve_process import COMMAND

WORD = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=30)
TEXT = st.lists(WORD, max_size=8).map(" ".join)
ID = "6b0e2a52-7f6b-4f0e-9f0f-2d3c7b1a9e55"


def column(heading: str, *texts: str, shorts: tuple[str, ...] = ()) -> Column:
    return Column(heading, texts, shorts or texts, is_number=False)


@given(st.lists(st.tuples(WORD, TEXT, TEXT), min_size=1, max_size=7), st.integers(10, 200))
def test_no_word_is_split_or_lost_and_lines_fit_where_possible(cells: list[tuple[str, str, str]], width: int) -> None:
    columns = [column(f"{number}{heading}", *texts) for number, (heading, *texts) in enumerate(cells)]
    layout = lay_out(columns, width)
    shown = [column for column in columns if column.heading not in layout.omitted]
    assert shown[0] == columns[0]
    printed_words = sorted(" ".join(layout.lines).split())
    assert printed_words == sorted(word for column in shown for text in column.texts for word in text.split())
    if len(shown) > 1:
        too_long = [line for line in (*layout.heading, *layout.lines) if len(line) > width]
        ends = {word for text in shown[-1].texts for word in text.split()}
        assert all(line.split()[-1] in ends and len(line) - len(line.split()[-1]) < width for line in too_long)
        assert not too_long or any(" " in text for text in shown[-1].texts)


def test_sentences_wrap_and_names_do_not() -> None:
    layout = lay_out([column("check", "ports.danube_admin"), column("fix", "stop the other one, or take another")], 42)
    assert layout.lines == ["ports.danube_admin  stop the other one, or", f"{'':20}take another"]
    assert layout.omitted == []


def test_a_long_path_at_the_end_keeps_its_sentence() -> None:
    path = f"/a/long/way/{ID}"
    layout = lay_out([column("check", "java"), column("finding", f"version 17 in {path}, by JAVA_HOME")], 40)
    assert layout.omitted == []
    assert layout.lines == ["java   version 17 in", f"       {path},", "       by JAVA_HOME"]


def test_short_forms_are_used_before_columns_are_dropped() -> None:
    path = column("path", f"/a/long/way/{ID}", shorts=(ID,))
    assert lay_out([path, column("rows", "17")], 44).lines == [f"{ID}  17"]
    assert lay_out([path, column("rows", "17")], None).lines == [f"/a/long/way/{ID}  17"]


def test_columns_are_dropped_in_the_order_of_the_command_then_from_the_right() -> None:
    columns = [column(name, name * 10) for name in "abcd"]
    assert lay_out(columns, 34, drop=("b",)).omitted == ["b"]
    assert lay_out(columns, 22, drop=("b",)).omitted == ["b", "d"]
    only = lay_out(columns, 5)
    assert (only.omitted, only.lines) == (["d", "c", "b"], ["a" * 10])
    assert lay_out(columns, len(GAP) * 3 + 40).omitted == []


def test_a_kept_column_stays_at_any_width() -> None:
    path = f"/a/long/way/{ID}"
    rows = [column("part", "java"), column("version", "17"), column("path", path)]
    assert lay_out(rows, 30).omitted == ["path"]
    layout = lay_out(rows, 30, keep=("version", "path"))
    assert (layout.omitted, layout.lines) == ([], [f"java  17       {path}"])
    middle = lay_out(
        [column("key", "a", "b"), column("value", path, "1"), column("origin", "flag", "default")], 30, keep=("value",)
    )
    assert middle.omitted == []
    assert middle.lines == [f"a    {path}  flag", f"b    1{'':15}  default"]


class SizedTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_omitted_columns_are_reported_and_wide_omits_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [(ID, ID, Cell(1, "one"))]
    for form, shown in ((OutputFormat.TABLE, 1), (OutputFormat.WIDE, 2)):
        stream = SizedTerminal()
        Output(form, stream).table(("id", "other", "n"), rows, drop=("other",))
        assert stream.getvalue().count(ID) == shown
        assert ("columns not shown, terminal too narrow: other;" in capsys.readouterr().err) is (shown == 1)


def test_sentences_wrap_at_words_and_commands_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = SizedTerminal()
    answer = Output(OutputFormat.TABLE, stream)
    answer.print_line("nothing is missing and nothing is there twice")
    answer.print_line("`icestream lake drop default.two --purge` drops it")
    assert stream.getvalue().splitlines() == [
        "nothing is missing and nothing",
        "is there twice",
        "`icestream lake drop default.two --purge` drops it",
    ]
    answer.table(("id", "other", "n"), [(ID, ID, ID)], drop=("other",))
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 30


def test_a_record_wraps_its_sentences_below_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = SizedTerminal()
    Output(OutputFormat.TABLE, stream).record({"doing": "waits for other nodes"})
    assert stream.getvalue().splitlines() == ["doing  waits for", "       other nodes"]


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as test_broker:
        yield test_broker


def seen_at_80_columns(*arguments: str) -> list[str]:
    """What a command writes to a terminal of 80 columns."""
    master, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
    with subprocess.Popen([*COMMAND, *arguments], env=environment, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        read = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while chunk := os.read(master, 65536):
                read += chunk
        process.communicate(timeout=60)
    os.close(master)
    return read.decode().replace("\r", "").splitlines()


def test_the_listings_keep_to_80_columns_with_whole_names(broker: testing.TestBroker) -> None:
    data_dir, topic = str(broker.node.settings.data_dir), "/default/a-name-of-some-thirty-characters"
    icestream("topic", "create", topic, "--broker", data_dir)
    icestream("sub", "create", topic, "a-subscription-with-a-long-name", "--broker", data_dir)
    for words in (("topic", "list"), ("sub", "list"), ("topic", "policy", topic), ("doctor",)):
        lines = seen_at_80_columns(*words, "--broker", data_dir)
        assert lines, words
        assert words != ("doctor",) or any("in use by an Icestream broker" in line for line in lines)
        too_long = [line for line in lines if len(line) > 80]  # a path of this machine in a sentence
        assert all(len(line.split()[-1]) > 40 for line in too_long), words
        if words[-1] == "list":
            assert any(line.startswith(f"{topic} ") for line in lines)


def test_the_settings_are_shown_with_their_values_at_80_columns(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 60)
    for more in ((), ("--origin",)):
        lines = seen_at_80_columns("config", "show", "--set", f"data_dir={path}", *more)
        rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
        assert rows["key"] == ["value", "origin"][: 1 + len(more)]
        assert rows["data_dir"][0] == str(path)
        assert rows["log.level"][0] == "info"


def test_watch_repeats_a_listing_until_interrupted(broker: testing.TestBroker) -> None:
    data_dir = str(broker.node.settings.data_dir)
    with icestream_process("topic", "list", "--watch", "--broker", data_dir) as process:
        assert process.stdout is not None
        # Only as many lines as are needed: each repetition comes two seconds after the one before.
        headings = list(itertools.islice((line for line in process.stdout if line.startswith("topic ")), 2))
        process.send_signal(signal.SIGINT)
        assert (len(headings), process.wait(30)) == (2, 0)


def test_the_subscriptions_of_all_topics(broker: testing.TestBroker) -> None:
    data_dir = str(broker.node.settings.data_dir)
    for name in ("one", "two"):
        icestream("topic", "create", f"/default/all-{name}", "--broker", data_dir)
        icestream("sub", "create", f"/default/all-{name}", "s", "--broker", data_dir)
    for where in (data_dir, broker.address):
        rows = icestream("sub", "list", "--broker", where, "--output", "json").document
        listed = [(row["topic"], row["subscription"]) for row in rows if row["topic"].startswith("/default/all-")]
        assert listed == [("/default/all-one", "s"), ("/default/all-two", "s")]
    rows = icestream("sub", "list", "/default/all-one", "--broker", data_dir, "--output", "json").document
    assert [row["subscription"] for row in rows] == ["s"]


def test_a_table_name_is_accepted_for_its_topic(broker: testing.TestBroker) -> None:
    data_dir = str(broker.node.settings.data_dir)
    icestream("topic", "create", "/default/both", "--broker", data_dir)
    ran = icestream("topic", "describe", "default.both", "--broker", data_dir)
    assert (ran.code, "default.both is a table; using its topic /default/both" in ran.err) == (0, True)
    assert icestream("topic", "describe", "both", "--broker", data_dir).code == 4


def test_a_topic_in_place_of_the_table_is_refused_where_both_are_needed(tmp_path: Path) -> None:
    ran = icestream("lake", "adopt", "/default/both", "default.both", "--set", f"data_dir={tmp_path}")
    assert (ran.code, "is a topic; a table name is expected here" in ran.err) == (4, True)
