"""A bar that moves, for somebody who watches: at a terminal, on stderr, and gone at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress(words: str, total: int | None) -> Iterator[Advance]:
    """Call what it gives with how much further it is. Nothing is shown where the total is not known."""
    if total is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda further: bar.advance(task, further)
