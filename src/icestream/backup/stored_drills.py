"""The reports of drills in a target, and the key that signs those of a node."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.backup.backup_target import BackupTarget
from icestream.backup.drill_report import (
    DRILLS,
    DrillKey,
    DrillReport,
    SignatureState,
    decode_report,
    encode_report,
    report_name,
)
from icestream.runtime.files import make_directory
from icestream.runtime.randomness import Randomness
from icestream.runtime.secret_file import create_secret_file, read_secret_file

KEY_FILE: Final = "drill.key"
_SEED_BYTES: Final = 32


class StoredDrill(NamedTuple):
    """A report as it is stored; `report` is None if it cannot be read."""

    name: str
    report: DrillReport | None
    signature: SignatureState


async def put_report(target: BackupTarget, report: DrillReport, key: DrillKey) -> bytes:
    """Writes a report, removes the oldest beyond limits.DRILL_REPORTS_MAX, and returns its bytes."""
    data = encode_report(report, key)
    await target.put_new(report_name(report), data)
    names = sorted(await target.names(DRILLS))
    for name in names[: -limits.DRILL_REPORTS_MAX]:
        await target.remove(name)
    return data


async def stored_drills(target: BackupTarget, own_key_id: str = "") -> list[StoredDrill]:
    """All reports, the oldest first."""
    drills = [await read_drill(target, name, own_key_id) for name in sorted(await target.names(DRILLS))]
    return [drill for drill in drills if drill is not None]


async def read_drill(target: BackupTarget, name: str, own_key_id: str = "") -> StoredDrill | None:
    """A report by its name; None if it is gone."""
    data = await target.get(name)
    if data is None:
        return None
    try:
        return StoredDrill(name, *decode_report(name, data, own_key_id))
    except errors.BackupDamaged:
        return StoredDrill(name, None, SignatureState.INVALID)


class LastDrills(NamedTuple):
    """When the last drill of a node had begun, and when the last one that passed had ended, in epoch ms."""

    started_ms: int | None = None
    passed_ms: int | None = None


async def last_drills(target: BackupTarget, node: str, own_key_id: str) -> LastDrills:
    """The last drills of a node, by reports that its own key has signed; the newest are read first."""
    last = LastDrills()
    for name in sorted(await target.names(DRILLS), reverse=True):
        data = await target.get(name)
        try:
            report, signature = decode_report(name, data or b"", own_key_id)
        except errors.BackupDamaged:
            continue
        if report.node != node or signature is not SignatureState.OWN:
            continue
        if last.started_ms is None:
            last = last._replace(started_ms=report.started_ms)
        if report.outcome == "passed":
            return last._replace(passed_ms=report.ended_ms)
    return last


def drill_key_id(data_dir: Path) -> str:
    """The id of the key of this node; empty if it has made no drill. Raises ConfigurationError."""
    return _read_key(data_dir / KEY_FILE).id if (data_dir / KEY_FILE).exists() else ""


def open_drill_key(data_dir: Path, randomness: Randomness) -> DrillKey:
    """The key of this node, made with the first drill. Raises ConfigurationError."""
    path = data_dir / KEY_FILE
    make_directory(data_dir)
    if not path.exists():
        with contextlib.suppress(FileExistsError):  # another drill made it meanwhile
            create_secret_file(path, randomness.token(_SEED_BYTES).hex().encode() + b"\n")
    return _read_key(path)


def _read_key(path: Path) -> DrillKey:
    try:
        return DrillKey(bytes.fromhex(read_secret_file(path).decode()))
    except ValueError:
        raise errors.ConfigurationError(
            f"{path} is not the key of drill reports", hint="remove it: a new one is made"
        ) from None
