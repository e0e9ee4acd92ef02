"""Refuses to serve other machines without accounts, and accounts beside open ways in: a Raft port without certificates,
tokens and keys of the settings that know no account, an open Spark cluster.

TLS is checked with the settings (`settings/tree.py`). Accounts are in the metadata store, so this is known when it is
open: before the listeners of clients open. Until then only health and metrics of the node are served, by TLS.
"""

from __future__ import annotations

from icestream import errors
from icestream.cluster.cluster_node import ClusterNode
from icestream.metadata.store import MetadataStore
from icestream.security.security_records import ENABLED
from icestream.settings import Settings


def check_beside_accounts(settings: Settings) -> None:
    """Raises ConfigurationError for settings that are ways around the accounts of a broker: tokens and keys of the lake
    process, a Spark cluster whose network any host may join."""
    if settings.lake.share_keys:
        raise errors.ConfigurationError(
            "lake.share_keys is set, and this broker has accounts: the keys of the object store open every table",
            hint="remove lake.share_keys and lake.token_file; give each engine keys of its own",
        )
    if settings.lake.token_file is not None:
        raise errors.ConfigurationError(
            "lake.token_file is set, and this broker has accounts: its tokens belong to no account",
            hint="remove lake.token_file; `icestream security tokens create PRINCIPAL` issues the tokens of accounts",
        )
    spark = settings.pipeline.spark
    if not spark.is_private and not settings.node.allow_insecure_bind:
        raise errors.ConfigurationError(
            f"this broker has accounts, and Spark at {spark.master} does not authenticate and encrypt its connections: "
            "they have the messages of every topic and the keys of the tables",
            hint="add spark.authenticate=true, spark.network.crypto.enabled=true and, but for YARN and Kubernetes, "
            "spark.authenticate.secret to pipeline.spark.conf and to the cluster; or accept the risk with "
            "`node.allow_insecure_bind: true`",
        )


async def check_accounts(settings: Settings, store: MetadataStore, cluster: ClusterNode | None = None) -> None:
    """Raises ConfigurationError if other machines could reach this node, which has no accounts; or if it has accounts,
    and other nodes need not prove their identity. `cluster`: None for a single node."""
    has_accounts = await store.get(ENABLED) is not None
    if has_accounts:
        check_beside_accounts(settings)
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
