"""Where objects lie and how they are reached: the settings, in the words of each library that needs them. Pure.

settings      ours (`storage.iceberg_config.object_store`)
object_store  obstore's keys, for our own reads and writes
file_io       the properties of Iceberg's FileIO, which PyIceberg, Java, Spark and every other engine understand: what
              clients of the catalog are told (`public_file_io`), and the secrets (`secret_file_io`)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from icestream import limits
from icestream.settings.lake import ObjectStore

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
    kind: StoreKind = "local"
    bucket: str | None = None
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = False
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    credentials_file: str | None = None
    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000

    @classmethod
    def of(cls, store: ObjectStore) -> StoreOptions:
        return cls(
            kind=store.type,
            bucket=store.bucket,
            region=store.region,
            endpoint=store.endpoint,
            path_style=store.path_style,
            access_key_id=revealed(store.access_key_id),
            secret_access_key=revealed(store.secret_access_key),
            session_token=revealed(store.session_token),
            role_arn=store.role_arn,
            credentials_file=str(store.credentials_file) if store.credentials_file is not None else None,
            account_name=store.account_name,
            account_key=revealed(store.account_key),
            request_seconds=store.request_timeout_ms / 1000,
        )


def revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def obstore_config(options: StoreOptions, kind: StoreKind) -> dict[str, Any]:
    """For a bucket of that kind; what another kind needs is left out."""
    match kind:
        case "s3":
            found: dict[str, Any] = {
                "region": options.region or ("us-east-1" if options.endpoint else None),
                "endpoint": options.endpoint,
                "virtual_hosted_style_request": not options.path_style if options.endpoint else None,
                "conditional_put": "etag",
            }
            if options.role_arn is None:
                found |= {
                    "access_key_id": options.access_key_id,
                    "secret_access_key": options.secret_access_key,
                    "session_token": options.session_token,
                }
        case "gcs":
            found = {"service_account": options.credentials_file, "base_url": options.endpoint}
        case "azure":
            found = {
                "account_name": options.account_name,
                "account_key": options.account_key,
                "endpoint": options.endpoint,
            }
        case _:
            found = {}
    return {name: value for name, value in found.items() if value is not None}


def public_file_io(options: StoreOptions) -> dict[str, str]:
    """What every client of a catalog may know: where the files are, and how they are asked for."""
    match options.kind:
        case "s3":
            found = {
                "s3.endpoint": options.endpoint,
                "s3.region": options.region,
                "client.region": options.region or ("us-east-1" if options.endpoint else None),
                "s3.path-style-access": "true" if options.path_style else None,
                "s3.force-virtual-addressing": "false" if options.path_style else None,
            }
        case "gcs":
            found = {"gcs.service.host": options.endpoint}
        case "azure":
            found = {"adls.account-name": options.account_name, **_azure_endpoint(options)}
        case _:
            found = {}
    return {name: value for name, value in found.items() if value is not None}


def _azure_endpoint(options: StoreOptions) -> dict[str, str | None]:
    """PyIceberg takes it apart; Java takes it whole, under the host that locations name."""
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
    """The secrets of the settings. Those that a role is assumed with are the role's business, and stay here."""
    match options.kind:
        case "s3" if options.role_arn is None:
            found = {
                "s3.access-key-id": options.access_key_id,
                "s3.secret-access-key": options.secret_access_key,
                "s3.session-token": options.session_token,
            }
        case "azure" if options.account_key is not None:
            found = {
                "adls.account-key": options.account_key,
                "adls.auth.shared-key.account.name": options.account_name,
                "adls.auth.shared-key.account.key": options.account_key,
            }
        case _:
            found = {}
    return {name: value for name, value in found.items() if value is not None}


def file_io(options: StoreOptions) -> dict[str, str]:
    """Secrets included: for engines that we start, never for people."""
    found = public_file_io(options) | secret_file_io(options)
    if options.kind == "s3" and options.role_arn is not None:
        found |= {
            "s3.role-arn": options.role_arn,
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.arn": options.role_arn,
        }
        if "client.region" in found:
            found["client.assume-role.region"] = found["client.region"]
    return found
