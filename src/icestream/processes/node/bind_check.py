"""Refuses to serve other machines without accounts, and accounts without a door at the Raft port.

TLS is checked with the settings (`settings/tree.py`). Accounts are in the metadata store, so this is known when it is
open: before the listeners of clients open. Until then only health and metrics of the node are served, by TLS.
"""

from __future__ import annotations

from icestream import errors
from icestream.cluster.cluster_node import ClusterNode
from icestream.metadata.store import MetadataStore
from icestream.security.security_records import ENABLED
from icestream.settings import Settings


async def check_accounts(settings: Settings, store: MetadataStore, cluster: ClusterNode | None = None) -> None:
    """Raises ConfigurationError if other machines could reach this node, which has no accounts; or if it has accounts,
    and other nodes need not prove who they are. `cluster`: None for a single node."""
    has_accounts = await store.get(ENABLED) is not None
    if has_accounts and cluster is not None and not cluster.is_certified:
        raise errors.ConfigurationError(
            "this broker has accounts, and its Raft port would let every process that reaches it change them",
            hint="set meta_store.tls_certificate, tls_key, tls_authority and tls_cluster; `icestream cluster "
            "certificates DIRECTORY --cluster CLUSTER --name NODE` makes such files for development",
        )
    if settings.needs_accounts and not has_accounts:
        raise errors.ConfigurationError(
            f"node.bind_host {settings.node.bind_host} can be reached from other machines, and this broker has no "
            "accounts: every client could read and write every topic",
            hint="start it once with node.bind_host 127.0.0.1 and run `icestream security init`; or accept the risk "
            "with `node.allow_insecure_bind: true`",
        )
