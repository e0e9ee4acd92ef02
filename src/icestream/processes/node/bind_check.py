"""Refuses to serve other machines without accounts. TLS is checked with the settings (`settings/tree.py`).

Accounts are in the metadata store, so this is known when it is open: before the listeners of clients open. Until then
only health and metrics of the node are served, by TLS.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.metadata.store import MetadataStore
from icestream.settings import Settings

SECURITY_SWITCH: Final = "/security/enabled"  # written by `icestream security init`


async def check_accounts(settings: Settings, store: MetadataStore) -> None:
    """Raises ConfigurationError if other machines could reach this node, which has no accounts."""
    if settings.needs_accounts and await store.get(SECURITY_SWITCH) is None:
        raise errors.ConfigurationError(
            f"node.bind_host {settings.node.bind_host} can be reached from other machines, and this broker has no "
            "accounts: every client could read and write every topic",
            hint="start it once with node.bind_host 127.0.0.1 and run `icestream security init`; or accept the risk "
            "with `node.allow_insecure_bind: true`",
        )
