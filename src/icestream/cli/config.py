"""`icestream config`: what applies, here and in a running broker, whether a file is good, and what there is to set."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from icestream.catalog.tokens import TOKEN_FILE_HINT, token_fault
from icestream.cli import completion
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.command import Commands
from icestream.cli.connection import BrokerCalls, Document, ask
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings, note_output
from icestream.cli.output import Cell, Output, OutputFormat
from icestream.settings import KEYS, Key, Loaded, Origin, Problem, examine, reference, refusal, value_at
from icestream.settings.layers import from_flags, unknown
from icestream.settings.problems import shown

app = Commands("Show, check, explain and change the settings.")
SettingKey = Annotated[
    str, typer.Argument(metavar="KEY", help="Such as log.level.", autocompletion=completion.online_keys)
]

_REFERENCE_COLUMNS = ("key", "default", "allowed", "environment", "online", "description")


class ReferenceFormat(StrEnum):
    TABLE = "table"  # the word for "for people" of every command; here they get paragraphs
    JSON = "json"
    MARKDOWN = "markdown"


@app.command()
def show(
    live: Annotated[bool, typer.Option("--live", help="As the running broker has them, changes included.")] = False,
    origin: Annotated[bool, typer.Option("--origin", help="Also show where each value came from.")] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Print every setting as it applies here: file < environment < flags. Or, with --live, as it applies there.

    Example: icestream config show --origin --set log.level=debug
    Example: icestream config show --live --origin
    """
    rows = _live_rows(Target(broker, config, sets)) if live else _rows(load_settings(config, sets))
    columns = ("key", "value", "origin") if origin else ("key", "value")
    Output(output).table(columns, [row[: len(columns)] for row in rows], keep=columns)


@app.command("set")
def set_value(
    key: SettingKey,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Such as debug, 64MiB, 5s, true or null.")],
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Change a setting of the running broker, at once and for its next starts; only keys that are marked online.

    It is kept in the metadata store and beats file, environment and flags until it is unset.

    Example: icestream config set log.level debug
    Example: icestream config set storage.iceberg_config.wal.quota 200GiB
    """
    _change(Target(broker, config, sets), Output(output), "set_setting", key=key, value=_read(key, value))


@app.command()
def unset(
    key: SettingKey,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Forget a change of the running broker: what file, environment and flags say counts again.

    Example: icestream config unset log.level
    """
    _change(Target(broker, config, sets), Output(output), "unset_setting", key=key)


def _read(key: str, text: str) -> object:
    """As `--set` would read it. Raises ConfigurationError."""
    layer = from_flags([f"{key}={text}"], KEYS)
    if layer.problems:
        raise refusal(layer.problems)
    return layer.entries[key].value


def _change(target: Target, answer: Output, method: str, **arguments: object) -> None:
    async def changed(broker: BrokerCalls) -> Document:
        return await broker.call(method, **arguments)

    found = ask(target, changed)
    key = KEYS[found["key"]]
    answer.record({"key": key.path, "value": Cell(found["value"], key.show(found["value"])), "origin": found["origin"]})


def _live_rows(target: Target) -> list[tuple[object, ...]]:
    async def listed(broker: BrokerCalls) -> list[Document]:
        return list((await broker.call("list_settings"))["items"])

    return [
        (one["key"], Cell(one["value"], KEYS[one["key"]].show(one["value"])), one["origin"])
        for one in ask(target, listed)
    ]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Settings file (YAML).")], output: OutputChoice = OutputFormat.TABLE
) -> None:
    """Check a settings file alone, without the environment; exit code 3 and all problems if it cannot be used.

    Example: icestream config check config/danube_broker_iceberg.yml
    """
    loaded, problems = examine(file)
    problems = _file_problems(loaded) if loaded is not None else problems
    answer = Output(output)
    if not problems:
        answer.record({"file": str(file), "problems": Cell([], "none")})
        return
    if not answer.for_people:
        answer.record({"file": str(file), "problems": [_plain_problem(problem) for problem in problems]})
    raise refusal(problems)


def _file_problems(loaded: Loaded) -> list[Problem]:
    """Of the files that the settings name."""
    path, key = loaded.settings.lake.token_file, "lake.token_file"
    fault = token_fault(path)
    return [Problem(key, fault, loaded.origins[key], shown(str(path)), TOKEN_FILE_HINT)] if fault else []


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="Such as log.level, or its variable.", autocompletion=completion.setting_keys
        ),
    ],
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Explain a setting: what it does, its default, what is allowed, and what applies here and why.

    Example: icestream config explain storage.iceberg_config.wal.sync_mode
    """
    path = KEYS.by_env[key].path if key in KEYS.by_env else key
    if path not in KEYS:
        raise refusal([unknown(path, KEYS, Origin("flag", "KEY"))])
    loaded, known = load_settings(config, sets), KEYS[path]
    value = value_at(loaded.settings, path)
    Output(output).record(
        {
            "key": path,
            "value": Cell(known.plain(value), known.show(value)),
            "origin": str(loaded.origins[path]),
            "default": Cell(known.plain(known.default), known.default_words or known.show(known.default)),
            "allowed": known.allowed,
            "environment": known.env,
            "online": Cell(known.online, "yes: `icestream config set` changes it at once" if known.online else "no"),
            "description": known.description,
        }
    )


@app.command("reference")
def show_reference(
    output: Annotated[
        ReferenceFormat, typer.Option("--output", help="How to print it.", callback=note_output)
    ] = ReferenceFormat.TABLE,
) -> None:
    """List every setting: what it does, its default, what is allowed, its environment variable.

    Example: icestream config reference --output markdown > docs/config.md
    """
    if output is ReferenceFormat.JSON:
        Output(OutputFormat.JSON).table(_REFERENCE_COLUMNS, map(_reference_row, KEYS.values()))
    else:
        typer.echo(reference.markdown() if output is ReferenceFormat.MARKDOWN else reference.text(), nl=False)


def _rows(loaded: Loaded) -> list[tuple[object, ...]]:
    return [
        (path, Cell(key.plain(value), key.show(value)), str(loaded.origins[path]))
        for path, key in KEYS.items()
        for value in [value_at(loaded.settings, path)]
    ]


def _reference_row(key: Key) -> tuple[object, ...]:
    default = key.default_words or key.plain(key.default)
    return key.path, default, key.allowed, key.env, key.online, key.description


def _plain_problem(problem: Problem) -> dict[str, str]:
    return {
        "key": problem.path,
        "value": problem.value,
        "origin": str(problem.origin),
        "problem": problem.message,
        "hint": problem.hint,
    }
