"""The certificates that a node was started with, and the check that tells before they end.

They are read once: a listener keeps the certificate that it was opened with, whatever lies in the file later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from icestream import errors, limits
from icestream.observability.health import Check
from icestream.runtime.certificate import end_of_file
from icestream.settings import Settings


class Certificate(NamedTuple):
    setting: str
    path: Path
    end: datetime


def read_certificates(settings: Settings) -> list[Certificate]:
    """Those of the settings. One that cannot be read is left to its listener, which refuses it with the reason."""
    found = []
    for setting, path in _files(settings):
        try:
            found.append(Certificate(setting, path, end_of_file(path)))
        except (OSError, errors.DecodeError):
            continue
    return found


def _files(settings: Settings) -> Iterator[tuple[str, Path]]:
    danube, meta_store = settings.danube, settings.meta_store
    files = (
        ("danube.tls_certificate", danube.tls_certificate if danube.enable else None),
        ("danube.tls_client_ca", danube.tls_client_ca if danube.enable else None),
        ("meta_store.tls_certificate", meta_store.tls_certificate),
        ("meta_store.tls_authority", meta_store.tls_authority),
    )
    yield from ((setting, path) for setting, path in files if path is not None)


def certificates_check(certificates: Sequence[Certificate], now: datetime) -> Check | None:
    """None without certificates. Shown only: open connections and the other listeners go on."""
    if not certificates:
        return None
    first = min(certificates, key=lambda certificate: certificate.end)
    name = f"{first.path} ({first.setting})"
    fix = "put a new one there and restart this node"
    if first.end <= now:
        reason = f"{name} ended at {first.end.isoformat()}: new connections fail; {fix}"
        return Check("certificates", False, reason, is_needed=False)
    days = math.ceil((first.end - now) / timedelta(days=1))
    left = f"{days} days" if days > 1 else "less than a day"
    if days <= limits.CERTIFICATE_DAYS_MIN:
        return Check("certificates", False, f"{name} ends in {left}; {fix}", is_needed=False)
    return Check("certificates", True, f"the first to end is {name}, in {left}", is_needed=False)
