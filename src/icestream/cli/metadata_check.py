"""The check of the metadata log, a part of `icestream doctor`. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from icestream.cli.doctor_rules import CheckResult, CheckState
from icestream.metadata.repair import NOTHING_SAVED_HINT, TrialRecovery, examine
from icestream.metadata.watermark import read_mark
from icestream.observability.words import counted
from icestream.wal.log_file import LOCK_NAME

_CHECK = "metadata log"


def check_metadata_log(path: Path) -> Iterator[CheckResult]:
    """One result; none if no node has ever started on this path."""
    if not (path / LOCK_NAME).exists():
        if read_mark(path) is not None:
            text = f"{path} is missing although a node has used it"
            fix = "restore the whole data_dir; in a cluster: icestream cluster rejoin"
            yield CheckResult(_CHECK, CheckState.PROBLEM, text, fix)
        return
    try:
        health = examine(path)
    except FileNotFoundError:  # replaced by the running node in the meantime
        yield CheckResult(_CHECK, CheckState.OK, "in use")
        return
    except OSError as error:
        fix = "use the account that runs the broker"
        yield CheckResult(_CHECK, CheckState.PROBLEM, f"the metadata log cannot be read: {error}", fix)
        return
    if health.damage is None:
        yield CheckResult(_CHECK, CheckState.OK, counted(health.records, "record"))
        return
    yield CheckResult(_CHECK, CheckState.PROBLEM, health.damage.message, _repair_command(health, path))


def _repair_command(health: TrialRecovery, path: Path) -> str:
    if health.is_member:
        return f"icestream cluster rejoin --dir {path}"
    return f"icestream metadata repair --dir {path}" if health.saved is not None else NOTHING_SAVED_HINT
