"""Says when the rows of a topic could be read: looks at its table as a reader would, again and again.

python -m bench.watch_table CATALOG TOPIC SECONDS

One line of JSON: [[time in ns, next offset], …], one entry for each snapshot that was seen. It asks 20 times a second
with the ETag of the last answer, which costs the catalog little; what it tells is late by at most that.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.error
import urllib.request

LOOK_SECONDS = 0.05


def watch(catalog: str, topic: str, seconds: float) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    tag, until = "", time.monotonic() + seconds
    while time.monotonic() < until:
        asked = urllib.request.Request(f"{catalog}/v1/namespaces/default/tables/{topic}")
        if tag:
            asked.add_header("If-None-Match", tag)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=30) as answer:
            tag = answer.headers.get("ETag", "")
            metadata, now_ns = json.load(answer)["metadata"], time.time_ns()
            snapshots = {run["snapshot-id"]: run for run in metadata.get("snapshots", ())}
            current = snapshots.get(metadata.get("current-snapshot-id"))
            if current is not None:
                found.append((now_ns, _next(current["summary"]["icestream.committed"])))
        time.sleep(LOOK_SECONDS)
    return found


def _next(committed: str) -> int:
    """Of the only shard."""
    said = json.loads(committed)
    return int(next(iter(said.values())) if isinstance(said, dict) else said[0])


def main(words: list[str]) -> None:
    if len(words) != 3:
        sys.exit(__doc__)
    print(json.dumps(watch(words[0], words[1], float(words[2]))))


if __name__ == "__main__":
    main(sys.argv[1:])
