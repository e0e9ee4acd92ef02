"""`icestream config`: what is printed, in which form, and with which exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from icestream import errors
from icestream.cli import main as command_line
from icestream.settings import KEYS, reference
from tests.support.command_line import icestream
from tests.support.secret_files import secret_file

EXAMPLE = Path(__file__).parents[3] / "config" / "danube_broker_iceberg.yml"


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(command_line.app, list(arguments), env=env, catch_exceptions=False)


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The entry point itself, as the console script calls it."""
    monkeypatch.setattr(sys, "argv", ["icestream", *arguments])
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_show_prints_every_key_in_plain_columns_when_piped() -> None:
    lines = run("config", "show").stdout.splitlines()
    assert lines[0].split() == ["key", "value"]
    assert [line.split()[0] for line in lines[1:]] == list(KEYS)
    assert ["storage.iceberg_config.wal.max_file_size", "64MiB"] in [line.split() for line in lines]


def test_show_with_origins_names_file_and_line_variable_and_flag(tmp_path: Path) -> None:
    file = tmp_path / "broker.yml"
    file.write_text("node:\n  name: one\n")
    arguments = ("config", "show", "--origin", "--config", str(file), "--set", "ports.mqtt=1999", "--output", "json")
    result = run(*arguments, env={"ICESTREAM_LOG__LEVEL": "debug"})
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)}
    assert list(rows) == list(KEYS)
    assert rows["node.name"] == ("one", f"file {file}:2")
    assert rows["log.level"] == ("debug", "env ICESTREAM_LOG__LEVEL")
    assert rows["ports.mqtt"] == (1999, "flag --set")
    assert rows["storage.iceberg_config.wal.max_file_size"] == (67108864, "default")
    assert rows["storage.iceberg_config.wal.quota"] == (None, "default")
    assert rows["meta_store.seed_nodes"] == ([], "default")


def test_show_without_origin_does_not_print_it() -> None:
    assert set(json.loads(run("config", "show", "--output", "json").stdout)[0]) == {"key", "value"}


def test_flags_can_be_repeated() -> None:
    arguments = ("config", "show", "--output", "json", "--set", "log.level=debug", "--set", "log.format=json")
    rows = {row["key"]: row["value"] for row in json.loads(run(*arguments).stdout)}
    assert (rows["log.level"], rows["log.format"]) == ("debug", "json")


def test_check_accepts_the_example_file() -> None:
    result = run("config", "check", str(EXAMPLE))
    assert result.exit_code == 0
    assert "problems  none" in result.stdout
    assert json.loads(run("config", "check", str(EXAMPLE), "--output", "json").stdout)["problems"] == []


def test_check_reads_only_the_file() -> None:
    assert run("config", "check", str(EXAMPLE), env={"ICESTREAM_LOG__LEVEL": "loud"}).exit_code == 0


def test_check_lists_all_problems_and_exits_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yml"
    file.write_text("storage:\n  type: local\nlog:\n  levle: info\n")
    assert main(monkeypatch, "config", "check", str(file)) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"storage.type = 'local' (file {file}:2): must be iceberg" in printed.err
    assert f"log.levle (file {file}:4): unknown key; the nearest known one is log.level" in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("content", [None, "", "short\n"])
def test_check_reads_the_token_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    file, tokens = tmp_path / "broker.yml", tmp_path / "tokens"
    file.write_text(f"lake:\n  token_file: {tokens}\n")
    if content is not None:
        secret_file(tokens, content)
    assert main(monkeypatch, "config", "check", str(file)) == 3
    printed = capsys.readouterr().err
    assert printed.startswith(f"icestream: lake.token_file = '{tokens}' (file {file}:2): ")
    assert "hint: write one token in each line, such as `openssl rand -hex 32` makes" in printed
    secret_file(tokens, "0123456789abcdef\n")
    assert run("config", "check", str(file)).exit_code == 0


def test_check_lists_all_problems_as_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yml"
    file.write_text("storage:\n  type: local\nlog:\n  levle: info\n")
    assert main(monkeypatch, "config", "check", str(file), "--output", "json") == 3
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {(problem["key"], problem["origin"]) for problem in problems} == {
        ("storage.type", f"file {file}:2"),
        ("log.levle", f"file {file}:4"),
    }


def test_check_of_a_missing_file_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, "config", "check", "nowhere.yml") == 3
    assert "nowhere.yml: cannot be read: No such file or directory" in capsys.readouterr().err


def test_reference_in_its_three_forms() -> None:
    assert run("config", "reference", "--output", "markdown").stdout == reference.markdown()
    rows = json.loads(run("config", "reference", "--output", "json").stdout)
    assert [row["key"] for row in rows] == list(KEYS)
    sync_mode = rows[list(KEYS).index("storage.iceberg_config.wal.sync_mode")]
    assert sync_mode["default"] == "always"
    assert sync_mode["environment"] == "ICESTREAM_STORAGE__ICEBERG_CONFIG__WAL__SYNC_MODE"
    assert sync_mode["allowed"] == "always or periodic or none"
    assert sync_mode["online"] is False
    text = run("config", "reference").stdout
    assert [line for line in text.splitlines() if line and not line.startswith(" ")] == list(KEYS)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_an_error_is_message_and_hint_on_stderr_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, "config", "show", "--set", "log.level=loud") == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "icestream: log.level = 'loud' (flag --set): must be debug or info or warning or error",
        "hint: `icestream config reference` lists every key",
    ]


@pytest.mark.parametrize(("kind", "code"), [(errors.LogLocked, 8), (errors.DiskFull, 5), (errors.IcestreamError, 1)])
def test_every_error_of_the_tree_has_its_exit_code(
    kind: type[errors.IcestreamError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(obj: object) -> None:
        raise kind("it did not work")

    monkeypatch.setattr(command_line, "app", fail)
    assert main(monkeypatch) == code
    assert capsys.readouterr().err == "icestream: it did not work\n"


def test_an_internal_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(obj: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(ZeroDivisionError):
        command_line.main()


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("icestream ")


def test_wrong_usage_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(monkeypatch, "bogus") == 2
    assert main(monkeypatch, "config", "show", "--output", "xml") == 2


@pytest.mark.parametrize("noun", ["serve", "wal", "config"])
def test_the_nouns_of_the_command_line(noun: str) -> None:
    result = run(noun, "--help")
    assert result.exit_code == 0
    usage = next(line for line in result.stdout.splitlines() if "Usage:" in line)
    assert f" {noun} " in usage


def test_a_setting_is_explained_with_the_value_that_applies_and_why() -> None:
    explained = icestream("config", "explain", "log.level", "--set", "log.level=debug", "--output", "json").document
    assert (explained["key"], explained["value"], explained["default"], explained["online"]) == (
        "log.level",
        "debug",
        "info",
        True,
    )
    assert explained["origin"].endswith("--set")
    assert explained["description"]
    assert icestream("config", "explain", explained["environment"], "--output", "json").document["key"] == "log.level"
    ran = icestream("config", "explain", "log.levle")
    assert (ran.code, "log.level" in ran.err) == (3, True)
