"""Structured log messages: lower case, facts as fields, one line each.

set_up_logging was called     to stderr, as text or JSON: a process of Icestream
it was not                    to Python's own logging, as `icestream`: a broker inside of another program
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, cast

import structlog

Logger = structlog.typing.FilteringBoundLogger


Form = Literal["console", "json"]
_OURS: Final = "icestream"  # our name in Python's logging
_TALKATIVE: Final = ("httpx2", "httpcore2", "py4j")  # they log a line for each request: only at level debug
_forward: logging.Handler | None = None  # set by the first `set_up_logging`


def set_up_logging(level: str, form: Form) -> None:
    """Configures all log messages of this process; called by the entry point of a process."""
    global _forward  # noqa: PLW0603  # as global as logging is
    if _forward is None:
        _forward = _Forward()
        logging.getLogger().addHandler(_forward)
    logging.getLogger().setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(level.upper() if level.upper() == "DEBUG" else "WARNING")
    _configure(level, form)


def change_log_level(level: str, form: Form) -> None:
    """Changes the level: of all messages, or only of ours for a broker inside of another program."""
    if _forward is not None:
        set_up_logging(level, form)
    else:
        logging.getLogger(_OURS).setLevel(level.upper())


def _configure(level: str, form: Form) -> None:
    renderers: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer()]
    if form == "console":
        is_colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        renderers = [_as_text, structlog.dev.ConsoleRenderer(colors=is_colored)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class _Forward(logging.Handler):
    """Forwards messages of libraries and asyncio from Python's logging, so that all have the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _as_text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replaces lists and mappings by text that people read: `ms="tables 0.3, write 5325.1"`. JSON keeps them."""
    for name, value in event.items():
        if isinstance(value, Mapping):
            event[name] = ", ".join(f"{key} {entry}" for key, entry in value.items())
        elif isinstance(value, list | tuple | set | frozenset):
            event[name] = ", ".join(map(str, value))
    return event


def _in_one_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Renders a message for Python's logging: text, then its fields."""
    message = str(event.pop("event", ""))
    trace = event.pop("exception", "")
    line = " ".join([message, *(f"{name}={value}" for name, value in event.items())])
    return f"{line}\n{trace}" if trace else line


def _leave_it_to_python() -> None:
    """Sends messages to Python's logging: the default, for a broker inside of another program."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _as_text, _in_one_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=lambda *_: logging.getLogger(_OURS),
        cache_logger_on_first_use=False,
    )


_leave_it_to_python()


def get_logger(component: str) -> Logger:
    """A logger whose messages carry the component."""
    return cast("Logger", structlog.get_logger(component=component))
