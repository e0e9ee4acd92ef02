"""A client against a real broker in this process: what holds for everything on its connection."""

from __future__ import annotations

import pytest

import icestream
from icestream import errors

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"


async def test_compressed_frames_carry_messages_both_ways() -> None:
    payload = b'{"coffee": "espresso", "price": 210}' * 1000
    async with (
        icestream.testing.broker() as broker,
        icestream.connect(broker.address, compression=True) as client,
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s") as messages,
    ):
        agreed = {one.agreed.compression is not None for one in broker.node.native._connections}
        assert agreed == {True}
        sent = [producer.send(payload + b"%d" % number) for number in range(20)]
        assert [(await one).offset for one in sent] == list(range(20))
        found = [await anext(messages) for _ in range(20)]
        assert [message.payload for message in found] == [payload + b"%d" % number for number in range(20)]


async def test_the_largest_message_that_a_broker_allows_goes_through_whatever_its_settings() -> None:
    wal = {"max_message_bytes": 20_000_000, "max_file_size": "128MiB"}
    settings = {"storage": {"iceberg_config": {"wal": wal}}}
    async with (
        icestream.testing.broker(settings=settings) as broker,
        icestream.connect(broker.address) as client,
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s") as messages,
    ):
        await producer.send(bytes(20_000_000))
        assert len((await anext(messages)).payload) == 20_000_000
        with pytest.raises(errors.MessageTooLarge):
            await producer.send(bytes(20_100_000))


async def test_a_broker_for_tests_takes_messages_as_large_as_a_real_one() -> None:
    for storage in ("memory", "disk"):
        async with (
            icestream.testing.broker(storage) as broker,  # type: ignore[arg-type]  # one of the two
            icestream.connect(broker.address) as client,
            client.producer(TOPIC) as producer,
        ):
            assert (await producer.send(bytes(4_000_000 - 1000))).offset == 0
            with pytest.raises(errors.MessageTooLarge):
                await producer.send(bytes(4_100_000))
