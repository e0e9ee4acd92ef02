"""The error of an unreachable object store contains the cause that its library hides."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.catalogs.bucket import cause_of, open_bucket
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_options import StoreOptions
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.free_ports import free_ports


@pytest.mark.asyncio
async def test_a_refused_connection_is_named_also_by_the_circuit_breaker() -> None:
    (port,) = free_ports(1)
    options = StoreOptions(
        kind="s3", bucket="shop", endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key_id="key",
        secret_access_key="not-to-be-told",
    )  # fmt: skip
    caller = StorageCaller("object store shop", SystemClock(), SystemRandomness(), CallTimeouts(attempts_max=1))
    objects = open_bucket(options, "s3", "shop", caller)
    messages = []
    for _ in range(10):
        with pytest.raises(errors.StorageUnavailable) as failed:
            await objects.exists("some/file")
        messages.append(failed.value)
    assert all("Connection refused" in error.message for error in messages)
    assert isinstance(messages[-1], errors.CircuitOpen)
    assert "next attempt in" in messages[-1].message
    assert not any("not-to-be-told" in error.message for error in messages)


def test_only_a_failed_connection_has_a_cause() -> None:
    assert cause_of("") == ""
    assert cause_of('Generic S3 error\n\nDebug source:\nStatus { body: Some("secret words") }') == ""
    assert (
        cause_of('x\n kind: Connect,\n "tcp connect error",\n message: "Connection refused",') == "Connection refused: "
    )
