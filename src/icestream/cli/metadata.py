"""`icestream metadata`: the metadata log of a node that does not run, looked at and repaired."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icestream import errors
from icestream.cli.command import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import Output, OutputFormat

if TYPE_CHECKING:
    from icestream.metadata.repair import Health

app = Commands("Look into the metadata log of a node, and repair it.")
Folder = Annotated[
    Path | None, typer.Option("--dir", metavar="DIRECTORY", help="The metadata store; else that of the settings.")
]


@app.command()
def inspect(
    directory: Folder = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Say whether the metadata log could be opened, and the way out when not; changes nothing.

    Example: icestream metadata inspect --dir icestream-data/raft
    """
    _look(_store(directory, config, sets), Output(output))


@app.command()
def repair(
    directory: Folder = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it: everything behind the damage is lost.")
    ] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Say what is left of the damaged metadata log of a node on its own, and with --accept-loss go on with that.

    The damaged directory is kept beside the new one. A member of a cluster joins anew: icestream cluster rejoin.

    Example: icestream metadata repair --dir icestream-data/raft
    """
    from icestream.metadata.repair import repair as make_new
    from icestream.runtime.clock import SystemClock

    answer = Output(output)
    path = _store(directory, config, sets, may_be_gone=accept_loss)
    if path.is_dir():
        is_damaged = _look(path, answer)
        if not (is_damaged and accept_loss):
            if is_damaged:
                answer.say("nothing was changed; with --accept-loss, topics, cursors and settings that came behind the")
                answer.say("damage are lost. Stop the broker first, and keep a copy of the data directory.")
            return
    moved = make_new(path, SystemClock())
    answer.say(f"the damaged log is in {moved} now; start the broker, and look at its topics and subscriptions")


def _store(directory: Path | None, config: Path | None, sets: list[str] | None, *, may_be_gone: bool = False) -> Path:
    path = directory or load_settings(config, sets).settings.meta_store.data_dir
    if not (path.is_dir() or may_be_gone):
        raise errors.InvalidInput(
            f"there is no metadata store in {path}", hint="name it: --dir DATA_DIR/raft, as the node has it"
        )
    return path


def _look(path: Path, answer: Output) -> bool:
    """Whether the log is damaged; says what there is."""
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
            "way_out": _way_out(health) if is_damaged else None,
        }
    )
    return is_damaged


def _way_out(health: Health) -> str:
    from icestream.metadata.repair import NOTHING_SAVED_HINT

    if health.is_member:
        return "icestream cluster rejoin"
    return "icestream metadata repair --accept-loss" if health.saved is not None else NOTHING_SAVED_HINT
