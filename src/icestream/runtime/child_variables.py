"""Which environment variables a child process gets: a list, so that a secret in the broker's environment stays there.

Our own variables (`ICESTREAM_…`) are settings: a child gets its settings by a pipe (processes/child_settings.py).
Credentials of object stores are passed, because their clients read them from the environment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

NAMES: Final = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "COLUMNS", "NO_COLOR",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "JAVA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY",
        "NO_PROXY", "ICESTREAM_JARS",
    }
)  # fmt: skip
PREFIXES: Final = (
    "LC_", "PYTHON", "XDG_", "SPARK_", "PYSPARK_", "HADOOP_", "MAVEN_", "OTEL_", "COVERAGE_", "COV_CORE_",
    "AWS_", "AZURE_", "GOOGLE_",
    "_ICESTREAM_",  # of tests: faults that are planted
)  # fmt: skip


def child_variables(environment: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """The part of the environment that a child gets. `more`: further names, of the setting `node.child_variables`."""
    return {
        name: value for name, value in environment.items() if name in NAMES or name.startswith(PREFIXES) or name in more
    }
