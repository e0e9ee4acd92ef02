"""Structured log messages: lower case, facts as fields, one line each."""

from __future__ import annotations

import logging
import os
import sys
from typing import Literal, cast

import structlog

Logger = structlog.typing.FilteringBoundLogger


def set_up_logging(level: str, form: Literal["console", "json"]) -> None:
    """Once, by the process's entry. Before it, messages go nowhere in particular."""
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


def get_logger(component: str) -> Logger:
    return cast("Logger", structlog.get_logger(component=component))
