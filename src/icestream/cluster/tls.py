"""Mutual TLS between nodes: each shows a certificate, and takes only those that the cluster's own authority signed.

An authority of the cluster's own, not a public one: whoever it signs may be a node. The dialler also compares the name
or address that it dials with the certificate.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from icestream import errors

HINT: Final = (
    "the settings meta_store.tls_… name PEM files; `icestream cluster certificates` makes some for development"
)


@dataclass(frozen=True, slots=True)
class PeerTls:
    """PEM files."""

    certificate: Path
    key: Path
    authority: Path

    def server_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, end: int) -> ssl.SSLContext:
        context = ssl.SSLContext(end)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, (self.certificate, self.key, self.authority)))
            raise errors.ConfigurationError(f"TLS between nodes: {names}: {error}", hint=HINT) from None
        return context
