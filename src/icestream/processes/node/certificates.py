"""The certificates of a node: of its listeners, and of its Raft port; and the check that warns before they expire.

All are read again when their files change (runtime/listener_tls.py). The lake process does so by itself: here its
certificate is read for the check, and to ask it whether it lives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from icestream import errors, limits
from icestream.cluster.tls import LISTENER, PeerCertificates, PeerTls
from icestream.observability.health import Check
from icestream.observability.log import get_logger
from icestream.runtime.certificate import end_of_file
from icestream.runtime.clock import Clock
from icestream.runtime.listener_tls import LISTENERS, ListenerTls, follow_files, open_listener_tls
from icestream.settings import Settings

_log = get_logger("tls")


class Certificate(NamedTuple):
    setting: str
    path: Path
    end: datetime


class NodeCertificates:
    """All certificates of one node."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError for files of a listener that cannot be used."""
        is_off = {"danube": not settings.danube.enable, "mqtt": not settings.mqtt.enable}
        names = [name for name in LISTENERS if not is_off.get(name)]
        opened = {name: open_listener_tls(settings, name) for name in names}
        self.peers = open_peer_certificates(settings)
        opened[LISTENER] = None if self.peers is None else self.peers.listener
        self.listeners: Mapping[str, ListenerTls] = {name: tls for name, tls in opened.items() if tls is not None}

    async def follow(self, clock: Clock) -> None:
        """Reads the files of listeners again when they change, until the task is cancelled."""
        await follow_files(list(self.listeners.values()), clock, report_change)

    def certificates(self) -> list[Certificate]:
        """One for each setting. An unreadable file is skipped: its listener raises the reason."""
        certificates: dict[str, Certificate] = {}
        for tls in self.listeners.values():
            if tls.end is not None:
                certificates.setdefault(
                    tls.files.setting, Certificate(tls.files.setting, tls.files.certificate, tls.end)
                )
        for setting, path in self._other_files():
            try:
                certificates.setdefault(setting, Certificate(setting, path, end_of_file(path)))
            except (OSError, errors.DecodeError):
                continue
        return list(certificates.values())

    def _other_files(self) -> Iterator[tuple[str, Path]]:
        """Setting and path of the authorities."""
        for tls in self.listeners.values():
            if tls.files.client_ca is not None and tls.pem.client_authorities is not None:
                yield tls.files.authority_setting, tls.files.client_ca

    def check(self, now: datetime) -> Check | None:
        """None without certificates. Informational: open connections and other listeners are not affected."""
        fault = next((tls.fault for tls in self.listeners.values() if tls.fault), "")
        if fault:
            reason = f"changed TLS files are not in use: {fault}; new connections get the former certificate"
            return Check("certificates", False, reason, is_needed=False)
        return certificates_check(self.certificates(), now)


def open_peer_certificates(settings: Settings) -> PeerCertificates | None:
    """The certificate of the Raft port; None for plain text. Raises ConfigurationError."""
    meta_store = settings.meta_store
    if meta_store.tls_certificate is None or meta_store.tls_key is None or meta_store.tls_authority is None:
        return None
    return PeerCertificates(PeerTls(meta_store.tls_certificate, meta_store.tls_key, meta_store.tls_authority))


def report_change(tls: ListenerTls) -> None:
    """Logs what became of files that have changed."""
    if tls.fault:
        _log.error(
            "changed TLS files cannot be used; the former certificate stays", listener=tls.listener, reason=tls.fault
        )
    else:
        _log.info("read the changed TLS files", listener=tls.listener, end=tls.end.isoformat() if tls.end else "")


def certificates_check(certificates: Sequence[Certificate], now: datetime) -> Check | None:
    """None without certificates."""
    if not certificates:
        return None
    first = min(certificates, key=lambda certificate: certificate.end)
    name = f"{first.path} ({first.setting})"
    fix = "put a new one there"
    if first.end <= now:
        reason = f"{name} ended at {first.end.isoformat()}: new connections fail; {fix}"
        return Check("certificates", False, reason, is_needed=False)
    days = math.ceil((first.end - now) / timedelta(days=1))
    remaining = f"{days} days" if days > 1 else "less than a day"
    if days <= limits.CERTIFICATE_DAYS_MIN:
        return Check("certificates", False, f"{name} ends in {remaining}; {fix}", is_needed=False)
    return Check("certificates", True, f"the first to end is {name}, in {remaining}", is_needed=False)
