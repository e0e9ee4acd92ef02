"""The child process of the scenario `catalog`: clients of an Iceberg REST catalog, each with a table of its own.

python -m bench.catalog_client ADDRESS commit|load CLIENTS SECONDS [PACE_MS] [SNAPSHOTS]

One loop over all connections, each with one request in flight, every answer looked at. A commit sets one property, and
requires the table's UUID. PACE_MS: a client sends its next request so long after the one before, not at once.
SNAPSHOTS: as many has each table. What is needed to make the tables is not counted. Says what it saw as JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
import uuid
from typing import Any

SCHEMA = {
    "type": "struct",
    "fields": [{"id": number, "name": f"c{number}", "type": "long", "required": False} for number in range(1, 16)],
}
READ_BYTES = 256 * 1024


class Client:
    """One connection: a request, its whole answer, the next."""

    def __init__(self, address: str) -> None:
        self._host = address
        name, _, port = address.rpartition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = bytearray()
        self._wanted = 0  # bytes of the answer, when its head is there
        self.began = self.due = 0.0
        self.took: list[float] = []
        self.table = ""
        self.uuid = ""
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
        if snapshots:
            self.call("POST", self.table, history(made["metadata"]["location"], snapshots))

    def next(self, what: str, now: float) -> None:
        self.began = now
        self.sent += 1
        if what == "load":
            self.socket.sendall(self.request("GET", self.table))
            return
        body = (
            b'{"requirements":[{"type":"assert-table-uuid","uuid":"%s"}],'
            b'"updates":[{"action":"set-properties","updates":{"n":"%010d"}}]}' % (self.uuid.encode(), self.sent)
        )
        self.socket.sendall(self.request("POST", self.table, body))


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


def run(clients: list[Client], what: str, seconds: float, pace_seconds: float) -> float:
    """Until the time is over; how long it took. Requests under way at the end are waited for and not counted."""
    with selectors.DefaultSelector() as waiting:
        began = time.perf_counter()
        end = began + seconds
        for number, client in enumerate(clients):
            client.due = began + pace_seconds * number / len(clients)
        idle, busy = list(clients), 0
        while busy or idle:
            now = time.perf_counter()
            for client in [one for one in idle if one.due <= now]:
                idle.remove(client)
                if now < end:
                    client.next(what, now)
                    waiting.register(client.socket, selectors.EVENT_READ, client)
                    busy += 1
            next_due = min((one.due for one in idle), default=now + 1)
            for key, _ in waiting.select(max(next_due - now, 0)) if busy or idle else ():
                client = key.data
                if not client.received():
                    continue
                client.checked()
                waiting.unregister(client.socket)
                busy -= 1
                now = time.perf_counter()
                if now < end:
                    client.took.append(now - client.began)
                    client.due = max(client.began + pace_seconds, now) if pace_seconds else now
                    idle.append(client)
        return min(time.perf_counter(), end) - began


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)] if sorted_values else 0.0


def main() -> None:
    if len(sys.argv) not in (5, 6, 7):
        sys.exit((__doc__ or "").split("\n\n")[1])
    address, what, count, seconds, *more = sys.argv[1:]
    pace_ms, snapshots = [*map(float, more), 0.0, 0.0][:2]
    clients = [Client(address) for _ in range(int(count))]
    namespace = f"bench_{uuid.uuid4().hex}"
    clients[0].call("POST", "/v1/namespaces", {"namespace": [namespace]})
    for number, client in enumerate(clients):
        client.make_table(namespace, f"t{number}", int(snapshots))
    print("ready", flush=True)
    cpu = time.process_time()
    took = run(clients, what, float(seconds), pace_ms / 1000)
    times = sorted(one for client in clients for one in client.took)
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
