"""A node that other machines can reach serves nobody without TLS and accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.bind_check import check_accounts
from icestream.security.security_records import ENABLED
from tests.support.certificates import Certificates
from tests.support.node_settings import node_settings


@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_a_node_for_other_machines_needs_accounts(tmp_path: Path) -> None:
    tls = Certificates(tmp_path / "pem").settings()
    reachable = node_settings(tmp_path / "data", tls=tls, node={"bind_host": "0.0.0.0"})
    with pytest.raises(errors.ConfigurationError, match="no accounts") as refused:
        await BrokerNode.start(reachable)
    assert "icestream security init" in refused.value.hint
    assert "node.allow_insecure_bind" in refused.value.hint
    node = await BrokerNode.start(node_settings(tmp_path / "data", tls=tls))
    try:
        await node.store.put(ENABLED, b"{}")
        await check_accounts(reachable, node.store)
    finally:
        await node.stop()
