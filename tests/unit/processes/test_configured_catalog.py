"""From settings to catalogs: every kind, and what is said when a part of it is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from icestream import errors
from icestream.catalogs.pointer_catalog import PointerCatalog
from icestream.catalogs.rest import RestCatalog
from icestream.catalogs.store_options import StoreOptions, file_io, obstore_config, public_file_io, secret_file_io
from icestream.processes import configured_catalog
from icestream.processes.configured_catalog import open_catalog, open_objects
from tests.support.catalog_servers import CATALOG, STORE, glue_flags, settings_of, sql_flags

SQL = sql_flags("postgresql://localhost/d")
GLUE = glue_flags("http://localhost")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], RestCatalog),
        ([f"{CATALOG}.uri=http://elsewhere"], RestCatalog),
        (GLUE, PointerCatalog),
        (SQL, PointerCatalog),
    ],
)
def test_each_kind_has_its_catalog(flags: list[str], expected: type) -> None:
    assert type(open_catalog(settings_of(*flags))) is expected


@pytest.mark.parametrize(("flags", "extra"), [(GLUE, "glue"), (SQL, "sql")])
def test_a_missing_extra_is_reported_with_its_install_command(
    flags: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configured_catalog, "find_spec", lambda _: None)
    with pytest.raises(errors.MissingPart) as caught:
        open_catalog(settings_of(*flags))
    assert caught.value.hint == f"pip install 'icestream[{extra}]'"


def test_a_role_without_boto3_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    flags = [f"{STORE}.type=s3", f"{STORE}.bucket=b", f"{STORE}.role_arn=arn:aws:iam::123456789012:role/lake"]
    with pytest.raises(errors.MissingPart) as caught:
        open_objects(settings_of(*flags))
    assert caught.value.hint == "pip install 'icestream[glue]'"


def test_a_local_store_has_no_bucket() -> None:
    with pytest.raises(errors.ConfigurationError, match="has no bucket"):
        open_objects(settings_of())


def test_heavy_modules_are_loaded_on_demand() -> None:
    code = (
        "import sys; from icestream.settings import load; "
        "from icestream.processes.configured_catalog import open_catalog; "
        "open_catalog(load().settings); "
        "print([name for name in ('httpx2', 'obstore', 'boto3', 'psycopg', 'pyiceberg') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


S3 = StoreOptions(kind="s3", region="r", endpoint="http://e", path_style=True, access_key_id="k", secret_access_key="s")


def test_s3_options_are_translated_for_each_library() -> None:
    assert obstore_config(S3, "s3") == {
        "region": "r",
        "endpoint": "http://e",
        "virtual_hosted_style_request": False,
        "conditional_put": "etag",
        "access_key_id": "k",
        "secret_access_key": "s",
    }
    assert file_io(S3) == {
        "s3.endpoint": "http://e",
        "s3.region": "r",
        "client.region": "r",
        "s3.path-style-access": "true",
        "s3.force-virtual-addressing": "false",
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
    }


def test_with_a_role_the_keys_go_to_the_client_that_assumes_it() -> None:
    role = StoreOptions(kind="s3", access_key_id="k", secret_access_key="s", role_arn="arn")
    assert obstore_config(role, "s3") == {"conditional_put": "etag"}
    assert file_io(role) == {
        "s3.role-arn": "arn",
        "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": "arn",
    }
    assert public_file_io(role) == secret_file_io(role) == {}, "no client gets the role"


def test_clients_get_the_file_locations_without_secrets() -> None:
    azure = StoreOptions(kind="azure", account_name="a", account_key="k", endpoint="http://e:1/a")
    for store in (S3, azure, StoreOptions(kind="gcs", credentials_file="/f", endpoint="http://e")):
        assert public_file_io(store)
        assert not {"k", "s", "/f"} & set(public_file_io(store).values())
        assert public_file_io(store) | secret_file_io(store) == file_io(store)


def test_gcs_and_azure_options_are_translated_for_each_library() -> None:
    gcs = StoreOptions(kind="gcs", credentials_file="/f", endpoint="http://e")
    assert obstore_config(gcs, "gcs") == {"service_account": "/f", "base_url": "http://e"}
    assert file_io(gcs) == {"gcs.service.host": "http://e"}
    azure = StoreOptions(kind="azure", account_name="a", account_key="k", endpoint="http://e:1/a")
    assert obstore_config(azure, "azure") == {"account_name": "a", "account_key": "k", "endpoint": "http://e:1/a"}
    assert file_io(azure) == {
        "adls.account-name": "a",
        "adls.account-key": "k",
        "adls.auth.shared-key.account.name": "a",
        "adls.auth.shared-key.account.key": "k",
        "adls.account-host": "e:1",
        "adls.blob-storage-authority": "e:1",
        "adls.blob-storage-scheme": "http",
        "adls.dfs-storage-authority": "e:1",
        "adls.dfs-storage-scheme": "http",
        "adls.connection-string.a.dfs.core.windows.net": "http://e:1/a",
    }
    assert file_io(StoreOptions()) == obstore_config(StoreOptions(), "local") == {}


def test_buckets_of_gcs_and_azure_can_be_opened() -> None:
    account = [f"{STORE}.account_name=a", f"{STORE}.account_key=azE="]
    for flags in (["gcs"], ["azure", *account]):
        objects = open_objects(settings_of(f"{STORE}.type={flags[0]}", f"{STORE}.bucket=b", *flags[1:]))
        assert objects is not None


@pytest.mark.parametrize("options", [S3, *(StoreOptions(account_key="hunter2"), StoreOptions(session_token="hunter2"))])
def test_options_do_not_show_their_secrets(options: StoreOptions) -> None:
    assert "hunter2" not in repr(options)
    assert "access_key_id" not in repr(options)
