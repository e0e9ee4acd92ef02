"""Directories that cannot be used are refused with the setting that names them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import errors
from icestream.processes.node.directories import check_directory, check_warehouse

NOBODY = 65534


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other accounts may enter: that of the test is for its own account alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    check_directory("data_dir", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    check_directory("data_dir", tmp_path / "a" / "b")


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.ConfigurationError, match=r"file \(data_dir\) is a file"):
        check_directory("data_dir", tmp_path / "file")
    with pytest.raises(errors.ConfigurationError, match=r"below \(data_dir\) cannot be created: .*/file is a file"):
        check_directory("data_dir", tmp_path / "file" / "below")


@contextlib.contextmanager
def another_account() -> Iterator[None]:
    """Runs as an account without the superuser's right to write everywhere."""
    is_superuser = os.geteuid() == 0
    if is_superuser:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_superuser:
            os.seteuid(0)


def test_a_directory_that_the_account_may_not_write_is_refused(public_folder: Path) -> None:
    folder = public_folder / "data"
    folder.mkdir(mode=0o555)
    with another_account():
        with pytest.raises(errors.ConfigurationError, match=r"data \(data_dir\) cannot be written by this account"):
            check_directory("data_dir", folder)
        with pytest.raises(errors.ConfigurationError, match=r"below \(data_dir\) cannot be created: Permission denied"):
            check_directory("data_dir", folder / "below")


def test_an_unwritable_warehouse_is_refused_and_not_created(public_folder: Path) -> None:
    folder = public_folder / "warehouse"
    folder.mkdir(mode=0o555)
    with another_account():
        with pytest.raises(errors.ConfigurationError, match=r"warehouse\) cannot be written by this account"):
            check_warehouse(folder, is_written=True)
        with pytest.raises(errors.ConfigurationError, match=r"cannot be created: .*/warehouse cannot be written"):
            check_warehouse(folder / "below", is_written=True)
        check_warehouse(folder, is_written=False)  # a lake process of another account writes it
    check_warehouse(public_folder / "new" / "one", is_written=True)
    assert not (public_folder / "new").exists()
