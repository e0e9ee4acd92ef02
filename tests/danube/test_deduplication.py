"""Retries that carry numbers of their own, over restarts of the broker and of the producer (hazard 7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.danube_broker import DanubeBroker, danube_broker

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]


async def send(producer: Any, incarnation: str, *numbers: int) -> None:
    for number in numbers:
        await producer.send(f"{incarnation}{number}".encode(), {"x-icestream-sequence": f"{incarnation}:{number}"})


async def restart(danube: DanubeBroker) -> None:
    await danube.stop()
    await danube.start()


async def test_hazard_07_a_retry_after_a_restart_of_the_broker_is_stored_once(tmp_path: Path) -> None:
    async with danube_broker(tmp_path, "iceberg") as danube:
        producer = await danube.producer("/default/t")
        received = await danube.consumer("/default/t")
        await send(producer, "a", 1, 2, 3)
        await restart(danube)
        await send(producer, "a", 3, 2, 4, 4)
        await restart(danube)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send(producer, "a", 6)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await send(producer, "a", 5)
        await send(producer, "b", 1)
        payloads: dict[int, bytes] = {}  # by offset: what was acked just before a stop may come again
        while len(payloads) < 6:
            message = await received.next()
            payloads[message.msg_id.topic_offset] = message.payload
        assert [payloads[offset] for offset in range(6)] == [b"a1", b"a2", b"a3", b"a4", b"a5", b"b1"]
        (topic,) = danube.broker.topics
        assert danube.broker.subscription(topic.name, "s").deliveries[0].stream.visible == 6
