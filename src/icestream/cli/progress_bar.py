"""A progress bar on stderr, at a terminal only; it is erased at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Advance]:
    """Yields a function that advances the bar by a number of steps. Shows nothing if the total is None."""
    if total is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)
