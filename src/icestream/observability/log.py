"""Structured log messages: lower case, facts as fields, one line each.

set_up_logging was called     on stderr, for people or as JSON: a process of ours
it was not                    to Python's own logging, as `icestream`: a broker inside somebody else's process
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, cast

import structlog

Logger = structlog.typing.FilteringBoundLogger


def set_up_logging(level: str, form: Literal["console", "json"]) -> None:
    """By the process's entry, and again when the level changes."""
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _in_one_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    said = str(event.pop("event", ""))
    trace = event.pop("exception", "")
    line = " ".join([said, *(f"{name}={value}" for name, value in event.items())])
    return f"{line}\n{trace}" if trace else line


def _leave_it_to_python() -> None:
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _in_one_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=lambda *_: logging.getLogger("icestream"),
        cache_logger_on_first_use=False,
    )


_leave_it_to_python()


def get_logger(component: str) -> Logger:
    return cast("Logger", structlog.get_logger(component=component))
