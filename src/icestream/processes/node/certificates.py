"""The certificates of a node, and the check that warns before they expire.

They are read once: a listener keeps the certificate that it was opened with, whatever the file contains later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from icestream import errors, limits
from icestream.observability.health import Check
from icestream.processes.node.front_ends import FRONT_ENDS
from icestream.runtime.certificate import end_of_file
from icestream.settings import Settings


class Certificate(NamedTuple):
    setting: str
    path: Path
    end: datetime


def read_certificates(settings: Settings) -> list[Certificate]:
    """The certificates of the settings. An unreadable file is skipped: its listener raises the reason."""
    certificates = []
    for setting, path in _files(settings):
        try:
            certificates.append(Certificate(setting, path, end_of_file(path)))
        except (OSError, errors.DecodeError):
            continue
    return certificates


def _files(settings: Settings) -> Iterator[tuple[str, Path]]:
    for front_end in FRONT_ENDS:
        yield from front_end.certificate_files(settings)
    meta_store = settings.meta_store
    files = (
        ("meta_store.tls_certificate", meta_store.tls_certificate),
        ("meta_store.tls_authority", meta_store.tls_authority),
    )
    yield from ((setting, path) for setting, path in files if path is not None)


def certificates_check(certificates: Sequence[Certificate], now: datetime) -> Check | None:
    """None without certificates. Informational: open connections and other listeners are not affected."""
    if not certificates:
        return None
    first = min(certificates, key=lambda certificate: certificate.end)
    name = f"{first.path} ({first.setting})"
    fix = "put a new one there and restart this node"
    if first.end <= now:
        reason = f"{name} ended at {first.end.isoformat()}: new connections fail; {fix}"
        return Check("certificates", False, reason, is_needed=False)
    days = math.ceil((first.end - now) / timedelta(days=1))
    remaining = f"{days} days" if days > 1 else "less than a day"
    if days <= limits.CERTIFICATE_DAYS_MIN:
        return Check("certificates", False, f"{name} ends in {remaining}; {fix}", is_needed=False)
    return Check("certificates", True, f"the first to end is {name}, in {remaining}", is_needed=False)
