"""Which Java is used, from what was found; and what is found, from folders that a test made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from icestream.pipeline.spark_setup.java_choice import (
    JavaInstall,
    JavaOrigin,
    choose_java,
    major,
    read_release,
    read_version_output,
    refusal,
    shim,
)
from icestream.pipeline.spark_setup.java_search import examine_java, installed_java, spark_home_of

FAKE_JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""
SHOWS_ARGUMENTS = """#!/bin/sh
for one; do echo "<$one>"; done
"""


def java(version: str, origin: JavaOrigin = JavaOrigin.PATH) -> JavaInstall:
    return JavaInstall(Path("/j") / version, origin, version)


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("17", 17),
        ("17.0.15", 17),
        ("21.0.8+9-LTS", 21),
        ("25-ea", 25),
        ("1.8.0_392", 8),
        ("11.0.2", 11),
        ("", None),
        ("x17", None),
        ("99999.1", None),
    ],
)
def test_the_first_number_of_a_version(version: str, number: int | None) -> None:
    assert major(version) == number


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("17.0.15", ""),
        ("21.0.8", ""),
        ("25.0.3", "does not start Spark 4.1: it takes 17 or 21"),
        ("22", "does not start Spark 4.1"),
        ("18.0.1", "is not a Java that Spark is tested with"),
        ("1.8.0_392", "is not a Java that Spark is tested with"),
        ("", "does not report its version"),
    ],
)
def test_an_unfit_java_is_refused_with_the_reason(version: str, says: str) -> None:
    reason = refusal(java(version))
    assert (says in reason, bool(reason)) == (True, bool(says))


def test_the_first_fit_one_is_used_and_the_unfit_before_it_are_named() -> None:
    choice = choose_java([java("25.0.3", JavaOrigin.VARIABLE), java("21.0.1"), java("17.0.1", JavaOrigin.USUAL)])
    assert choice.java == java("21.0.1")
    assert [text.split(" is ")[0] for text in choice.refused] == ["/j/25.0.3 (JAVA_HOME)"]


def test_an_unsuitable_requested_java_is_not_replaced() -> None:
    choice = choose_java([java("25.0.3", JavaOrigin.SETTING), java("17.0.1")])
    assert choice.java is None
    assert "pipeline.java_home" in choice.refused[0]


def test_without_any_java_nothing_is_refused() -> None:
    assert choose_java([]) == choose_java(())
    assert (choose_java([]).java, choose_java([]).refused) == (None, ())


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('JAVA_VERSION="21.0.8"\nMODULES="java.base java.sql"\n', ("21.0.8", False)),
        ('MODULES="java.base jdk.incubator.vector jdk.zipfs"\nJAVA_VERSION="17.0.15"\n', ("17.0.15", True)),
        ('JAVA_VERSION="17.0.15"\n', ("17.0.15", True)),
        ("", ("", True)),
        ('"\x00JAVA_VERSION=17', ("", True)),
    ],
)
def test_the_release_file_of_an_installation_is_parsed(text: str, release: tuple[str, bool]) -> None:
    assert read_release(text) == release


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', "17.0.15"),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\njava version "1.8.0_392"\n', "1.8.0_392"),
        ("openjdk 21.0.8 2025-07-15 LTS\n", "21.0.8"),
        ("sh: not found", ""),
    ],
)
def test_the_version_output_of_java_is_parsed(text: str, version: str) -> None:
    assert read_version_output(text) == version


def install(home: Path, version: str, *, release: bool = True, modules: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(FAKE_JAVA.format(version=version))
    (home / "bin" / "java").chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n{modules}')
    return home


def test_installations_are_found_in_order_and_once(tmp_path: Path) -> None:
    set_one, variable = install(tmp_path / "set", "17.0.1"), install(tmp_path / "variable", "25.0.1")
    on_path = install(tmp_path / "usual" / "on-path", "21.0.1", release=False)
    other = install(tmp_path / "usual" / "other", "17.0.2")
    (tmp_path / "usual" / "not-java").mkdir()
    (tmp_path / "usual" / "z-alias").symlink_to(on_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(on_path / "bin" / "java")
    environment = {"JAVA_HOME": str(variable), "PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    installations = [
        installation
        for installation in installed_java(set_one, environment, ("~/usual",))
        if installation.origin is not JavaOrigin.PACKAGE
    ]
    assert installations == [
        JavaInstall(set_one, JavaOrigin.SETTING, "17.0.1"),
        JavaInstall(variable, JavaOrigin.VARIABLE, "25.0.1"),
        JavaInstall(on_path, JavaOrigin.PATH, "21.0.1"),
        JavaInstall(other, JavaOrigin.USUAL, "17.0.2"),
    ]


def test_a_named_directory_without_java_is_reported(tmp_path: Path) -> None:
    installations = list(installed_java(None, {"JAVA_HOME": str(tmp_path / "gone")}, ()))
    assert installations[0] == JavaInstall(tmp_path / "gone", JavaOrigin.VARIABLE, "")
    assert "does not report its version" in choose_java(installations[:1]).refused[0]


def test_a_java_without_the_module_gets_a_shim(tmp_path: Path) -> None:
    home = install(tmp_path / "it's here", "21.0.8", modules='MODULES="java.base"\n')
    (home / "bin" / "java").write_text(SHOWS_ARGUMENTS)
    java_install = examine_java(home, JavaOrigin.PACKAGE)
    for _ in range(2):  # the second time it is there
        shimmed = spark_home_of(java_install, tmp_path / "cache")
    command = [shimmed / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    trusted, *others = done.stdout.split("\n")
    assert trusted == f"<-Djavax.net.ssl.trustStore={shimmed / 'trust.jks'}>"
    assert others == ["<-cp>", "<a b>", "<>", "<Main>", ""]
    assert len(shim(home, shimmed).splitlines()) == 3
    assert sorted(path.name for path in shimmed.rglob("*") if path.is_file()) == ["java", "trust.jks"]


def test_a_complete_java_is_used_directly(tmp_path: Path) -> None:
    home = install(tmp_path / "j", "17.0.1")
    assert spark_home_of(examine_java(home, JavaOrigin.USUAL), tmp_path / "cache") == home
    assert not (tmp_path / "cache").exists()


def test_release_file_and_version_output_of_a_real_java_agree(tmp_path: Path) -> None:
    executable = shutil.which("java", path=os.environ.get("PATH"))
    if executable is None:
        pytest.skip("there is no java on the path")
    home = Path(executable).resolve().parent.parent
    (tmp_path / "bin").symlink_to(home / "bin")  # the same one, without its file
    assert (
        major(examine_java(tmp_path, JavaOrigin.PATH).version)
        == major(examine_java(home, JavaOrigin.PATH).version)
        is not None
    )
