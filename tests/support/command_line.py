"""`icestream …` in this process: the entry point itself, with an input, and what it answered."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

from icestream.cli.main import main
from tests.support.serve_process import COMMAND


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def icestream(*arguments: str, given: bytes = b"") -> CommandResult:
    """Runs one command to its end."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    code: object = 0
    with (
        patch.object(sys, "argv", ["icestream", *arguments]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int), code
    return CommandResult(code, _text(out), _text(err))


@contextlib.contextmanager
def icestream_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The same as a process of its own, with pipes. It does not outlive the test, however that ends."""
    # buffered as for every user: what is to be seen at once must be flushed
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return os.fsdecode(buffer.getvalue())
