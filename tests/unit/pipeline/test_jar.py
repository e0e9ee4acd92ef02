"""Which copy of a jar is used, and how one is fetched: by a spark-submit that a test wrote."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from icestream import limits
from icestream.errors import MissingPart
from icestream.pipeline.spark_setup import jar_files, pinned_versions
from icestream.pipeline.spark_setup.jar_choice import JarCopy, JarOrigin, cached, choose_copy, fault, jar_locations
from icestream.pipeline.spark_setup.pinned_versions import PinnedJar
from tests.support.lake_run import until

CONTENT = b"PK\x03\x04 a jar"
JAR = PinnedJar("org.example", "some-runtime_2.13", "1.0.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
RIGHT = (JAR.bytes, JAR.sha256)


def copy(origin: JarOrigin, size: int = JAR.bytes, digest: str = JAR.sha256) -> JarCopy:
    return JarCopy(Path("/somewhere") / JAR.file_name, origin, size, digest)


@pytest.mark.parametrize(
    ("copies", "used", "is_final", "refused"),
    [
        ([], None, False, 0),
        ([copy(JarOrigin.SETTING), copy(JarOrigin.CACHE)], JarOrigin.SETTING, False, 0),
        ([copy(JarOrigin.SETTING, 3, ""), copy(JarOrigin.CACHE)], None, True, 1),
        ([copy(JarOrigin.SETTING, digest="0" * 64), copy(JarOrigin.CACHE)], None, True, 1),
        ([copy(JarOrigin.CACHE, digest="0" * 64), copy(JarOrigin.IVY)], JarOrigin.IVY, False, 1),
        ([copy(JarOrigin.CACHE, 3, ""), copy(JarOrigin.IVY, 3, ""), copy(JarOrigin.MAVEN)], JarOrigin.MAVEN, False, 2),
        ([copy(JarOrigin.CACHE, 3, "")], None, False, 1),
    ],
)
def test_the_first_right_copy_is_used(
    copies: list[JarCopy], used: JarOrigin | None, is_final: bool, refused: int
) -> None:
    choice = choose_copy(JAR, copies)
    assert (choice.copy.origin if choice.copy else None, choice.is_final, len(choice.refused)) == (
        used,
        is_final,
        refused,
    )


def test_a_wrong_jar_is_reported_with_both_digests() -> None:
    assert fault(JAR, copy(JarOrigin.CACHE)) == ""
    assert "has 3 bytes" in fault(JAR, copy(JarOrigin.CACHE, 3, ""))
    message = fault(JAR, copy(JarOrigin.SETTING, digest="0" * 64))
    assert [text for text in (JAR.sha256, "0" * 64, "ICESTREAM_JARS") if text not in message] == []


def test_jars_are_searched_in_order() -> None:
    configured = [Path("/folder"), Path("/x") / JAR.file_name, Path("/x/other.jar")]
    locations = jar_locations(JAR, configured, Path("/cache"), Path("/home/me"))
    assert [(origin.name, str(path)) for origin, path in locations] == [
        ("SETTING", f"/folder/{JAR.file_name}"),
        ("SETTING", f"/x/{JAR.file_name}"),
        ("CACHE", f"/cache/jars/{JAR.file_name}"),
        ("IVY", f"/home/me/.ivy2/jars/org.example_{JAR.file_name}"),
        ("IVY", f"/home/me/.ivy2/cache/org.example/some-runtime_2.13/jars/{JAR.file_name}"),
        ("IVY", f"/home/me/.ivy2.5.2/jars/org.example_{JAR.file_name}"),
        ("IVY", f"/home/me/.ivy2.5.2/cache/org.example/some-runtime_2.13/jars/{JAR.file_name}"),
        ("MAVEN", f"/home/me/.m2/repository/org/example/some-runtime_2.13/1.0.0/{JAR.file_name}"),
    ]
    assert len(jar_locations(JAR, (), Path("/cache"), None)) == 1


def test_only_files_that_are_there_count_and_only_right_sizes_are_read(tmp_path: Path) -> None:
    (tmp_path / "right").write_bytes(CONTENT)
    (tmp_path / "short").write_bytes(CONTENT[:-1])
    (tmp_path / "folder").mkdir()
    names = ["none", "folder", "short", "right"]
    copies = list(jar_files.copies(JAR, [(JarOrigin.CACHE, tmp_path / name) for name in names]))
    assert [(jar_copy.path.name, jar_copy.bytes, jar_copy.sha256) for jar_copy in copies] == [
        ("short", JAR.bytes - 1, ""),
        ("right", *RIGHT),
    ]


class FakeResolver:
    """A Spark whose spark-submit puts bytes where Ivy would, or does something else."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "spark"
        self.cache = folder / "cache"
        (self.home / "bin").mkdir(parents=True)

    def brings(self, content: bytes) -> None:
        (self.home / "content").write_bytes(content)
        self.does(
            'for one; do case "$one" in spark.jars.ivy=*) ivy="${one#*=}" ;; esac; done\n'
            f'mkdir -p "$ivy/jars"; cp "$SPARK_HOME/content" "$ivy/jars/org.example_{JAR.file_name}"\n'
        )

    def does(self, script: str) -> None:
        path = self.home / "bin" / "spark-submit"
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)

    def fetch(self) -> Path:
        return jar_files.fetch(JAR, self.cache, self.home, {"PATH": os.environ["PATH"]})

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def resolver(tmp_path: Path) -> FakeResolver:
    return FakeResolver(tmp_path)


