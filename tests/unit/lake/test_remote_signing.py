"""Which objects a request to S3 may name for the catalog to sign it."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.catalogs.store_options import StoreOptions
from icestream.lake.iceberg.remote_signing import S3Operation, SignableRequest, object_location, signing_region

STORE = StoreOptions(kind="s3", endpoint="http://store:8333", path_style=True)
_PARTS = st.sampled_from(
    [
        "a",
        "orders",
        "orders2",
        "..",
        ".",
        "",
        "%2e%2e",
        "%2E.",
        "%2f",
        "%252e%252e",
        "..%2f",
        "a%2fb",
        "%00",
        "\\",
        ";x",
    ]
)


@given(st.lists(_PARTS, max_size=7), st.sampled_from(["store:8333", "lake.store:8333", "other", "store:8333@x"]))
def test_hazard_111_no_spelling_of_a_path_leaves_the_table(parts: list[str], host: str) -> None:
    """A brute-force model: decoded as often as one can, no form of the path may be outside of the bucket."""
    uri = f"http://{host}/lake/t/orders/" + "/".join(parts)
    request = SignableRequest("GET", uri, "", {}, S3Operation.READ)
    try:
        location = object_location(request, STORE, ["lake"])
    except errors.PermissionDenied:
        return
    assert host == "store:8333"
    path = uri.removeprefix(f"http://{host}")
    for _ in range(4):
        assert not {"..", "."} & set(path.split("/")), path
        path = unquote(path)
    assert location == f"s3:/{unquote(uri.removeprefix(f'http://{host}'))}"
    assert location.startswith("s3://lake/t/orders/")


@pytest.mark.parametrize(
    ("store", "uri", "is_found"),
    [
        (StoreOptions(kind="s3", region="eu-west-1"), "https://lake.s3.eu-west-1.amazonaws.com/t/f", True),
        (StoreOptions(kind="s3", region="eu-west-1"), "https://s3.eu-west-1.amazonaws.com/lake/t/f", True),
        (StoreOptions(kind="s3", region="eu-west-1"), "https://lake.s3.eu-west-2.amazonaws.com/t/f", False),
        (StoreOptions(kind="s3"), "https://lake.s3.dualstack.eu-west-1.amazonaws.com/t/f", True),
        (StoreOptions(kind="s3"), "https://other.s3.eu-west-1.amazonaws.com/t/f", False),
        (StoreOptions(kind="s3"), "https://lake.s3.eu-west-1.amazonaws.com.evil/t/f", False),
        (StoreOptions(kind="s3", endpoint="http://store"), "http://lake.store/t/f", True),
        (StoreOptions(kind="s3", endpoint="http://store"), "http://store/lake/t/f", True),
        (StoreOptions(kind="s3", endpoint="http://store", path_style=True), "http://lake.store/t/f", False),
    ],
)
def test_hazard_111_the_bucket_is_in_the_host_or_in_the_path(store: StoreOptions, uri: str, is_found: bool) -> None:
    request = SignableRequest("GET", uri, "eu-west-1", {}, S3Operation.READ)
    if is_found:
        assert object_location(request, store, ["lake"]) == "s3://lake/t/f"
    else:
        with pytest.raises(errors.PermissionDenied):
            object_location(request, store, ["lake"])


@pytest.mark.parametrize("region", ["", "a/b", "eu-west-1.evil", "x" * 65])
def test_the_region_of_a_client_is_a_name(region: str) -> None:
    with pytest.raises(errors.InvalidInput):
        signing_region(StoreOptions(kind="s3"), region)
