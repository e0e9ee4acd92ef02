"""Hazard 97: every place where bytes of messages may be is in one table, with what an erasure does about it."""

from __future__ import annotations

import re

import pytest

from icestream.broker.erasure_service import NOT_COVERED
from icestream.model.erasure_places import (
    DIRECTORIES_WITHOUT_MESSAGES,
    KEYS_WITHOUT_MESSAGES,
    PLACES,
    ErasurePlace,
)
from tests.tidy.tree import ROOT, read, repository_files

_SOURCES = [path for path in repository_files() if path.is_relative_to(ROOT / "src") and path.suffix == ".py"]
_DIRECTORY = re.compile(r"\bdata_dir / f?\"([^\"/]+)")
# A constant of a module that begins with a slash and a word: a key of the metadata store, or a path of HTTP.
_PREFIX = re.compile(r"^_?[A-Z_]+(?:: Final)? = f?\"(/[a-z_]+)(?:/[^\"]*)?\"", re.MULTILINE)
_HTTP = {"/api", "/v1", "/metrics"}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_place_is_erased_and_checked_or_named_in_each_report(place: ErasurePlace) -> None:
    modules = [module for module in (place.search, place.erase, place.check) if module]
    assert bool(place.not_covered) != bool(place.erase and place.check)
    assert [module for module in modules if not (ROOT / "src/icestream" / module).is_file()] == []
    assert (place.not_covered in NOT_COVERED) == bool(place.not_covered)
    assert f"| {place.name} |" in read("docs/table-care.md"), "the page about erasures has a row for it"


def test_every_directory_of_a_node_is_a_place_or_has_no_messages() -> None:
    known = {directory for place in PLACES for directory in place.directories} | DIRECTORIES_WITHOUT_MESSAGES.keys()
    used = {name for path in _SOURCES for name in _DIRECTORY.findall(path.read_text(encoding="utf-8"))}
    assert used
    assert used - known == set(), "add it to model/erasure_places.py: what does an erasure do about it?"


def test_every_prefix_of_the_metadata_store_is_a_place_or_has_no_messages() -> None:
    known = {key for place in PLACES for key in place.keys} | KEYS_WITHOUT_MESSAGES.keys()
    used = {name for path in _SOURCES for name in _PREFIX.findall(path.read_text(encoding="utf-8"))} - _HTTP
    assert {f"{name}/" for name in used} - known == set(), "add it to model/erasure_places.py"
    assert known - {f"{name}/" for name in used} == set(), "it is gone: remove it from model/erasure_places.py"
