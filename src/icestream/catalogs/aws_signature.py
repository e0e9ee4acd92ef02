"""AWS Signature Version 4: the headers that prove a request to S3 or STS. Pure.

    canonical request   METHOD, path, query, headers, names of these headers, digest of the body: one line each
    string to sign      AWS4-HMAC-SHA256, time, scope, SHA-256 of the canonical request
    scope               DATE/REGION/SERVICE/aws4_request
    key                 HMAC of the parts of the scope, one after the other, beginning with the secret

The signature covers everything that was checked before a request of a client is signed: method, host, path, query and
the headers that change what a request does.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

UNSIGNED_BODY: Final = "UNSIGNED-PAYLOAD"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SAFE: Final = "-_.~"  # what S3 leaves unescaped in names and values


@dataclass(frozen=True)
class AwsKeys:
    """Keys of an account or of a session. Secrets are not shown."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_ms: int | None = None  # since 1970; None: they do not expire


class SigningScope(NamedTuple):
    """Where a signature is valid."""

    region: str
    service: str  # s3, sts


class AwsRequest(NamedTuple):
    """A request as it will be sent. `headers`: those to be signed, in lower case, apart from the host."""

    method: str
    url: str
    headers: Mapping[str, str]
    body_digest: str = UNSIGNED_BODY


def sign(request: AwsRequest, keys: AwsKeys, scope: SigningScope, time_us: int) -> dict[str, str]:
    """Returns the headers that must be sent with the request besides its own."""
    time = datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"X-Amz-Content-SHA256": request.body_digest, "X-Amz-Date": time}
    if keys.session_token is not None:
        added["X-Amz-Security-Token"] = keys.session_token
    address = urlsplit(request.url)
    headers = {
        **{name: " ".join(value.split()) for name, value in request.headers.items()},
        **{name.lower(): value for name, value in added.items()},
        "host": address.netloc,
    }
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        (
            request.method,
            quote(unquote(address.path), safe=f"/{_SAFE}") or "/",
            _canonical_query(address.query),
            "".join(f"{name}:{headers[name]}\n" for name in sorted(headers)),
            names,
            request.body_digest,
        )
    )
    place = f"{time[:8]}/{scope.region}/{scope.service}/aws4_request"
    signed = "\n".join((_ALGORITHM, time, place, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (*place.split("/"), signed):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{keys.access_key_id}/{place}"
    return {
        **added,
        "Authorization": f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={key.hex()}",
    }


def _canonical_query(query: str) -> str:
    """Returns the parameters in the order of their escaped names and values; one without a value has an empty one."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    escaped = sorted((quote(unquote(name), safe=_SAFE), quote(unquote(value), safe=_SAFE)) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in escaped)
