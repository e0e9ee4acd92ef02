"""Mutual TLS between nodes: each presents a certificate, and accepts only those signed by the cluster's own authority.

It must be an authority of the cluster's own, not a public one and not that of clients: every certificate that it signs
may be a node. The dialling side also compares the host name or address with the certificate.

With `meta_store.tls_cluster`, and always with accounts, a certificate names its cluster and its node, as a URI among
its subject alternative names (hazard 105):

    icestream://CLUSTER/NODE        NODE is `node.name`

A certificate of node A cannot speak for node B: the name is compared with the record that the cluster has of the node
id in the greeting, and a node joins under the name of its certificate only. Nothing is answered before.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from icestream import errors
from icestream.runtime.secret_file import check_secret_file

HINT: Final = (
    "the settings meta_store.tls_… name PEM files; `icestream cluster certificates` makes some for development"
)


NODE_URI: Final = "icestream://{cluster}/{node}"


def certified_name(transport: asyncio.BaseTransport, cluster: str) -> str:
    """The node that the certificate of the other side names. Raises ForeignCluster if it names none of `cluster`."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    shown = tls.getpeercert() if tls is not None else None
    prefix = NODE_URI.format(cluster=cluster, node="")
    names = cast("tuple[tuple[str, str], ...]", (shown or {}).get("subjectAltName", ()))
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
        check_secret_file("meta_store.tls_key", self.key)
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, (self.certificate, self.key, self.authority)))
            raise errors.ConfigurationError(
                f"cannot load TLS files for the Raft port: {names}: {error}", hint=HINT
            ) from None
        return context
