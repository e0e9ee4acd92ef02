"""A warehouse in S3 whose objects are kept in memory, and the access to its tables that the catalog gives out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from icestream.catalogs.aws_signature import AwsKeys
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.table_role import TableRole
from icestream.lake.iceberg.access import Access
from icestream.lake.iceberg.delegated_access import DelegatedAccess
from icestream.runtime.clock import SystemClock

S3_WAREHOUSE: Final = "s3://lake/tables"
ENDPOINT: Final = "http://store:8333"
STORE: Final = StoreOptions(
    kind="s3",
    endpoint=ENDPOINT,
    path_style=True,
    access_key_id="AKIABROKER",
    secret_access_key="hunter2",
    table_role_arn="arn:aws:iam::1:role/tables",
)


class RecordingRole:
    """Assumes its role without a server; `policies` are those that were asked for."""

    partition = "aws"

    def __init__(self) -> None:
        self.policies: list[str] = []

    async def assume(self, policy: str, principal: str) -> AwsKeys:
        self.policies.append(policy)
        return AwsKeys(f"ASIA-{principal}", "secret of the session", "token of the session", 2_000_000_000_000)


def signing_access(role: RecordingRole | None = None, roots: tuple[str, ...] = (S3_WAREHOUSE,)) -> Access:
    clock = SystemClock()
    table_role = cast("TableRole | None", role)
    return Access.of(STORE, False, roots, DelegatedAccess(STORE, roots, StoreKeys(STORE, clock), table_role, clock))


def file_uri(location: str, name: str) -> str:
    """The address of a file in a table's location."""
    return f"{ENDPOINT}/{location.removeprefix('s3://')}/{name}"


def to_sign(method: str, uri: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The body of a request to sign."""
    named = {name: [value] for name, value in (headers or {}).items()}
    return {"method": method, "uri": uri, "region": "us-east-1", "headers": named}
