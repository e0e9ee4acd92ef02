"""Signatures of requests to S3 and STS, compared with those of botocore."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from icestream.catalogs.aws_signature import AwsKeys, AwsRequest, SigningScope, sign
from icestream.catalogs.session_policy import s3_places, session_policy

NOW = datetime.datetime(2026, 11, 18, 12, 30, 15, tzinfo=datetime.UTC)


@pytest.mark.parametrize("token", [None, "a session/token+="])
@pytest.mark.parametrize(
    ("method", "url", "headers"),
    [
        ("GET", "http://127.0.0.1:8333/objects/t/data/f.parquet", {}),
        ("HEAD", "https://bucket.s3.eu-central-1.amazonaws.com/a%20b/c%3D1/%C3%A4%2B~.x", {}),
        ("PUT", "http://store/objects/k?partNumber=2&uploadId=a%2Fb", {"x-amz-meta-b": " two  spaces "}),
        ("POST", "http://store/objects/k?uploads", {"x-amz-checksum-algorithm": "CRC32", "if-none-match": "*"}),
        ("PUT", "http://store/objects/k", {"if-none-match": "*", "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}),
        ("GET", "http://store/", {}),
    ],
)
def test_signatures_are_those_of_botocore(
    method: str, url: str, headers: dict[str, str], token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: NOW)
    request = AWSRequest(method=method, url=url, headers=dict(headers))
    request.context["client_config"] = SimpleNamespace(s3={"payload_signing_enabled": False})
    S3SigV4Auth(Credentials("AKIA", "sec/ret", token), "s3", "eu-central-1").add_auth(request)
    signed: Any = request.headers
    own = {name: value for name, value in headers.items() if name != "x-amz-content-sha256"}
    scope = SigningScope("eu-central-1", "s3")
    added = sign(
        AwsRequest(method, url, own, signed["X-Amz-Content-SHA256"]),
        AwsKeys("AKIA", "sec/ret", token),
        scope,
        int(NOW.timestamp() * 1e6) + 999_999,
    )
    assert added["Authorization"] == signed["Authorization"]
    assert (added["X-Amz-Date"], added.get("X-Amz-Security-Token")) == ("20261118T123015Z", token)


def test_secrets_of_keys_are_not_shown() -> None:
    assert "hunter2" not in repr(AwsKeys("AKIA", "hunter2", "hunter2"))


@pytest.mark.parametrize(
    ("location", "resource"),
    [
        ("s3://lake/t/orders", "arn:aws:s3:::lake/t/orders/*"),
        ("s3a://lake/t/a=b.c_d", "arn:aws:s3:::lake/t/a=b.c_d/*"),
        ("s3://lake/t/*", None),
        ("s3://lake/t/${aws:username}", None),
        ("s3://la*ke/t", None),
        ("s3://lake/", None),
        ("file:/lake/t", None),
        ("gs://lake/t", None),
    ],
)
def test_hazard_111_a_policy_names_exactly_one_place(location: str, resource: str | None) -> None:
    policy = session_policy(s3_places([location]), "aws", is_writer=False)
    assert (policy is not None) == (resource is not None)
    if policy is not None:
        assert f'"Resource":["{resource}"]' in policy
    assert session_policy(s3_places([location, "file:/x"]), "aws", is_writer=True) is None, "all places, or none"
