"""`icestream metadata`: inspects and repairs the metadata log of a stopped node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icestream import errors
from icestream.cli.commands import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import Output, OutputFormat

if TYPE_CHECKING:
    from icestream.metadata.repair import TrialRecovery

app = Commands("Inspect and repair the metadata log of a node.")
Folder = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIRECTORY", help="The metadata store; default: that of the settings."),
]


@app.command()
def inspect(
    directory: Folder = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Report whether the metadata log can be opened, and how to repair it if not; changes nothing.

    Example: icestream metadata inspect --dir icestream-data/raft
    """
    _report_health(_store_path(directory, config, sets), Output(output))


@app.command()
def repair(
    directory: Folder = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Repair the log; everything after the damage is lost.")
    ] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Report what can be recovered from the damaged metadata log of a single node; with --accept-loss, recover it.

    The damaged directory is kept next to the new one. A member of a cluster rejoins instead: icestream cluster rejoin.

    Example: icestream metadata repair --dir icestream-data/raft
    """
    from icestream.metadata.repair import repair as make_new
    from icestream.runtime.clock import SystemClock

    answer = Output(output)
    path = _store_path(directory, config, sets, may_be_missing=accept_loss)
    if path.is_dir():
        is_damaged = _report_health(path, answer)
        if not (is_damaged and accept_loss):
            if is_damaged:
                answer.print_line(
                    "Nothing was changed. With --accept-loss, topics, cursors and settings written after the damage "
                    "are lost. Stop the broker first, and keep a copy of the data directory."
                )
            return
    backup = make_new(path, SystemClock())
    answer.print_line(f"The damaged log was moved to {backup}. Start the broker and check topics and subscriptions.")


def _store_path(
    directory: Path | None, config: Path | None, sets: list[str] | None, *, may_be_missing: bool = False
) -> Path:
    """The directory of the metadata store. Raises InvalidInput if it does not exist."""
    path = directory or load_settings(config, sets).settings.meta_store.data_dir
    # A repair that was interrupted after it moved the damaged directory leaves none at this path.
    if not (path.is_dir() or may_be_missing):
        raise errors.InvalidInput(f"no metadata store in {path}", hint="name its directory: --dir DATA_DIR/raft")
    return path


def _report_health(path: Path, answer: Output) -> bool:
    """Prints the state of the log and returns whether it is damaged."""
    from icestream.metadata.repair import examine

    health = examine(path)
    is_damaged = health.damage is not None
    answer.record(
        {
            "damage": health.damage.message if health.damage is not None else None,
            "records_left": health.last_lsn,
            "records_synced": health.synced_lsn or None,
            "entries_left": health.saved.last_index if health.saved is not None else None,
            "keys_left": health.saved.keys if health.saved is not None else None,
            "way_out": _repair_command(health) if is_damaged else None,
        }
    )
    return is_damaged


def _repair_command(health: TrialRecovery) -> str:
    from icestream.metadata.repair import NOTHING_SAVED_HINT

    if health.is_member:
        return "icestream cluster rejoin"
    return "icestream metadata repair --accept-loss" if health.saved is not None else NOTHING_SAVED_HINT
