"""The child process of the scenario `catalog`: clients of an Iceberg REST catalog, each with a table of its own.

python -m bench.catalog_client ADDRESS commit|append|load CLIENTS SECONDS [SNAPSHOTS]

One loop over all connections, each with one request in flight and the next behind its answer, every answer looked at.

    commit    sets one property, and requires the table's UUID
    append    as an engine: writes a data file and a manifest list into the table's folder, without a sync, and commits
              a snapshot that names them on top of the one before; beyond the newest ones snapshots expire
    load      reads the table

SNAPSHOTS: as many has each table. What is needed to make the tables is not counted. Says what it saw as JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

SCHEMA = {
    "type": "struct",
    "fields": [{"id": number, "name": f"c{number}", "type": "long", "required": False} for number in range(1, 16)],
}
READ_BYTES = 256 * 1024
# An append: what a task of a streaming engine writes in a second or so, and how many snapshots are kept.
DATA_BYTES = 64 * 1024
LIST_BYTES = 4 * 1024
KEPT_SNAPSHOTS = 50


class Client:
    """One connection: a request, its whole answer, the next."""

    def __init__(self, address: str) -> None:
        self._host = address
        name, _, port = address.rpartition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = bytearray()
        self._wanted = 0  # bytes of the answer, when its head is there
        self.began = 0.0
        self.took: list[float] = []
        self.table = ""
        self.uuid = ""
        self.folder = Path()
        self.sent = 0

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def call(self, method: str, path: str, document: Any = None) -> Any:
        body = b"" if document is None else json.dumps(document).encode()
        self.socket.sendall(self.request(method, path, body))
        while not self.received():
            pass
        return self.taken()

    def received(self) -> bool:
        """Whether the answer is whole."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._answer += data
        if not self._wanted and (end := self._answer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._answer[:end]).lower()
            _, _, length = head.partition(b"content-length: ")
            self._wanted = end + 4 + int(length.split(b"\r\n")[0] or 0)
        return 0 < self._wanted <= len(self._answer)

    def taken(self) -> Any:
        answer, self._answer, self._wanted = bytes(self._answer), bytearray(), 0
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(answer[:2000].decode("utf-8", "replace"))
        return body

    def checked(self) -> None:
        """The answer of a measured request: it must be the table."""
        body = self.taken()
        if self.uuid.encode() not in body:
            raise RuntimeError(f"no answer about table {self.uuid}: {body[:500]!r}")

    def make_table(self, namespace: str, name: str, snapshots: int) -> None:
        where = f"/v1/namespaces/{namespace}/tables"
        made = json.loads(self.call("POST", where, {"name": name, "schema": SCHEMA}))
        self.table, self.uuid = f"{where}/{name}", made["metadata"]["table-uuid"]
        self.folder = Path(made["metadata"]["location"].removeprefix("file:"))
        if snapshots:
            self.call("POST", self.table, history(made["metadata"]["location"], snapshots))

    def next(self, what: str, now: float) -> None:
        self.began = now
        self.sent += 1
        if what == "load":
            self.socket.sendall(self.request("GET", self.table))
            return
        if what == "append":
            self.socket.sendall(self.request("POST", self.table, self.append(self.sent)))
            return
        body = (
            b'{"requirements":[{"type":"assert-table-uuid","uuid":"%s"}],'
            b'"updates":[{"action":"set-properties","updates":{"n":"%010d"}}]}' % (self.uuid.encode(), self.sent)
        )
        self.socket.sendall(self.request("POST", self.table, body))

    def append(self, number: int) -> bytes:
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / f"{number}.parquet").write_bytes(bytes(DATA_BYTES))
        manifests = self.folder / "metadata" / f"snap-{number}.avro"
        manifests.write_bytes(bytes(LIST_BYTES))
        summary = {"operation": "append", "added-records": "1000", "total-records": str(1000 * number)}
        snapshot: dict[str, Any] = {
            "snapshot-id": number, "sequence-number": number, "timestamp-ms": time.time_ns() // 1_000_000,
            "manifest-list": f"file:{manifests}", "summary": summary, "schema-id": 0,
        }  # fmt: skip
        before = number - 1 or None
        if before is not None:
            snapshot["parent-snapshot-id"] = before
        updates: list[dict[str, Any]] = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ]
        if number > KEPT_SNAPSHOTS:
            updates.append({"action": "remove-snapshots", "snapshot-ids": [number - KEPT_SNAPSHOTS]})
        requirements = [
            {"type": "assert-table-uuid", "uuid": self.uuid},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": before},
        ]
        return json.dumps({"requirements": requirements, "updates": updates}).encode()


def history(location: str, count: int) -> dict[str, Any]:
    """A commit that gives a table so many snapshots."""
    now_ms = time.time_ns() // 1_000_000 - count
    updates: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        snapshot: dict[str, Any] = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": now_ms + number,
            "manifest-list": f"{location}/metadata/snap-{number}-{uuid.uuid4()}.avro",
            "summary": {"operation": "append", "added-records": "1000", "total-records": str(1000 * number)},
            "schema-id": 0,
        }
        if number > 1:
            snapshot["parent-snapshot-id"] = number - 1
        updates.append({"action": "add-snapshot", "snapshot": snapshot})
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": count}
    return {"requirements": [], "updates": [*updates, main]}


def run(clients: list[Client], what: str, seconds: float) -> float:
    """Until the time is over; how long it took. Requests under way at the end are waited for and not counted."""
    with selectors.DefaultSelector() as waiting:
        began = time.perf_counter()
        end = began + seconds
        for client in clients:
            client.next(what, time.perf_counter())
            waiting.register(client.socket, selectors.EVENT_READ, client)
        busy = len(clients)
        while busy:
            for key, _ in waiting.select():
                client = key.data
                if not client.received():
                    continue
                client.checked()
                now = time.perf_counter()
                if now < end:
                    client.took.append(now - client.began)
                    client.next(what, now)
                else:
                    waiting.unregister(client.socket)
                    busy -= 1
        return min(time.perf_counter(), end) - began


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)] if sorted_values else 0.0


def main() -> None:
    if len(sys.argv) not in (5, 6):
        sys.exit((__doc__ or "").split("\n\n")[1])
    address, what, count, seconds, *more = sys.argv[1:]
    clients = [Client(address) for _ in range(int(count))]
    namespace = f"bench_{uuid.uuid4().hex}"
    clients[0].call("POST", "/v1/namespaces", {"namespace": [namespace]})
    for number, client in enumerate(clients):
        client.make_table(namespace, f"t{number}", int(more[0]) if more else 0)
    print("ready", flush=True)
    cpu = time.process_time()
    took = run(clients, what, float(seconds))
    times = sorted(run for client in clients for run in client.took)
    found = {
        "requests": len(times),
        "seconds": took,
        "cpu_seconds": time.process_time() - cpu,
        "p50_us": 1e6 * percentile(times, 0.5),
        "p99_us": 1e6 * percentile(times, 0.99),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
