"""The recorder of system calls, compiled once for each worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import syscall_recorder


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = syscall_recorder.library(tmp_path_factory.mktemp("recorder"))
    if library is None:
        pytest.skip("there is no C compiler (cc) on this machine: the order of system calls cannot be recorded")
    return library
