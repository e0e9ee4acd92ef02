"""Mutual TLS between nodes: each presents a certificate, and accepts only those signed by the cluster's own authority.

It must be an authority of the cluster's own, not a public one and not that of clients: every certificate that it signs
may be a node. The dialling side also compares the host name or address with the certificate.

With `meta_store.tls_cluster`, and always with accounts, a certificate names its cluster and its node, as a URI among
its subject alternative names (hazard 105):

    icestream://CLUSTER/NODE        NODE is `node.name`

A certificate of node A cannot speak for node B: the name is compared with the record that the cluster has of the node
id in the greeting, and a node joins under the name of its certificate only. Nothing is answered before.

The files are read again when they change, as those of other listeners (runtime/listener_tls.py): connections that open
afterwards present the new certificate and trust the new authority. Open ones stay.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from icestream import errors
from icestream.runtime.listener_tls import ListenerTls, Pem, TlsFiles, peer_client_context

LISTENER: Final = "raft"
NODE_URI: Final = "icestream://{cluster}/{node}"


def certified_name(transport: asyncio.BaseTransport, cluster: str) -> str:
    """The node that the certificate of the other side names. Raises ForeignCluster if it names none of `cluster`."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None
    prefix = NODE_URI.format(cluster=cluster, node="")
    names = cast("tuple[tuple[str, str], ...]", (certificate or {}).get("subjectAltName", ()))
    uris = [value for kind, value in names if kind == "URI"]
    nodes = [uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)]
    if len(nodes) != 1 or not nodes[0]:
        raise errors.ForeignCluster(
            "the certificate of the other side does not name a node of this cluster",
            hint=f"it needs one URI `{NODE_URI.format(cluster=cluster, node='NODE')}` among its alternative names",
        )
    return nodes[0]


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The PEM files of one node: its certificate with its key, and the authority of the cluster."""

    certificate: Path
    key: Path
    authority: Path

    def client_context(self) -> ssl.SSLContext:
        """The context for dialled connections, from the files as they are now. Raises ConfigurationError."""
        return PeerCertificates(self).client_context


class PeerCertificates:
    """The certificate of a node in use: for connections that it accepts, and for those that it dials."""

    def __init__(self, files: PeerTls) -> None:
        """Raises ConfigurationError for files that cannot be used."""
        self.listener = ListenerTls(
            LISTENER,
            TlsFiles(
                "meta_store.tls_certificate",
                files.certificate,
                files.key,
                files.authority,
                "required",
                is_latest_only=True,
                client_ca_setting="meta_store.tls_authority",
            ),
        )
        self.client_context = peer_client_context(self.listener.pem)
        self.listener.on_change.append(self._renew)

    def _renew(self, pem: Pem) -> None:
        self.client_context = peer_client_context(pem)
