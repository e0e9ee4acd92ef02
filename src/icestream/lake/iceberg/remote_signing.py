"""Requests to S3 that the catalog signs for a client: which it may sign, and how (Iceberg's remote signing). Pure.

    request of the client                              right          signed for
    GET, HEAD of an object                             table-read     every table
    PUT of an object, multipart uploads                table-write    every table, never over an existing object
    DELETE of an object                                table-write    tables that are no topic's
    everything else                                    refused: buckets, lists, bulk deletes, copies, ACLs, tags

An object is in one of the table's places by its exact name: the path is decoded once, and names with empty, `.` or `..`
segments are refused, also if these appear only after another decoding. The host must be that of the store: a signature
for another host might be used where the same path names another object. Parameters and headers that change what a
request does are on a list, and everything else is refused: `x-amz-copy-source` would read any object with our rights.

Files of a table are written once. Each PUT of an object is signed with `If-None-Match: *`, which the client must send:
so neither the client nor a thief of the signature can replace a file that readers of the table open with other rights
(hazard 109). A signature is valid for 15 minutes, by the rules of S3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from icestream import errors, limits
from icestream.catalogs.aws_signature import UNSIGNED_BODY, AwsKeys, AwsRequest, SigningScope, sign
from icestream.catalogs.store_options import StoreOptions
from icestream.iceberg import values
from icestream.iceberg.location import normalize
from icestream.iceberg.values import Object, short_repr

_HINT: Final = "objects of the table can be read and written one by one"
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_AWS_HOSTS: Final = ("s3.{region}.amazonaws.com", "s3-{region}.amazonaws.com", "s3.dualstack.{region}.amazonaws.com",
    "s3-fips.{region}.amazonaws.com", "s3.{region}.amazonaws.com.cn", "s3.amazonaws.com")  # fmt: skip
_STREAMED: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_OWN_HEADERS: Final = frozenset({"x-amz-content-sha256", "x-amz-date", "x-amz-security-token"})  # those of a signature
_HEADERS: Final = frozenset(
    {
        "x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type", "x-amz-decoded-content-length",
        "x-amz-expected-bucket-owner", "x-amz-mp-object-size", "x-amz-request-payer", "x-amz-sdk-checksum-algorithm",
        "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id", "x-amz-storage-class",
        "x-amz-te", "x-amz-trailer", "x-amz-user-agent",
    }
)  # fmt: skip
_HEADER_PREFIXES: Final = ("x-amz-checksum-crc", "x-amz-checksum-sha", "x-amz-meta-")
_PARAMETERS_MAX: Final = 16
_NO_EXISTING_OBJECT: Final = {"if-none-match": "*"}


class S3Operation(Enum):
    """What a request does to an object."""

    READ = auto()
    WRITE = auto()  # creates it
    PREPARE = auto()  # a part of a multipart upload, which creates nothing by itself
    DELETE = auto()


# Method, and the parameters that decide what it does.
_OPERATIONS: Final[Mapping[tuple[str, frozenset[str]], S3Operation]] = {
    ("GET", frozenset()): S3Operation.READ,
    ("HEAD", frozenset()): S3Operation.READ,
    ("GET", frozenset({"partNumber"})): S3Operation.READ,
    ("HEAD", frozenset({"partNumber"})): S3Operation.READ,
    ("PUT", frozenset()): S3Operation.WRITE,
    ("POST", frozenset({"uploads"})): S3Operation.PREPARE,
    ("PUT", frozenset({"partNumber", "uploadId"})): S3Operation.PREPARE,
    ("POST", frozenset({"uploadId"})): S3Operation.WRITE,
    ("DELETE", frozenset({"uploadId"})): S3Operation.PREPARE,
    ("DELETE", frozenset()): S3Operation.DELETE,
}
_NAME_ONLY: Final = "x-id"  # names the operation, for the log of the store


class SignableRequest(NamedTuple):
    """A request to S3 that a client wants to send; `headers` have names in lower case."""

    method: str
    uri: str
    region: str
    headers: Mapping[str, str]
    operation: S3Operation

    @property
    def is_write(self) -> bool:
        return self.operation is not S3Operation.READ

    @property
    def fits_staged_table(self) -> bool:
        """Whether it is signed for a table that does not exist yet: its creator writes files and asks for their sizes.
        What lies there may be of a table that was dropped, so it is not read."""
        return self.method == "HEAD" or self.operation in (S3Operation.WRITE, S3Operation.PREPARE)


def parse_sign_request(document: Object) -> SignableRequest:
    """Returns the request in the body of a client. Raises InvalidInput, and PermissionDenied for a request that is
    signed for no table."""
    method, uri = values.text(document, "method").upper(), values.text(document, "uri")
    region = values.optional_text(document, "region") or ""
    if len(uri) > limits.SIGNED_URI_BYTES_MAX or not uri.isascii() or not uri.isprintable() or "#" in uri:
        raise errors.InvalidInput("the uri to sign is too long, or no URI")
    header_lists = values.as_object(values.required(document, "headers"), "headers")
    if len(header_lists) > limits.SIGNED_HEADERS_MAX:
        raise errors.InvalidInput(f"more than {limits.SIGNED_HEADERS_MAX} headers to sign")
    headers: dict[str, str] = {}
    for name in header_lists:
        if name.lower() in headers:
            raise errors.InvalidInput(f"the header {short_repr(name.lower())} occurs twice")
        headers[name.lower()] = ",".join(values.texts(header_lists, name))
    if any(not (text.isascii() and text.isprintable()) for pair in headers.items() for text in pair):
        raise errors.InvalidInput("headers to sign are printable characters of ASCII")
    return SignableRequest(method, uri, region, headers, _operation(method, urlsplit(uri).query, headers))


def _operation(method: str, query: str, headers: Mapping[str, str]) -> S3Operation:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
    except ValueError:
        raise errors.InvalidInput(f"more than {_PARAMETERS_MAX} parameters in the uri to sign") from None
    parameters = [name for name, _ in pairs if name != _NAME_ONLY]
    operation = _OPERATIONS.get((method, frozenset(parameters)))
    if operation is None or len(set(parameters)) < len(parameters):
        raise errors.PermissionDenied(f"requests {method} with {short_repr(query)} are not signed", hint=_HINT)
    for name in headers:
        is_known = name in _HEADERS or name in _OWN_HEADERS or name.startswith(_HEADER_PREFIXES)
        if name.startswith("x-amz-") and not is_known:
            raise errors.PermissionDenied(f"requests with the header {short_repr(name)} are not signed", hint=_HINT)
    is_conditional = headers.get("if-none-match", "*") != "*" or "if-match" in headers
    if is_conditional and operation is not S3Operation.READ:
        raise errors.PermissionDenied("a request that replaces an object is not signed", hint=_HINT)
    return operation


def object_location(request: SignableRequest, store: StoreOptions, buckets: Sequence[str]) -> str:
    """Returns the location of the object that a request names in one of these buckets, in canonical form. Raises
    PermissionDenied."""
    address = urlsplit(request.uri)
    hosts = _hosts(store, request.region)
    try:
        path = unquote_to_bytes(address.path).decode().removeprefix("/")
        for bucket in buckets:
            name = ""
            if address.netloc in hosts and path.startswith(f"{bucket}/"):
                name = path.removeprefix(f"{bucket}/")
            # Only where the store knows such hosts: others would take the first segment of the path for the bucket.
            elif not store.path_style and address.netloc in {f"{bucket}.{host}" for host in hosts}:
                name = path
            if name and not name.endswith("/"):
                return normalize(f"s3://{bucket}/{name}")
    except (UnicodeDecodeError, errors.InvalidInput):
        pass
    raise no_object(request)


def no_object(request: SignableRequest) -> errors.PermissionDenied:
    """The refusal of a request for an object that is none of the table. It tells nothing about whose it is."""
    return errors.PermissionDenied(
        f"{short_repr(request.uri.partition('?')[0])} is no file of the table at this store",
        hint="use `s3.endpoint` as the catalog says it, and files in the table's location",
    )


def _hosts(store: StoreOptions, region: str) -> frozenset[str]:
    """Returns the hosts by which the store is reached, with their ports."""
    if store.endpoint is not None:
        return frozenset({urlsplit(store.endpoint).netloc})
    signed_region = signing_region(store, region)
    return frozenset(host.format(region=signed_region) for host in _AWS_HOSTS)


def signing_region(store: StoreOptions, region: str) -> str:
    """Returns the region for which a request is signed. `region`: what the client says. Raises InvalidInput."""
    if store.region is not None:
        return store.region
    if store.endpoint is not None:
        return "us-east-1"  # as for our own requests: such stores ignore it (store_options.py)
    if not _REGION.fullmatch(region):
        raise errors.InvalidInput(f"invalid region: {short_repr(region)}")
    return region


def signed_headers(request: SignableRequest, store: StoreOptions, keys: AwsKeys, time_us: int) -> dict[str, str]:
    """Returns the headers that a client must add to its request."""
    headers = {
        name: value for name, value in request.headers.items() if name.startswith("x-amz-") and name not in _OWN_HEADERS
    }
    is_creating = request.operation is S3Operation.WRITE
    if is_creating:
        headers |= _NO_EXISTING_OBJECT
    digest = request.headers.get("x-amz-content-sha256", UNSIGNED_BODY)
    if digest != _STREAMED and not _DIGEST.fullmatch(digest):
        digest = UNSIGNED_BODY
    scope = SigningScope(signing_region(store, request.region), "s3")
    signature = sign(AwsRequest(request.method, request.uri, headers, digest), keys, scope, time_us)
    return {**signature, **({"If-None-Match": "*"} if is_creating else {})}
