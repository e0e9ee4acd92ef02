"""The archive of Spark's classes: made by one session at the set-up, used by all others, never waited for."""

from __future__ import annotations

import os
from pathlib import Path

from icestream import limits
from icestream.pipeline.spark.class_archive import PLAIN_OPTIONS, ClassArchive
from icestream.pipeline.spark_setup.java_choice import JavaInstall, JavaOrigin
from icestream.pipeline.spark_setup.spark_install import SparkInstall

HOME = Path("java")


def engine(spark: str = "spark", *, is_whole: bool = True) -> SparkInstall:
    return SparkInstall(JavaInstall(HOME, next(iter(JavaOrigin)), "17", is_whole), HOME, "4.1.4", Path(spark), {})


def class_archive(cache: Path, spark: str = "spark") -> ClassArchive:
    """By a session that ended well."""
    archive = ClassArchive(engine(spark), cache, is_archiving=True)
    written = archive.java_options().partition("-XX:ArchiveClassesAtExit=")[2]
    Path(written).write_bytes(b"classes")
    archive.finish(is_complete=True)
    return archive


def test_a_session_with_other_work_writes_no_archive(tmp_path: Path) -> None:
    archive = ClassArchive(engine(), tmp_path)
    assert (archive.java_options(), archive.is_missing) == (PLAIN_OPTIONS, True)


def test_the_archive_of_the_set_up_is_used(tmp_path: Path) -> None:
    class_archive(tmp_path)
    archive = ClassArchive(engine(), tmp_path)
    assert not archive.is_missing
    assert "-XX:SharedArchiveFile=" in archive.java_options()
    assert ClassArchive(engine("elsewhere"), tmp_path).is_missing  # Java compares the places of jars


def test_a_partial_archive_is_ignored(tmp_path: Path) -> None:
    archive = ClassArchive(engine(), tmp_path, is_archiving=True)
    Path(archive.java_options().partition("-XX:ArchiveClassesAtExit=")[2]).write_bytes(b"half")
    archive.finish(is_complete=False)
    assert archive.is_missing
    assert not [*(tmp_path / "classes").iterdir()]


def test_an_unsupported_java_gets_no_class_archive(tmp_path: Path) -> None:
    archive = ClassArchive(engine(is_whole=False), tmp_path, is_archiving=True)
    assert (archive.java_options(), archive.is_missing) == (PLAIN_OPTIONS, False)


def test_old_archives_are_removed(tmp_path: Path) -> None:
    for number in range(limits.CLASS_ARCHIVES_KEPT):
        class_archive(tmp_path, f"spark{number}")
    for path in (tmp_path / "classes").iterdir():
        os.utime(path, (1, 1))
    newest = class_archive(tmp_path, "newest")
    assert len([*(tmp_path / "classes").iterdir()]) == limits.CLASS_ARCHIVES_KEPT
    assert not newest.is_missing
