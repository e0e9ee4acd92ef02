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
from icestream.processes.pipeline_options import setup_paths
from icestream.settings import load
from tests.support.command_line import icestream
from tests.tidy.tree import read
from tests.unit.pipeline.test_jar import CONTENT, JAR
from tests.unit.pipeline.test_java import install


class MachineWithJava:
    """A machine with a Java of the given version and an empty cache."""

    def __init__(self, folder: Path, version: str = "17.0.1") -> None:
        self.java = install(folder / "java", version)
        self.jars = folder / "jars"
        self.jars.mkdir()
        self.folder = folder
        self.printed: list[str] = []

    def machine(self, environment: Mapping[str, str] | None = None) -> SetupPaths:
        variables = {"HOME": str(self.folder), "PATH": ""} if environment is None else environment
        return SetupPaths(self.java, (self.jars,), self.folder / "cache", variables)


@pytest.fixture
def place(tmp_path: Path) -> MachineWithJava:
    return MachineWithJava(tmp_path)


def test_inspecting_changes_nothing(place: MachineWithJava) -> None:
    (place.jars / JAR.file_name).write_bytes(CONTENT)
    before = sorted(place.folder.rglob("*"))
    inspection = examine(place.machine(), JAR)
    assert sorted(place.folder.rglob("*")) == before
    assert inspection.java.java is not None
    assert inspection.java.java.origin is JavaOrigin.SETTING
    assert inspection.jars[JAR].copy is not None


def test_configured_jars_are_used_in_place_silently(place: MachineWithJava) -> None:
    (place.jars / JAR.file_name).write_bytes(CONTENT)
    engine = install_spark(place.machine(), JAR, say=place.printed.append)
    assert (engine.jars[JAR], engine.java_home) == (place.jars / JAR.file_name, place.java)
    assert (place.printed, (place.folder / "cache").exists()) == ([], False)


def test_a_wrong_configured_jar_is_refused_although_a_right_one_is_cached(place: MachineWithJava) -> None:
    (place.jars / JAR.file_name).write_bytes(CONTENT[:-1] + b"X")
    right = place.folder / "cache" / "jars" / JAR.file_name
    right.parent.mkdir(parents=True)
    right.write_bytes(CONTENT)
    with pytest.raises(MissingPart, match="SHA-256") as refused:
        install_spark(place.machine(), JAR, say=place.printed.append)
    assert "ICESTREAM_JARS" in refused.value.hint


def test_a_jar_of_maven_is_copied_into_the_cache(place: MachineWithJava) -> None:
    folder = place.folder / ".m2" / "repository" / "org" / "example" / JAR.artifact / JAR.version
    folder.mkdir(parents=True)
    (folder / JAR.file_name).write_bytes(CONTENT)
    engine = install_spark(place.machine(), JAR, say=place.printed.append)
    assert engine.jars[JAR] == place.folder / "cache" / "jars" / JAR.file_name
    copy = examine(place.machine(), JAR).jars[JAR].copy
    assert copy is not None
    assert copy.origin is JarOrigin.CACHE


def test_an_unsuitable_requested_java_is_refused(tmp_path: Path) -> None:
    place = MachineWithJava(tmp_path, "25.0.3")
    with pytest.raises(MissingPart, match=r"25\.0\.3, which does not start Spark") as refused:
        install_spark(place.machine(), JAR, say=place.printed.append)
    assert "pipeline.java_home" in refused.value.hint
    assert place.printed == []


@pytest.mark.parametrize(
    ("version", "says"), [("4.1.4", ""), ("4.1.9", ""), ("", "not installed"), ("4.2.0", "4.2.0"), ("4.10.0", "4.10")]
)
def test_the_line_of_pyspark_is_checked(version: str, says: str) -> None:
    fault = python_packages.pyspark_fault(version)
    assert (says in fault, bool(fault)) == (True, bool(says))


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/home/me"}, "/c/icestream"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/icestream"),
        ({"HOME": "/home/me"}, "/home/me/.cache/icestream"),
    ],
)
def test_the_cache_follows_the_xdg_variables(environment: dict[str, str], cache: str) -> None:
    assert cache_of(environment) == Path(cache)


def test_the_variable_and_the_settings_name_the_same_paths() -> None:
    settings = load(None, {"ICESTREAM_JARS": "/a,/b/c.jar"}, ()).settings
    assert settings.pipeline.jars == (Path("/a"), Path("/b/c.jar"))
    both = load(None, {"ICESTREAM_JARS": "/a", "ICESTREAM_PIPELINE__JARS": "/own"}, ()).settings
    assert both.pipeline.jars == (Path("/own"),)
    machine = setup_paths(load(None, {}, ["pipeline.cache_dir=/mine", "pipeline.java_home=/j"]).settings, {})
    assert (machine.cache, machine.java_home, machine.jars) == (Path("/mine"), Path("/j"), ())


def test_the_pins_of_the_code_and_of_the_files_agree() -> None:
    assert f"pyspark=={pinned_versions.PYSPARK}" in read("requirements/spark.txt").splitlines()
    (minimum_version,) = re.findall(r'^spark = \["pyspark>=(.*?),', read("pyproject.toml"), flags=re.MULTILINE)
    assert minimum_version == pinned_versions.SPARK_LINE


def test_the_command_shows_where_everything_is() -> None:
    """On this machine, which `make test` has set up: it takes no time again."""
    ran = icestream("pipeline", "setup", "--output", "json")
    assert (ran.code, ran.err) == (0, "")
    parts = {row["part"]: row for row in ran.document}
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
