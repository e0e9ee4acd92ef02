"""Java, PySpark and the jar together: looked at without a change, set up, and said on the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from icestream.errors import MissingPart
from icestream.pipeline.spark_setup import pinned_versions, python_packages
from icestream.pipeline.spark_setup.jar_choice import JarOrigin
from icestream.pipeline.spark_setup.java_choice import JavaOrigin
from icestream.pipeline.spark_setup.spark_install import SetupPaths, cache_of, examine, install_spark
from icestream.settings import load
from tests.support.command_line import icestream
from tests.tidy.tree import read
from tests.unit.pipeline.test_jar import CONTENT, JAR
from tests.unit.pipeline.test_java import install


class Place:
    """A machine with a Java of the given version and an empty cache."""

    def __init__(self, folder: Path, version: str = "17.0.1") -> None:
        self.java = install(folder / "java", version)
        self.jars = folder / "jars"
        self.jars.mkdir()
        self.folder = folder
        self.said: list[str] = []

    def machine(self, environment: Mapping[str, str] | None = None) -> SetupPaths:
        given = {"HOME": str(self.folder), "PATH": ""} if environment is None else environment
        return SetupPaths(self.java, (self.jars,), self.folder / "cache", given)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_looking_changes_nothing(place: Place) -> None:
    (place.jars / JAR.file_name).write_bytes(CONTENT)
    before = sorted(place.folder.rglob("*"))
    found = examine(place.machine(), JAR)
    assert sorted(place.folder.rglob("*")) == before
    assert found.java.java is not None
    assert found.java.java.origin is JavaOrigin.SETTING
    assert found.jars[JAR].copy is not None


def test_given_jars_are_used_where_they_lie_and_nothing_is_said(place: Place) -> None:
    (place.jars / JAR.file_name).write_bytes(CONTENT)
    engine = install_spark(place.machine(), JAR, say=place.said.append)
    assert (engine.jars[JAR], engine.java_home) == (place.jars / JAR.file_name, place.java)
    assert (place.said, (place.folder / "cache").exists()) == ([], False)


def test_a_wrong_given_jar_is_refused_although_a_right_one_is_cached(place: Place) -> None:
    (place.jars / JAR.file_name).write_bytes(CONTENT[:-1] + b"X")
    right = place.folder / "cache" / "jars" / JAR.file_name
    right.parent.mkdir(parents=True)
    right.write_bytes(CONTENT)
    with pytest.raises(MissingPart, match="SHA-256") as refused:
        install_spark(place.machine(), JAR, say=place.said.append)
    assert "ICESTREAM_JARS" in refused.value.hint


def test_a_jar_of_maven_is_copied_into_the_cache(place: Place) -> None:
    folder = place.folder / ".m2" / "repository" / "org" / "example" / JAR.artifact / JAR.version
    folder.mkdir(parents=True)
    (folder / JAR.file_name).write_bytes(CONTENT)
    engine = install_spark(place.machine(), JAR, say=place.said.append)
    assert engine.jars[JAR] == place.folder / "cache" / "jars" / JAR.file_name
    found = examine(place.machine(), JAR).jars[JAR].copy
    assert found is not None
    assert found.origin is JarOrigin.CACHE


def test_an_unfit_java_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, "25.0.3")
    with pytest.raises(MissingPart, match=r"25\.0\.3, which does not start Spark") as refused:
        install_spark(place.machine(), JAR, say=place.said.append)
    assert "pipeline.java_home" in refused.value.hint
    assert place.said == []


@pytest.mark.parametrize(
    ("version", "says"), [("4.1.4", ""), ("4.1.9", ""), ("", "not installed"), ("4.2.0", "4.2.0"), ("4.10.0", "4.10")]
)
def test_the_line_of_pyspark_is_checked(version: str, says: str) -> None:
    found = python_packages.pyspark_fault(version)
    assert (says in found, bool(found)) == (True, bool(says))


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/home/me"}, "/c/icestream"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/icestream"),
        ({"HOME": "/home/me"}, "/home/me/.cache/icestream"),
    ],
)
def test_the_cache_is_where_the_desktop_says(environment: dict[str, str], cache: str) -> None:
    assert cache_of(environment) == Path(cache)


def test_the_variable_and_the_settings_name_the_same_places() -> None:
    given = load(None, {"ICESTREAM_JARS": "/a,/b/c.jar"}, ()).settings
    assert given.pipeline.jars == (Path("/a"), Path("/b/c.jar"))
    both = load(None, {"ICESTREAM_JARS": "/a", "ICESTREAM_PIPELINE__JARS": "/own"}, ()).settings
    assert both.pipeline.jars == (Path("/own"),)
    machine = SetupPaths.of(load(None, {}, ["pipeline.cache_dir=/mine", "pipeline.java_home=/j"]).settings, {})
    assert (machine.cache, machine.java_home, machine.jars) == (Path("/mine"), Path("/j"), ())


def test_the_pins_of_the_code_and_of_the_files_agree() -> None:
    assert f"pyspark=={pinned_versions.PYSPARK}" in read("requirements/spark.txt").splitlines()
    (wanted,) = re.findall(r'^spark = \["pyspark>=(.*?),', read("pyproject.toml"), flags=re.MULTILINE)
    assert wanted == pinned_versions.SPARK_LINE


def test_the_command_says_where_everything_is() -> None:
    """On this machine, which `make test` has set up: it takes no time again."""
    ran = icestream("pipeline", "setup", "--output", "json")
    assert (ran.code, ran.err) == (0, "")
    parts = {one["part"]: one for one in ran.document}
    assert parts["pyspark"]["version"] == python_packages.installed_pyspark()
    assert os.access(Path(parts["java"]["path"]) / "bin" / "java", os.X_OK)
    assert (
        Path(parts[pinned_versions.ICEBERG_SPARK.artifact]["path"]).stat().st_size
        == pinned_versions.ICEBERG_SPARK.bytes
    )


def test_the_command_refuses_with_the_fix(tmp_path: Path) -> None:
    java = install(tmp_path / "java", "25.0.3")
    ran = icestream("pipeline", "setup", "--set", f"pipeline.java_home={java}", "--output", "json")
    assert ran.code == 3
    assert '"error": "missing_part"' in ran.err
    assert "17 or 21" in ran.err
