"""Whether the metadata log of this machine's node would start: a part of `icestream doctor`. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from icestream.cli.findings import Finding, State
from icestream.metadata.repair import NOTHING_SAVED_HINT, Health, examine
from icestream.metadata.watermark import read_mark
from icestream.observability.words import counted
from icestream.wal.log_file import LOCK_NAME

_CHECK = "metadata log"


def metadata_log(path: Path) -> Iterator[Finding]:
    """One finding, none where no node has ever started."""
    if not (path / LOCK_NAME).exists():
        if read_mark(path) is not None:
            text = f"{path} is gone, and a node has used it"
            yield Finding(_CHECK, State.PROBLEM, text, "bring the whole data_dir back; in a cluster: cluster rejoin")
        return
    try:
        health = examine(path)
    except FileNotFoundError:  # a running node has replaced a file meanwhile
        yield Finding(_CHECK, State.OK, "in use")
        return
    except OSError as error:
        yield Finding(_CHECK, State.PROBLEM, f"it cannot be read: {error}", "use the account that runs the broker")
        return
    if health.damage is None:
        yield Finding(_CHECK, State.OK, counted(health.records, "record"))
        return
    yield Finding(_CHECK, State.PROBLEM, health.damage.message, _way_out(health, path))


def _way_out(health: Health, path: Path) -> str:
    if health.is_member:
        return f"icestream cluster rejoin --dir {path}"
    return f"icestream metadata repair --dir {path}" if health.saved is not None else NOTHING_SAVED_HINT
