"""How commands look in their help: what one does, its own options, those that all have, examples that can be copied.

    Usage: icestream topic create [OPTIONS] TOPIC

      Make a topic.

    Arguments: …
    Options: …                what this command is about
    Common options: …         where the broker is, how to answer
    Examples: …               the lines of the docstring that begin with `Example:`, never wrapped

Plain text: it is quick, it can be searched, and it looks the same in a pipe. A module of commands makes a `Commands`.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from icestream.cli.output import clear_screen, say_aside
from icestream.errors import IcestreamError

EXAMPLE: Final = "Example: "
COMMON: Final = ("broker", "config", "sets", "output", "help")
WATCH_SECONDS: Final = 2.0
WIDE: Final = "--wide"
OLD_NAMES: Final = {"--address": "--broker", "--socket": "--broker"}  # hidden, for scripts of older releases
WIDTH_MAX: Final = 110
Function = TypeVar("Function", bound=Callable[..., Any])
_CONTEXT: Final = {"help_option_names": ["--help", "-h"], "max_content_width": WIDTH_MAX}


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [name for word in args for name in _present_names(word)])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        words, _ = split_examples(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(words)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params: list[Any] = list(self.get_params(ctx))
        arguments = [(_name(one), one.help or "") for one in params if one.param_type_name == "argument"]
        options = [one for one in params if one.param_type_name != "argument"]
        _section(formatter, "Arguments", arguments)
        _section(formatter, "Options", _records(ctx, (one for one in options if one.name not in COMMON)))
        _section(formatter, "Common options", _records(ctx, (one for one in options if one.name in COMMON)))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _, examples = split_examples(self.help or "")
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")

    def invoke(self, ctx: Any) -> Any:
        """Once; with --watch again and again until Ctrl-C, with exit code 0. An error that may pass is only said."""
        while ctx.params.get("_watch"):
            clear_screen()
            try:
                super().invoke(ctx)
            except IcestreamError as error:
                if not error.retryable:
                    raise
                say_aside(f"icestream: {error.message}")
            except KeyboardInterrupt:
                return None
            try:
                sys.stdout.flush()
                time.sleep(WATCH_SECONDS)
            except KeyboardInterrupt:
                return None
        return super().invoke(ctx)


class Group(TyperGroup):
    """A noun with its verbs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        _section(formatter, "Commands", [(name, first_words(one.help)) for name, one in self.commands.items()])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _section(formatter, "Options", _records(ctx, self.get_params(ctx)))


class Commands(typer.Typer):
    """The commands of a module, all with the help of `Command`."""

    def __init__(self, help: str, **more: Any) -> None:  # noqa: A002  # typer's word
        super().__init__(
            cls=more.pop("cls", Group),
            help=help,
            add_completion=more.pop("add_completion", False),
            no_args_is_help=True,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings=_CONTEXT,
            **more,
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, context_settings=_CONTEXT, **more)


def split_examples(text: str) -> tuple[str, list[str]]:
    """The text without its examples, and the examples."""
    lines = inspect.cleandoc(text).splitlines()
    examples = [line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)]
    return "\n".join(line for line in lines if not line.startswith(EXAMPLE)).strip(), examples


def first_words(text: str | None) -> str:
    """What stands in a list of commands."""
    return split_examples(text or "")[0].partition("\n\n")[0]


def _present_names(word: str) -> list[str]:
    """What a word of the command line stands for: --wide is --output wide, an older name is the present one."""
    if word == WIDE:
        return ["--output", "wide"]
    name, equals, value = word.partition("=")
    return [f"{OLD_NAMES[name]}{equals}{value}" if name in OLD_NAMES else word]


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _records(ctx: Any, params: Iterator[Any] | list[Any]) -> list[tuple[str, str]]:
    return [record for one in params if (record := one.get_help_record(ctx)) is not None]


def _section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
