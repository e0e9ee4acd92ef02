"""Directories that cannot be used are refused with the setting that names them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import errors
from icestream.server.directories import check_directory

NOBODY = 65534


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other accounts may enter: that of the test is for its own account alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    check_directory("data_dir", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    check_directory("data_dir", tmp_path / "a" / "b")


def test_a_file_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.ConfigurationError, match=r"file \(data_dir\) is a file"):
        check_directory("data_dir", tmp_path / "file")
    with pytest.raises(errors.ConfigurationError, match=r"below \(data_dir\) cannot be made: .*/file is a file"):
        check_directory("data_dir", tmp_path / "file" / "below")


def test_a_directory_that_the_account_may_not_write_is_refused(public_folder: Path) -> None:
    folder = public_folder / "data"
    folder.mkdir(mode=0o555)
    is_superuser = os.geteuid() == 0
    if is_superuser:  # it may write everywhere
        os.seteuid(NOBODY)
    try:
        with pytest.raises(errors.ConfigurationError, match=r"data \(data_dir\) cannot be written by this account"):
            check_directory("data_dir", folder)
        with pytest.raises(errors.ConfigurationError, match=r"below \(data_dir\) cannot be made: Permission denied"):
            check_directory("data_dir", folder / "below")
    finally:
        if is_superuser:
            os.seteuid(0)
