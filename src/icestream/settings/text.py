"""Texts with a form: names, hosts, addresses, locations, directories.

Like a `Quantity`, a `Text` stands in the annotation of a field and says in one place what is accepted and how to
explain it. The forms are narrow where a text becomes a part of a path, a file name or an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import GetCoreSchemaHandler, SecretStr
from pydantic_core import CoreSchema, core_schema

# 253 is the longest name in the DNS; everything else here becomes a part of a path, where 255 bytes is the end.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LOCATION_CHARACTERS_MAX = 1024  # as long as a key of an object store
_PORT_MAX = 65_535
_POSTGRESQL_PORT = 5432
_DATABASE_URI = re.compile(
    r"postgresql://(?P<host>\[[0-9a-fA-F:.]+\]|[^:/@\s\[\]]+)(?::(?P<port>[0-9]{1,5}))?/(?P<database>[A-Za-z0-9_][A-Za-z0-9_.-]{0,62})"
)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}: ?[\t -~]{1,8192}")


@dataclass(frozen=True, eq=False)
class Text:
    """A text that `accepts` returns True for; `allowed` completes the sentence "must be …"."""

    allowed: str
    accepts: Callable[[str], bool]

    def read(self, value: object) -> object:
        """The value, a secret as plain text. Raises ValueError for a value that is not accepted."""
        value = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not isinstance(value, str | Path) or not self.accepts(str(value)):
            raise ValueError(f"must be {self.allowed}")
        return value

    def show(self, value: object) -> str:
        """The value for `config show`; a Quantity shows its unit."""
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


def split_address(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port` or `[v6]:port`; None for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= _PORT_MAX:
        return None
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    # An IPv6 address without brackets could not be told from its port.
    return (bare, int(port)) if _is_host(bare) and bracketed == (":" in bare) else None


def split_http_uri(text: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an http or https URI; None for anything else, and for one with credentials in it."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or not re.fullmatch(r"[!-~]+", text):
        return None
    return parts.scheme, host, port if port is not None else (443 if parts.scheme == "https" else 80)


def split_database_uri(text: str) -> tuple[str, int, str] | None:
    """Host, port and database of `postgresql://host:port/database`; None for anything else, and with credentials."""
    match = _DATABASE_URI.fullmatch(text)
    if match is None or not _is_host(match["host"].strip("[]")):
        return None
    return match["host"].strip("[]"), int(match["port"] or _POSTGRESQL_PORT), match["database"]


def is_loopback(host: str) -> bool:
    """True only for addresses that never leave this machine; a name other than localhost may resolve to anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _is_namespace(text: str) -> bool:
    return all(_NAME.fullmatch(part) for part in re.split(r"[./]", text))


def _is_location(text: str) -> bool:
    return 0 < len(text.strip()) == len(text) <= _LOCATION_CHARACTERS_MAX and _CONTROL.search(text) is None


NAME: Final = Text(
    "a name of letters, digits, `_`, `-` and `.` (at most 128, a letter or digit first)",
    lambda text: _NAME.fullmatch(text) is not None,
)
NAMESPACE: Final = Text("a namespace: names separated by dots or slashes", _is_namespace)
VARIABLE: Final = Text(
    "the name of an environment variable", lambda text: re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", text) is not None
)
HOST: Final = Text("an IP address or a host name", _is_host)
ADDRESS: Final = Text("an address `host:port`", lambda text: split_address(text) is not None)
HTTP_URI: Final = Text(
    "an http or https URI without user name and password, such as `http://localhost:8181`",
    lambda text: split_http_uri(text) is not None,
)
HTTPS_URI: Final = Text(
    "an https URI without user name and password, such as `https://idp.example.com/realm`",
    lambda text: text.startswith("https://") and split_http_uri(text) is not None,
)
CLAIM: Final = Text(
    "the name of a claim: letters, digits and `_.:/-`",
    lambda text: re.fullmatch(r"[A-Za-z0-9_.:/-]{1,200}", text, re.ASCII) is not None,
)
ROLE_MAPPING: Final = Text(
    "a value and a role, such as `data-engineers=writer`",
    lambda text: re.fullmatch(r"[ -~]{1,200}=[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", text, re.ASCII) is not None,
)
PRINTABLE: Final = Text("a text without spaces", lambda text: re.fullmatch(r"[!-~]{1,1000}", text) is not None)
CATALOG_URI: Final = Text(
    f"{HTTP_URI.allowed}; for a `sql` catalog `postgresql://host:port/database`",
    lambda text: split_http_uri(text) is not None or split_database_uri(text) is not None,
)
HEADER: Final = Text("a header such as `X-Tenant: red`", lambda text: _HEADER.fullmatch(text) is not None)
SCOPE: Final = Text("words of an OAuth2 scope", lambda text: re.fullmatch(r"[!-~]+( [!-~]+)*", text) is not None)
ROLE: Final = Text(
    "the ARN of a role, such as `arn:aws:iam::123456789012:role/lake`",
    lambda text: re.fullmatch(r"arn:[a-z0-9-]+:iam::[0-9]{12}:role/[\w+=,.@/-]{1,256}", text, re.ASCII) is not None,
)
LOCATION: Final = Text("a location such as `s3://bucket/path/` or `file:/path`", _is_location)
RELATIVE: Final = Text(
    "a path below the root of its store, without `..`",
    lambda text: _is_location(text) and not text.startswith("/") and ".." not in text.split("/"),
)
# An empty path is the working directory: hardly what an unset variable in a start script was meant to say.
DIRECTORY: Final = Text("a directory", lambda text: text.strip() != "" and _CONTROL.search(text) is None)
FILE: Final = Text("a file", DIRECTORY.accepts)
SPARK_MASTER: Final = Text(
    "a master of Spark, such as `local[*]`, `spark://host:7077`, `yarn` or `k8s://https://host:6443`",
    lambda text: re.fullmatch(r"local(\[[0-9*, ]{1,12}\])?|yarn|(spark|k8s)://[!-~]{1,1000}", text) is not None,
)
SPARK_CONF: Final = Text(
    "a setting of Spark, such as `spark.executor.memory=2g`",
    lambda text: re.fullmatch(r"spark\.[A-Za-z0-9_.-]{1,200}=[^\x00-\x1f]{0,4096}", text) is not None,
)
