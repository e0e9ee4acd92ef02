"""The help layout of commands: purpose, own options, common options, examples to copy.

    Usage: icestream topic create [OPTIONS] TOPIC

      Create a topic.

    Arguments: …
    Options: …                specific to this command
    Common options: …         the broker to use, the output format
    Examples: …               the lines of the docstring that begin with `Example:`, never wrapped

Plain text: fast, searchable, and the same in a pipe. Each module with commands creates a `Commands`.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from icestream.cli.output import clear_screen, print_note
from icestream.errors import IcestreamError

EXAMPLE: Final = "Example: "
COMMON: Final = ("broker", "config", "sets", "output", "help")
WATCH_SECONDS: Final = 2.0
WIDE: Final = "--wide"
OLD_NAMES: Final = {"--address": "--broker", "--socket": "--broker"}  # not in the help; for scripts of older releases
WIDTH_MAX: Final = 110
Function = TypeVar("Function", bound=Callable[..., Any])
_CONTEXT: Final = {"help_option_names": ["--help", "-h"], "max_content_width": WIDTH_MAX}


class Command(TyperCommand):
    """A command with this help layout, --watch, --wide, and options under their former names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [argument for word in args for argument in _expand_argument(word)])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        words, _ = split_examples(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(words)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params: list[Any] = list(self.get_params(ctx))
        arguments = [(_name(param), param.help or "") for param in params if param.param_type_name == "argument"]
        options = [param for param in params if param.param_type_name != "argument"]
        _section(formatter, "Arguments", arguments)
        _section(formatter, "Options", _records(ctx, (option for option in options if option.name not in COMMON)))
        _section(formatter, "Common options", _records(ctx, (option for option in options if option.name in COMMON)))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _, examples = split_examples(self.help or "")
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")

    def invoke(self, ctx: Any) -> Any:
        """Runs the command once; with --watch repeatedly until Ctrl-C, which gives exit code 0. With --watch a
        retryable error is printed and the next run follows."""
        while ctx.params.get("_watch"):
            clear_screen()
            try:
                super().invoke(ctx)
            except IcestreamError as error:
                if not error.retryable:
                    raise
                print_note(f"icestream: {error.message}")
            except KeyboardInterrupt:
                return None
            try:
                sys.stdout.flush()
                time.sleep(WATCH_SECONDS)
            except KeyboardInterrupt:
                return None
        return super().invoke(ctx)


class Group(TyperGroup):
    """A noun with its verbs, such as `icestream topic`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, first_paragraph(command.help)) for name, command in self.commands.items()]
        _section(formatter, "Commands", rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _section(formatter, "Options", _records(ctx, self.get_params(ctx)))


class Commands(typer.Typer):
    """The commands of a module, all with the help of `Command`."""

    def __init__(self, help: str, **options: Any) -> None:  # noqa: A002  # typer's parameter name
        super().__init__(
            cls=options.pop("cls", Group),
            help=help,
            add_completion=options.pop("add_completion", False),
            no_args_is_help=True,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings=_CONTEXT,
            **options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, context_settings=_CONTEXT, **options)


def split_examples(text: str) -> tuple[str, list[str]]:
    """The text without its examples, and the examples."""
    lines = inspect.cleandoc(text).splitlines()
    examples = [line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)]
    return "\n".join(line for line in lines if not line.startswith(EXAMPLE)).strip(), examples


def first_paragraph(text: str | None) -> str:
    """The summary of a command for the list of commands."""
    return split_examples(text or "")[0].partition("\n\n")[0]


def _expand_argument(word: str) -> list[str]:
    """The arguments that a word stands for: --wide is --output wide, a former option name is replaced."""
    if word == WIDE:
        return ["--output", "wide"]
    name, equals, value = word.partition("=")
    return [f"{OLD_NAMES[name]}{equals}{value}" if name in OLD_NAMES else word]


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _records(ctx: Any, params: Iterator[Any] | list[Any]) -> list[tuple[str, str]]:
    return [record for param in params if (record := param.get_help_record(ctx)) is not None]


def _section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
