"""A broker with its lake process, as a person starts them, and what can be seen of both from outside."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.serve_process import ServeProcess

Found = TypeVar("Found")
WAIT_SECONDS = 60.0


class LakeRun:
    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.process = ServeProcess(data_dir, "--set", "lake.managed=true", *arguments)
        with self.process.killed_on_failure():
            self.greeting = "\n".join(self.process.greeting())
            address = re.search(r"http://127\.0\.0\.1:(\d+)/readyz", self.greeting)
            assert address is not None, self.greeting
            self.http_port = int(address[1])
        self.lake_port = 0

    def health(self) -> str:
        return get(self.http_port, "/readyz?verbose")[1]

    def until_lake(self) -> int:
        """The port of the lake process, when it listens."""

        def look() -> int:
            health_line = re.search(r"\[\+\] lake: listens on port (\d+)", self.health())
            return int(health_line[1]) if health_line is not None else 0

        self.lake_port = until(look)
        return self.lake_port

    def until_api(self) -> None:
        self.until_lake()
        until(lambda: get(self.lake_port, "/readyz")[0] == 200)

    @property
    def lake_pid(self) -> int:
        (pid,) = children_of(self.process.pid)
        return pid

    def __enter__(self) -> LakeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__()

    def stop(self) -> tuple[int, str]:
        return self.process.stop(signal.SIGTERM)


def until(look: Callable[[], Found], seconds: float = WAIT_SECONDS, pause_seconds: float = 0.02) -> Found:
    """The first truthy result of `look`, which is called again and again."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, "timed out waiting for a result"
        time.sleep(pause_seconds)
    return answer


def get(port: int, path: str) -> tuple[int, str]:
    return request(port, "GET", path)


def request(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    raw = None if body is None else json.dumps(body).encode()
    http_request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", raw, {"Content-Type": "application/json", **(headers or {})}
    )
    http_request.get_method = lambda: method  # type: ignore[method-assign]
    try:
        with urllib.request.urlopen(http_request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def is_running(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """Of all its threads."""
    pids: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids += map(int, listed.read_text(encoding="ascii").split())
    return [child for child in pids if is_running(child)]
