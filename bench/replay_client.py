"""Reads a topic from its first message on with the Python client, as Arrow; or its table's files with PyArrow alone.

python -m bench.replay_client ours ADDRESS TOPIC SUBSCRIPTION MESSAGES
python -m bench.replay_client again ADDRESS TOPIC MESSAGES        until it is ended; says `ready` after the first time
python -m bench.replay_client bare FILE…

One line of JSON: rows, seconds, and CPU seconds of this process. Both have every column of the table in memory at the
end of each batch; the imports are not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count

import uvloop

import icestream


async def ours(address: str, topic: str, subscription: str, messages: int) -> int:
    rows = 0
    async with (
        icestream.connect(address, wait=30) as client,
        client.subscribe(topic, subscription, type="exclusive", start="earliest") as found,
    ):
        async for batch in found.batches(max_messages=100_000):
            first = batch.data.column("offset")[0].as_py()
            if first != rows:
                raise RuntimeError(f"offset {first} came after {rows} rows")
            rows += len(batch)
            batch.ack()
            if rows >= messages:
                break
    return rows


async def again(address: str, topic: str, messages: int) -> None:
    for number in count():
        await ours(address, topic, f"again-{os.getpid()}-{number}", messages)
        if not number:
            print("ready", flush=True)


def bare(files: list[str]) -> int:
    import pyarrow.dataset as ds  # type: ignore[import-untyped]

    rows = 0
    for batch in ds.dataset(files, format="parquet").to_batches(batch_size=100_000):
        rows += batch.num_rows
    return rows


def main(words: list[str]) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]

    pa.table({"warm": [1]})
    began, cpu = time.perf_counter(), time.process_time()
    match words:
        case ["ours", address, topic, subscription, messages]:
            rows = uvloop.run(ours(address, topic, subscription, int(messages)))
        case ["again", address, topic, messages]:
            uvloop.run(again(address, topic, int(messages)))
        case ["bare", _, *_]:
            rows = bare(words[1:])
        case _:
            sys.exit(__doc__)
    seconds = time.perf_counter() - began
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu_seconds": time.process_time() - cpu}))


if __name__ == "__main__":
    main(sys.argv[1:])
