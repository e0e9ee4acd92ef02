"""`icestream config`: shows the effective settings, here or in a running broker, checks files, explains every key."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from icestream.admin_api.admin_call import AdminCall
from icestream.admin_api.node_api import LIST_SETTINGS, SET_SETTING, UNSET_SETTING, SettingDetails
from icestream.catalog.tokens import TOKEN_FILE_HINT, token_fault
from icestream.cli import completion
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings, remember_output_format
from icestream.cli.output import Cell, Output, OutputFormat, columns_of
from icestream.settings import KEYS, Key, Loaded, Origin, SettingProblem, examine, reference, refusal, value_at
from icestream.settings.layers import from_flags, unknown
from icestream.settings.setting_problems import shown

app = Commands("Show, check, explain and change the settings.")
SettingKey = Annotated[
    str, typer.Argument(metavar="KEY", help="Such as log.level.", autocompletion=completion.online_keys)
]

_COLUMNS = columns_of(SettingDetails, "key", "value", "origin")
_REFERENCE_COLUMNS = ("key", "default", "allowed", "environment", "online", "description")


class ReferenceFormat(StrEnum):
    TABLE = "table"  # the name of the text format in every command; here it prints paragraphs
    JSON = "json"
    MARKDOWN = "markdown"


@app.command()
def show(
    live: Annotated[
        bool, typer.Option("--live", help="Show the settings of the running broker, changes included.")
    ] = False,
    origin: Annotated[bool, typer.Option("--origin", help="Also show the origin of each value.")] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Print every setting as it applies here (file < environment < flags), or with --live in the running broker.

    Example: icestream config show --origin --set log.level=debug
    Example: icestream config show --live --origin
    """
    rows = _live_rows(Target(broker, config, sets)) if live else _rows(load_settings(config, sets))
    columns = _COLUMNS if origin else _COLUMNS[:2]
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
    """Change a setting of the running broker, effective immediately and after restarts; only keys marked online.

    The value is stored in the metadata store and overrides file, environment and flags until it is unset.

    Example: icestream config set log.level debug
    Example: icestream config set storage.iceberg_config.wal.quota 200GiB
    """
    _change(Target(broker, config, sets), Output(output), SET_SETTING, key=key, value=_parse_value(key, value))


@app.command()
def unset(
    key: SettingKey,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Revert a change of the running broker: file, environment and flags apply again.

    Example: icestream config unset log.level
    """
    _change(Target(broker, config, sets), Output(output), UNSET_SETTING, key=key)


def _parse_value(key: str, text: str) -> object:
    """The value as `--set` parses it. Raises ConfigurationError."""
    layer = from_flags([f"{key}={text}"], KEYS)
    if layer.problems:
        raise refusal(layer.problems)
    return layer.entries[key].value


def _change(target: Target, answer: Output, call: AdminCall[Any, Any], **arguments: object) -> None:
    async def change(broker: BrokerCalls) -> Document:
        return await broker.call(call, **arguments)

    setting = call_broker(target, change)
    key, value = KEYS[setting["key"]], setting["value"]
    answer.record({"key": key.path, "value": Cell(value, key.show(value)), "origin": setting["origin"]})


def _live_rows(target: Target) -> list[tuple[object, ...]]:
    async def list_settings(broker: BrokerCalls) -> list[Document]:
        return list((await broker.call(LIST_SETTINGS))["items"])

    return [
        (setting["key"], Cell(setting["value"], KEYS[setting["key"]].show(setting["value"])), setting["origin"])
        for setting in call_broker(target, list_settings)
    ]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Settings file (YAML).")], output: OutputChoice = OutputFormat.TABLE
) -> None:
    """Check a settings file, ignoring the environment; if it is invalid, list all problems and exit with code 3.

    Example: icestream config check config/danube_broker_iceberg.yml
    """
    loaded, problems = examine(file)
    problems = _file_problems(loaded) if loaded is not None else problems
    answer = Output(output)
    if not problems:
        answer.record({"file": str(file), "problems": Cell([], "none")})
        return
    if not answer.is_text:
        answer.record({"file": str(file), "problems": [_plain_problem(problem) for problem in problems]})
    raise refusal(problems)


def _file_problems(loaded: Loaded) -> list[SettingProblem]:
    """Problems with files that the settings name."""
    path, key = loaded.settings.lake.token_file, "lake.token_file"
    fault = token_fault(path)
    return [SettingProblem(key, fault, loaded.origins[key], shown(str(path)), TOKEN_FILE_HINT)] if fault else []


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Such as log.level, or its environment variable.",
            autocompletion=completion.setting_keys,
        ),
    ],
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Explain a setting: purpose, default, allowed values, and the value that applies here with its origin.

    Example: icestream config explain storage.iceberg_config.wal.sync_mode
    """
    path = KEYS.by_env[key].path if key in KEYS.by_env else key
    if path not in KEYS:
        raise refusal([unknown(path, KEYS, Origin("flag", "KEY"))])
    loaded, setting = load_settings(config, sets), KEYS[path]
    value, default = value_at(loaded.settings, path), setting.default
    online_text = "yes: `icestream config set` changes it in the running broker" if setting.online else "no"
    Output(output).record(
        {
            "key": path,
            "value": Cell(setting.plain(value), setting.show(value)),
            "origin": str(loaded.origins[path]),
            "default": Cell(setting.plain(default), setting.default_words or setting.show(default)),
            "allowed": setting.allowed,
            "environment": setting.env,
            "online": Cell(setting.online, online_text),
            "description": setting.description,
        }
    )


@app.command("reference")
def show_reference(
    output: Annotated[
        ReferenceFormat, typer.Option("--output", help="Output format.", callback=remember_output_format)
    ] = ReferenceFormat.TABLE,
) -> None:
    """List every setting: purpose, default, allowed values, environment variable.

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


def _plain_problem(problem: SettingProblem) -> dict[str, str]:
    return {
        "key": problem.path,
        "value": problem.value,
        "origin": str(problem.origin),
        "problem": problem.message,
        "hint": problem.hint,
    }
