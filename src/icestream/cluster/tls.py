"""Mutual TLS between nodes: each presents a certificate, and accepts only those signed by the cluster's own authority.

It must be an authority of the cluster's own, not a public one: every certificate that it signs may be a node. The
dialling side also compares the host name or address with the certificate.
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
    """The PEM files of one node."""

    certificate: Path
    key: Path
    authority: Path

    def server_context(self) -> ssl.SSLContext:
        """The context for accepted connections."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:
        """The context for dialled connections."""
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
            raise errors.ConfigurationError(
                f"cannot load TLS files for the Raft port: {names}: {error}", hint=HINT
            ) from None
        return context