def test_a_fetched_jar_is_the_only_file_in_the_cache(resolver: FakeResolver) -> None:
    resolver.brings(CONTENT)
    assert resolver.fetch() == cached(JAR, resolver.cache)
    assert cached(JAR, resolver.cache).read_bytes() == CONTENT
    assert resolver.files() == [f"jars/{JAR.file_name}"]
    assert [path.name for path in resolver.cache.iterdir()] == ["jars"]


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"X", CONTENT[:-1], b""], ids=["digest", "short", "empty"])
def test_a_wrong_jar_is_refused_with_a_hint(resolver: FakeResolver, content: bytes) -> None:
    resolver.brings(content)
    with pytest.raises(MissingPart, match="refused") as refused:
        resolver.fetch()
    assert "ICESTREAM_JARS" in refused.value.hint
    assert resolver.files() == []


def test_a_wrong_jar_does_not_replace_a_right_one(resolver: FakeResolver) -> None:
    resolver.brings(CONTENT)
    resolver.fetch()
    resolver.brings(b"x")
    with pytest.raises(MissingPart):
        resolver.fetch()
    assert cached(JAR, resolver.cache).read_bytes() == CONTENT


def test_a_failed_resolver_is_quoted(resolver: FakeResolver) -> None:
    resolver.does("echo 'java.net.UnknownHostException: no way out'; exit 1")
    with pytest.raises(MissingPart, match="no way out") as refused:
        resolver.fetch()
    assert JAR.file_name in refused.value.hint
    (resolver.home / "bin" / "spark-submit").unlink()
    with pytest.raises(MissingPart, match="No such file"):
        resolver.fetch()


def test_concurrent_set_ups_all_succeed(resolver: FakeResolver) -> None:
    resolver.brings(CONTENT)
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda _: resolver.fetch(), range(16)))
    assert set(paths) == {cached(JAR, resolver.cache)}
    assert resolver.files() == [f"jars/{JAR.file_name}"]


def test_remains_of_an_interrupted_fetch_are_removed_after_a_day(resolver: FakeResolver) -> None:
    resolver.brings(CONTENT)
    old, young = resolver.cache / "fetch-old", resolver.cache / "fetch-young"
    for folder in (old, young):
        (folder / "jars").mkdir(parents=True)
        (folder / "jars" / "half.jar").write_bytes(b"PK")
    long_ago = time.time() - limits.FETCH_FORGOTTEN_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    resolver.fetch()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_killed_set_up_leaves_no_usable_jar(resolver: FakeResolver) -> None:
    """kill -9 while half of the jar is there; the next one begins anew."""
    resolver.does(
        'for one; do case "$one" in spark.jars.ivy=*) ivy="${one#*=}" ;; esac; done\n'
        f'mkdir -p "$ivy/jars"; printf PK > "$ivy/jars/org.example_{JAR.file_name}"; echo half; exec sleep 100\n'
    )
    program = (
        "import os, sys; from pathlib import Path\n"
        "from icestream.pipeline.spark_setup import jar_files, pinned_versions\n"
        f"jar_files.fetch(pinned_versions.{JAR!r}, Path(sys.argv[1]), Path(sys.argv[2]), os.environ)"
    )
    command = [sys.executable, "-c", program, str(resolver.cache), str(resolver.home)]
    killed = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: [path for path in resolver.files() if path.endswith(".jar")])
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        code = killed.wait()
    assert code == -signal.SIGKILL
    assert choose_copy(JAR, jar_files.copies(JAR, jar_locations(JAR, (), resolver.cache, None))).copy is None
    resolver.brings(CONTENT)
    assert resolver.fetch().read_bytes() == CONTENT


def test_a_copy_of_maven_is_kept_in_the_cache(resolver: FakeResolver, tmp_path: Path) -> None:
    (tmp_path / "of-maven.jar").write_bytes(CONTENT)
    assert jar_files.keep(JAR, tmp_path / "of-maven.jar", resolver.cache).read_bytes() == CONTENT
    assert (tmp_path / "of-maven.jar").exists()


def test_the_pins_match_the_published_files() -> None:
    assert pinned_versions.ICEBERG_SPARK.coordinates == "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
    assert pinned_versions.ICEBERG_SPARK.artifact.split("-")[-1].split("_")[0] == pinned_versions.SPARK_LINE
    assert [len(jar.sha256) for jar in (pinned_versions.ICEBERG_SPARK, pinned_versions.ICEBERG_AWS)] == [64, 64]
