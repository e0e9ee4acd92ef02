"""Every command of the command line: an example in its help, and a place in docs/cli.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup

from icestream import error_codes, errors
from icestream.cli import broker_location
from icestream.cli.commands import split_examples
from icestream.cli.main import COMMANDS, load
from icestream.settings import Settings
from tests.support.command_line import icestream

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def shown(page: str) -> list[str]:
    """The commands that a page shows."""
    blocks = "\n".join(re.findall(r"```(?:sh|console)\n(.*?)```", page, re.DOTALL))
    return re.findall(r"^(?:\$ )?(?:.*\| )?((?:\.venv/bin/)?icestream [^\n]*)$", blocks, re.MULTILINE)


SHOWN = shown(PAGE)
ELSEWHERE = [
    line for name in ("README.md", "docs/operate.md", "docs/lake.md", "docs/api.md", "docs/client.md", "docs/config.md",
                 "docs/pipeline.md", "docs/table-care.md", "docs/mqtt.md", "docs/security.md")
    for line in shown((ROOT / name).read_text(encoding="utf-8"))
]  # fmt: skip


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        assert isinstance(command, TyperCommand)
        yield " ".join(path), command


ALL = {path: command for name in COMMANDS for path, command in commands(load(name), (name,))}
# What takes time, and what no help text and no question to a broker needs.
HEAVY = {"rich", "structlog", "prometheus_client", "yaml", "icestream.processes", "icestream.settings", "icestream.wal"}


def words(line: str) -> list[str]:
    """Of a command in a shell, from `icestream` on, without what follows a pipe or a redirection."""
    line_words = [word.removeprefix(".venv/bin/") for word in shlex.split(line, comments=True)]
    line_words = line_words[line_words.index("icestream") + 1 :]
    ends = [line_words.index(operator) for operator in ("|", "<", ">") if operator in line_words]
    return line_words[: min(ends, default=len(line_words))]


def check_usage(line: str) -> None:
    """The command exists, and its options do."""
    arguments = words(line)
    name = max((name for name in ALL if arguments[: len(name.split())] == name.split()), key=len, default=None)
    assert name is not None, line
    ALL[name].make_context(name, arguments[len(name.split()) :])


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a process has when its command is over."""
    code = (
        "import sys\n"
        "from icestream.cli.main import main\n"
        f"sys.argv = ['icestream', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return set(ran.stderr.split())


def test_a_command_imports_only_what_it_needs(tmp_path: Path) -> None:
    arguments = ("topic", "list", "--broker", str(tmp_path / "none"))
    assert loaded_by("--help") & {*HEAVY, "asyncio", "pydantic"} == set()
    assert loaded_by("produce", "--help") & HEAVY == set()
    assert loaded_by(*arguments) & HEAVY == set()
    assert "icestream.settings" in loaded_by(*arguments[:2], "--set", f"data_dir={tmp_path}", "--set", "ports.native=1")


def test_the_default_paths_match_the_settings() -> None:
    settings = Settings.default()
    assert settings.local_socket == broker_location.DEFAULT_SOCKET
    assert broker_location.settings_address(settings) == broker_location.DEFAULT_ADDRESS


@pytest.mark.parametrize("variable", ["ICESTREAM_DATA_DIR", "DANUBE_SUB_CURSOR_FLUSH_MS"])
def test_a_variable_is_enough_to_read_the_settings(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(broker_location.SETTING_VARIABLE_PREFIXES)]:
        monkeypatch.delenv(name)
    assert broker_location.Target().has_no_settings
    monkeypatch.setenv(variable, "5")
    assert not broker_location.Target().has_no_settings


def test_the_list_of_commands_fits_a_narrow_terminal() -> None:
    assert max(map(len, COMMANDS.values())) <= 65


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_a_command_has_its_examples_at_the_end_and_in_one_piece(name: str) -> None:
    _, examples = split_examples(ALL[name].help or "")
    shown = icestream(*name.split(), "--help").out
    assert shown.split("Examples:\n", 1)[1].splitlines() == [f"  {example}" for example in examples]


def test_all_required_commands_exist() -> None:
    nouns = {name.split()[0] for name in ALL}
    assert nouns >= {
        "serve", "produce", "consume", "topic", "sub", "namespace", "wal", "config", "doctor", "bench", "top",
    }  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_an_example_that_is_right(name: str) -> None:
    text = ALL[name].help or ""
    examples = re.findall(r"Example: (.*icestream .*)", text)
    assert examples, f"icestream {name} --help has no example"
    for example in examples:
        assert words(example)[: len(name.split())] == name.split()
        check_usage(example)


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_in_the_page_with_an_example(name: str) -> None:
    assert f"\n### icestream {name}\n" in PAGE
    assert any(words(line)[: len(name.split())] == name.split() for line in SHOWN), name


@pytest.mark.parametrize("line", SHOWN + ELSEWHERE)
def test_every_example_of_the_pages_is_right(line: str) -> None:
    if "-completion" not in line:
        check_usage(line)
    assert words(line)


def test_the_page_names_no_command_that_does_not_exist() -> None:
    assert set(re.findall(r"^### icestream (.*)$", PAGE, re.MULTILINE)) == set(ALL)


def test_every_command_answers_programs_too() -> None:
    without = {name for name, command in ALL.items() if "output" not in {param.name for param in command.params}}
    assert not without


# Commands that ask no broker: they start one, look at files of one that does not run, or at nothing but this machine.
ALONE = {
    "backup archive status",
    "backup archive verify",
    "backup drill",
    "backup drills",
    "backup list",
    "backup show",
    "backup verify",
    "serve", "wal inspect", "wal repair", "config check", "config reference", "config explain",
    "pipeline setup", "metadata inspect", "metadata repair",
    "cluster force-new-cluster", "cluster rejoin", "cluster export", "cluster certificates",
    "context add", "context use", "context list", "context remove",
}  # fmt: skip


def options(command: TyperCommand) -> set[str]:
    return {word for param in command.params for word in (*param.opts, *param.secondary_opts) if word.startswith("-")}


def test_every_broker_command_has_the_same_options() -> None:
    assert {name for name, command in ALL.items() if "--broker" not in options(command)} == ALONE
    assert not {name for name, command in ALL.items() if options(command) & {"--address", "--socket"}}


def test_every_listing_can_be_watched() -> None:
    of_tables = {f"lake {name}" for name in ("namespaces", "tables", "snapshots", "history", "files", "lag")}
    listings = of_tables | {name for name in ALL if name.endswith(" list")}
    assert listings <= {name for name, command in ALL.items() if "--watch" in options(command)}


def test_older_option_names_still_work(tmp_path: Path) -> None:
    older = "--socket", "--address"
    for words in ((older[0], f"{tmp_path}/none"), (f"{older[0]}={tmp_path}/none",), (older[1], "127.0.0.1:1")):
        ran = icestream("topic", "list", *words)
        assert (ran.code, "(--broker)" in ran.err) == (11, True)
    assert not set(older) & set(icestream("topic", "list", "--help").out.split())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("wal inspect {0}/nowhere", errors.InvalidInput),
        ("wal repair {0}/nowhere", errors.InvalidInput),
        ("config show --set log.levle=info", errors.ConfigurationError),
        ("config check {0}/nowhere.yml", errors.ConfigurationError),
        ("topic list --broker {0}/nobody.sock", errors.ConnectionLost),
        ("consume /default/a --from sometime", errors.InvalidInput),
    ],
)
def test_programs_get_errors_as_json_too(line: str, error: type[errors.IcestreamError], tmp_path: Path) -> None:
    """One line on stderr, so that stdout is the answer and nothing else; people get sentences."""
    arguments = line.format(tmp_path).split()
    text_run = icestream(*arguments)
    assert text_run.err.startswith("icestream: ")
    ran = icestream(*arguments, "--output", "json")
    document = json.loads(ran.err)
    assert ran.code == text_run.code == document["exit_code"] == error_codes.exit_code(error(""))
    assert (document["error"], document["retryable"]) == (error.code, error.retryable)
    assert text_run.err == f"icestream: {document['message']}\n" + (
        f"hint: {document['hint']}\n" if document["hint"] else ""
    )


def test_an_answer_that_is_an_error_too_is_a_document_on_each_stream(tmp_path: Path) -> None:
    file = tmp_path / "bad.yml"
    file.write_text("log:\n  levle: info\n")
    ran = icestream("config", "check", str(file), "--output", "json")
    assert [problem["key"] for problem in ran.document["problems"]] == ["log.levle"]
    assert (ran.code, json.loads(ran.err)["error"]) == (3, "configuration")


def test_the_exit_codes_of_the_page_match_the_errors() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(
        (str(row.exit_code), kind.__name__) for kind, row in error_codes.WIRE_CODES.items() if row.exit_code is not None
    )


def test_a_shell_can_complete_commands() -> None:
    assert "--install-completion" in icestream("--help").out
    variables = {"_ICESTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "icestream to", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("icestream")
    ran = subprocess.run([program], env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)
    assert sorted(ran.stdout.split()) == ["top", "topic"]
