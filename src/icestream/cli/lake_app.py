"""The commands of `icestream lake`; the modules beside this one add theirs."""

from __future__ import annotations

from typing import Final

from icestream.cli.command import Commands

HELP: Final = "Look at tables; bind, detach, adopt, rewind and recreate them."

app = Commands(HELP)


@app.callback()
def lake() -> None:
    """Look at tables; bind, detach, adopt, rewind and recreate them."""
