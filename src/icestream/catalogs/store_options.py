"""Location and credentials of an object store, translated for each library that needs them. Pure.

settings      ours (`storage.iceberg_config.object_store`)
object_store  obstore's keys, for our own reads and writes
file_io       the properties of Iceberg's FileIO, which PyIceberg, Java, Spark and every other engine understand: what
              clients of the catalog receive (`public_file_io`), and the secrets (`secret_file_io`)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from icestream import limits

StoreKind = Literal["s3", "gcs", "azure", "local", "memory"]
SCHEMES: dict[str, StoreKind] = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "wasb": "azure",
    "wasbs": "azure",
    "memory": "memory",
    "file": "local",
}


@dataclass(frozen=True)
class StoreOptions:
    """Location and credentials of an object store. Secrets are not shown."""

    kind: StoreKind = "local"
    bucket: str | None = None
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = False
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    table_role_arn: str | None = None
    sts_endpoint: str | None = None
    credentials_file: str | None = None
    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000


def obstore_config(options: StoreOptions, kind: StoreKind) -> dict[str, Any]:
    """obstore's configuration for a bucket of that kind, without the settings of other kinds."""
    match kind:
        case "s3":
            config: dict[str, Any] = {
                # Compatible stores ignore the region, but a request must be signed with one.
                "region": options.region or ("us-east-1" if options.endpoint else None),
                "endpoint": options.endpoint,
                "virtual_hosted_style_request": not options.path_style if options.endpoint else None,
                "conditional_put": "etag",
            }
            if options.role_arn is None:
                config |= {
                    "access_key_id": options.access_key_id,
                    "secret_access_key": options.secret_access_key,
                    "session_token": options.session_token,
                }
        case "gcs":
            config = {"service_account": options.credentials_file, "base_url": options.endpoint}
        case "azure":
            config = {
                "account_name": options.account_name,
                "account_key": options.account_key,
                "endpoint": options.endpoint,
            }
        case _:
            config = {}
    return {name: value for name, value in config.items() if value is not None}


def public_file_io(options: StoreOptions) -> dict[str, str]:
    """Returns the FileIO properties that every client of a catalog may know, without secrets."""
    match options.kind:
        case "s3":
            properties = {
                "s3.endpoint": options.endpoint,
                "s3.region": options.region,
                "client.region": options.region or ("us-east-1" if options.endpoint else None),
                "s3.path-style-access": "true" if options.path_style else None,
                "s3.force-virtual-addressing": "false" if options.path_style else None,
            }
        case "gcs":
            properties = {"gcs.service.host": options.endpoint}
        case "azure":
            properties = {"adls.account-name": options.account_name, **_azure_endpoint(options)}
        case _:
            properties = {}
    return {name: value for name, value in properties.items() if value is not None}


def _azure_endpoint(options: StoreOptions) -> dict[str, str | None]:
    """PyIceberg takes the parts of the endpoint; Java takes all of it, under the host in locations."""
    if options.endpoint is None:
        return {}
    address = urlsplit(options.endpoint)
    host = f"{options.account_name}.dfs.core.windows.net"
    return {
        "adls.account-host": address.netloc,
        "adls.blob-storage-authority": address.netloc,
        "adls.blob-storage-scheme": address.scheme,
        "adls.dfs-storage-authority": address.netloc,
        "adls.dfs-storage-scheme": address.scheme,
        f"adls.connection-string.{host}": options.endpoint,
    }


def secret_file_io(options: StoreOptions) -> dict[str, str]:
    """Returns the FileIO properties with the secrets of the settings. Credentials for assuming a role are not handed
    out."""
    match options.kind:
        case "s3" if options.role_arn is None:
            properties = {
                "s3.access-key-id": options.access_key_id,
                "s3.secret-access-key": options.secret_access_key,
                "s3.session-token": options.session_token,
            }
        case "azure" if options.account_key is not None:
            properties = {
                "adls.account-key": options.account_key,
                "adls.auth.shared-key.account.name": options.account_name,
                "adls.auth.shared-key.account.key": options.account_key,
            }
        case _:
            properties = {}
    return {name: value for name, value in properties.items() if value is not None}


def file_io(options: StoreOptions) -> dict[str, str]:
    """Returns all FileIO properties, with secrets: for engines that we start, never shown to people."""
    properties = public_file_io(options) | secret_file_io(options)
    if options.kind == "s3" and options.role_arn is not None:
        properties |= {
            "s3.role-arn": options.role_arn,
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.arn": options.role_arn,
        }
        if "client.region" in properties:
            properties["client.assume-role.region"] = properties["client.region"]
    return properties
