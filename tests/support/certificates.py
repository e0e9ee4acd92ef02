"""Certificates for tests: an authority of brokers, one of clients, and strangers. Keys are files of mode 0600."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from icestream import ClientTls

ECDSA = trustme.KeyType.ECDSA


class Certificates:
    """Files below one folder; each certificate is NAME.pem with NAME.key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority, self.clients, self.other = (trustme.CA(key_type=ECDSA) for _ in range(3))
        self.ca, self.client_ca = folder / "ca.pem", folder / "client-ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.clients.cert_pem.write_to_path(self.client_ca)
        self.server = self.issue("server", self.authority, "127.0.0.1", "localhost")
        self.client = self.issue("client", self.clients, "client.test")
        self.stranger = self.issue("stranger", self.other, "client.test")
        self.expired = self.issue(
            "expired", self.clients, "client.test", not_after=datetime.now(UTC) - timedelta(hours=1)
        )

    def issue(self, name: str, authority: trustme.CA, *hosts: str, not_after: datetime | None = None) -> Path:
        """The path of a new certificate."""
        options: dict[str, Any] = {}
        if not_after is not None:
            options = {"not_before": not_after - timedelta(days=1), "not_after": not_after}
        issued = authority.issue_cert(*hosts, key_type=ECDSA, **options)
        path = self.folder / f"{name}.pem"
        path.write_bytes(issued.cert_chain_pems[0].bytes())
        key = path.with_suffix(".key")
        key.touch(0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return path

    def settings(self, client_certificates: str = "none", **more: Any) -> dict[str, Any]:
        """The section `tls`."""
        section: dict[str, Any] = {
            "certificate": str(self.server), "key": str(self.server.with_suffix(".key")),
            "client_certificates": client_certificates,
        }  # fmt: skip
        if client_certificates != "none":
            section["client_ca"] = str(self.client_ca)
        return section | more

    def client_tls(self, certificate: Path | None = None, **options: Any) -> ClientTls:
        key = None if certificate is None else certificate.with_suffix(".key")
        return ClientTls(**{"ca": self.ca, "certificate": certificate, "key": key, **options})
