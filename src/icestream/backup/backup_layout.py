"""Names inside of a backup target (ADR 70). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final

from icestream import errors

BACKUPS: Final = "backups/"
OBJECTS: Final = "objects/"
DELETIONS: Final = "deletions/"
INVENTORY: Final = "inventory"
ENCRYPTED: Final = ".enc"
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAME_CHARACTERS: Final = 200
_SUFFIX: Final = re.compile(r"\.[a-z0-9]{1,12}")
_STORED: Final = re.compile(r"objects/[0-9a-f]{2}/([0-9a-f]{64})(?:\.[a-z0-9]{1,12})?(?:\.enc)?")


def new_backup_id(time_ms: int, random: bytes) -> str:
    """The id of a backup that begins at this time; `random` has 4 bytes."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{random.hex()}"


def check_backup_id(text: str) -> str:
    """Raises InvalidInput for what is not the id of a backup: it becomes a part of names."""
    if not _ID.fullmatch(text):
        raise errors.InvalidInput(
            f"not the id of a backup: {text[:80]!r}", hint="`icestream backup list` shows the ids"
        )
    return text


def check_name(name: str) -> str:
    """Returns the name of something in a target. Raises BackupDamaged for one that leads out of it: names are read from
    the target itself, and may have been changed."""
    if not name or "\x00" in name or any(part in ("", ".", "..") for part in name.rstrip("/").split("/")):
        raise errors.BackupDamaged(f"{name[:_NAME_CHARACTERS]!r} is not a name in a backup target")
    return name


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def begin_name(backup_id: str) -> str:
    return f"{BACKUPS}{backup_id}/begin.json"


def root_name(backup_id: str) -> str:
    return f"{BACKUPS}{backup_id}/backup.json"


def progress_name(backup_id: str, number: int) -> str:
    return f"{BACKUPS}{backup_id}/progress-{number:08d}.json"


def deletion_name(backup_id: str) -> str:
    """The mark of a deletion that is under way."""
    return f"{DELETIONS}{backup_id}.json"


def list_name(backup_id: str, digest: str) -> str:
    return f"{BACKUPS}{backup_id}/objects-{digest}.parquet"


def view_folder(backup_id: str, topic_id: int) -> str:
    """The folder of a table's view; its metadata files lie in `metadata/` below it."""
    return f"{BACKUPS}{backup_id}/topics/{topic_id}"


def object_name(digest: str, suffix: str, *, is_encrypted: bool = False) -> str:
    """The name of the object whose stored bytes have this SHA-256."""
    return f"{OBJECTS}{digest[:2]}/{digest}{suffix}{ENCRYPTED if is_encrypted else ''}"


def digest_of_object(name: str) -> str | None:
    """The SHA-256 in the name of a stored object; None for other names."""
    match = _STORED.fullmatch(name)
    return match[1] if match else None


def suffix_of(location: str) -> str:
    """The suffix that a copy of this file gets; empty unless it is short and plain."""
    suffix = PurePosixPath(location).suffix.lower()
    return suffix if _SUFFIX.fullmatch(suffix) else ""


def backup_id_of(name: str) -> str | None:
    """The id in the name of a root or a begin; None for other names."""
    folder, _, file = name.removeprefix(BACKUPS).partition("/")
    return folder if name.startswith(BACKUPS) and file and _ID.fullmatch(folder) else None
