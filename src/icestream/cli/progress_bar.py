"""A progress bar on stderr, at a terminal only; it is erased at the end. Elsewhere a long wait prints lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
Show = Callable[[int, int], None]


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


def note_without_bar(text: str) -> None:
    """Prints a line on stderr where no bar is shown, so that a log tells a wait from a hang."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def share_bar(label: str) -> Iterator[Show]:
    """Yields a function that shows how much of a total is done, for work that learns its total on the way."""
    with progress_bar(label, 1_000) as advance:
        shown = 0

        def show(done: int, total: int) -> None:
            nonlocal shown
            now = 1_000 * done // max(total, 1)
            advance(now - shown)
            shown = now

        yield show
