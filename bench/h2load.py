"""h2load, of nghttp2, as a client of gRPC: the same call again and again, so many at a time. It knows HTTP/2, and not
what an answer means: a call that is refused succeeds too, only without a message. So the bytes of all answers are
counted, and whoever can looks at what arrived."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench import process
from bench.harness import MissingPeer, RunFailed

SUCCEEDED = re.compile(r"requests: .* (\d+) succeeded")
SECONDS = re.compile(r"finished in ([\d.]+)(us|ms|s)")
DATA = re.compile(r"headers .*\((\d+)\) data")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Calls:
    """What one run saw. CPU: of the server and its children."""

    count: int
    seconds: float
    server_cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def server_us(self) -> float:
        return 1e6 * self.server_cpu_seconds / self.count


def program() -> str:
    found = shutil.which("h2load")
    if found is None:
        raise MissingPeer("h2load is not installed: apt-get install nghttp2-client")
    return found


def call(
    address: str,
    pid: int,
    path: str,
    message: bytes,
    place: Path,
    count: int,
    connections: int,
    calls: int,
    answer_bytes: int,
) -> Calls:
    """`calls`: under way at once on each connection. `answer_bytes`: of the message in each answer."""
    body = place / "body.bin"
    body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    words = [program(), "-n", str(count), "-c", str(connections), "-m", str(calls), "-t", "1", "-d", str(body)]
    words += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://{address}{path}"]
    pids = process.family(pid)
    before = process.cpu_seconds(pids)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    used = process.cpu_seconds(pids) - before
    succeeded, took = SUCCEEDED.search(done.stdout), SECONDS.search(done.stdout)
    if done.returncode or succeeded is None or took is None or int(succeeded[1]) != count:
        raise RunFailed(f"h2load: {(done.stdout + done.stderr).strip()[-500:]}")
    data = DATA.search(done.stdout)
    if data is None or int(data[1]) != count * (5 + answer_bytes):
        raise RunFailed(f"{path}: not every call was answered with a message: {done.stdout.strip()[-500:]}")
    return Calls(count, float(took[1]) * UNITS[took[2]], used)
