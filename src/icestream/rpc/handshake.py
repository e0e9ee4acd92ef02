"""The handshake of the native protocol: what each side announces, and what both keep to afterwards.

    HELLO     version          the highest version that the client supports
              version_min      the lowest; `version` if it is missing
              client           a name for logs and metrics, may be empty
              frame_bytes_max  the largest frame that the client accepts (the size field of a frame, see frame.py)
              compression      names, the client's favourite first; unknown ones are ignored
              credential       optional; one of {token}, {user, password}, and, on the local socket, {role, secret}.
                               The client's identity follows from it or from its certificate, never from `client`
    WELCOME   version          the version in use: the highest that both support
              node             the name of the broker
              frame_bytes_max  the largest frame that the broker accepts
              compression      the one in use; empty for none
              time_us          the broker's clock, microseconds since 1970
              instance         the id of this run of the broker (runtime/instance.py); empty if it has none

The broker answers when it has verified the credential: with WELCOME, or with ERROR `unauthenticated`, after which it
closes the connection. `Agreement` is what follows from both. Each side may then send frames up to what the other
accepts; for a compressed body this bound applies to the uncompressed size too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.rpc import document
from icestream.rpc.body_compression import Compression
from icestream.rpc.frame import COMPRESSED, MAGIC, SIZE_MIN, VERSION, VERSION_MIN, Frame, FrameKind, encode_frame

ZSTD: Final = "zstd"
_CREDENTIAL_BYTES_MAX: Final = {
    "token": limits.TOKEN_BYTES_MAX,
    "user": limits.NAME_BYTES_MAX,
    "password": limits.PASSWORD_BYTES_MAX,
    "role": limits.NAME_BYTES_MAX,
    "secret": limits.NAME_BYTES_MAX,
}
_VERSION_MAX: Final = 2**16 - 1
_BYTES_MAX: Final = 2**32 - 1
_TIME_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HelloCredential:
    """The credential of a HELLO, not verified: a token, a user with a password, or a process with its secret."""

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    role: str = ""
    secret: str = field(default="", repr=False)


def role_credential(role: str, secret: str) -> HelloCredential:
    """The credential of a process of the node. `secret`: empty for a process without one, which a broker without
    accounts admits; another one refuses it with the command that makes a secret."""
    return HelloCredential(role=role, secret=secret)


class Hello(NamedTuple):
    """A HELLO."""

    version: int = VERSION
    version_min: int = VERSION_MIN
    client: str = ""
    frame_bytes_max: int = limits.FRAME_BYTES_MAX_DEFAULT
    compression: tuple[str, ...] = ()
    credential: HelloCredential | None = None


class Welcome(NamedTuple):
    """A WELCOME."""

    version: int
    node: str
    frame_bytes_max: int
    compression: str
    time_us: int
    instance: str = ""


class Agreement(NamedTuple):
    """The result of the handshake, for one side."""

    version: int
    frame_bytes_max: int  # that this side accepts
    send_bytes_max: int  # that the other side accepts
    compression: Compression | None


def encode_hello(hello: Hello, *, ends_http_request: bool = False) -> bytes:
    """Returns the body of a HELLO.

    `ends_http_request`: adds a key that brokers ignore and that ends a request of HTTP/1, so that an HTTP server at
    that address answers immediately instead of waiting for the rest of a request.
    """
    fields = hello._asdict()
    del fields["credential"]
    if hello.credential is not None:
        values = {name: getattr(hello.credential, name) for name in _CREDENTIAL_BYTES_MAX}
        fields["credential"] = {name: value for name, value in values.items() if value}
    if ends_http_request:
        fields["end"] = "\r\n\r\n"
    return MAGIC + document.encode(fields)


def decode_hello(body: bytes) -> Hello:
    """Raises DecodeError."""
    if body[: len(MAGIC)] != MAGIC:
        raise errors.DecodeError(
            "HELLO does not begin with the magic bytes", hint="is the other side speaking the native protocol?"
        )
    fields = document.decode(body[len(MAGIC) :])
    version = document.number_of(fields, "version", 1, _VERSION_MAX)
    return Hello(
        version,
        document.number_of(fields, "version_min", 1, version, version),
        document.text_of(fields, "client", limits.NAME_BYTES_MAX, ""),
        document.number_of(fields, "frame_bytes_max", 0, _BYTES_MAX, limits.FRAME_BYTES_MAX_DEFAULT),
        document.texts_of(fields, "compression", limits.COMPRESSIONS_MAX, limits.NAME_BYTES_MAX),
        _decode_credential(fields.get("credential")),
    )


def _decode_credential(fields: object) -> HelloCredential | None:
    """Raises DecodeError, which never quotes a value."""
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise errors.DecodeError("credential is not a map")
    credential = HelloCredential(
        **{name: document.text_of(fields, name, bound, "") for name, bound in _CREDENTIAL_BYTES_MAX.items()}
    )
    kinds = [bool(credential.token), bool(credential.user or credential.password), bool(credential.role)]
    if sum(kinds) != 1:
        raise errors.DecodeError("credential is not one of a token, a user with a password, or a role with a secret")
    return credential


def encode_welcome(welcome: Welcome) -> bytes:
    return document.encode(welcome._asdict())


def decode_welcome(body: bytes) -> Welcome:
    """Raises DecodeError."""
    fields = document.decode(body)
    return Welcome(
        document.number_of(fields, "version", 1, _VERSION_MAX),
        document.text_of(fields, "node", limits.NAME_BYTES_MAX, ""),
        document.number_of(fields, "frame_bytes_max", 0, _BYTES_MAX),
        document.text_of(fields, "compression", limits.NAME_BYTES_MAX, ""),
        document.number_of(fields, "time_us", -_TIME_MAX, _TIME_MAX, 0),
        document.text_of(fields, "instance", limits.NAME_BYTES_MAX, ""),
    )


# --- the broker's side ------------------------------------------------------------------------------------------------


def make_welcome(
    hello: Hello, node: str, frame_bytes_max: int, time_us: int, compressions: tuple[str, ...], instance: str = ""
) -> Welcome:
    """Returns the answer to a HELLO. Raises UnknownVersion or InvalidInput: the connection is refused."""
    version = min(hello.version, VERSION)
    if version < max(hello.version_min, VERSION_MIN):
        raise errors.UnknownVersion(
            f"the client supports versions {hello.version_min} to {hello.version} of the protocol",
            hint=f"this broker supports {VERSION_MIN} to {VERSION}; use a client or a broker of another version",
        )
    _check_bound(hello.frame_bytes_max, "the client")
    # The client's order decides: it knows its CPU and its network.
    compression = next((name for name in hello.compression if name in compressions), "")
    return Welcome(version, node, frame_bytes_max, compression, time_us, instance)


@dataclass(frozen=True, slots=True)
class HandshakeServer:
    """The broker's side of every handshake."""

    node: str
    now_us: Callable[[], int]
    frame_bytes_max: int = limits.FRAME_BYTES_MAX_DEFAULT
    compression: Compression | None = None
    instance: str = ""

    def agree(self, first: Frame) -> tuple[Agreement, bytes, HelloCredential | None]:
        """Returns the agreement that follows from a connection's first frame, the body of the WELCOME, and the
        credential, which is still to be verified.

        Raises DecodeError, UnknownVersion or InvalidInput.
        """
        hello = decode_hello(_expected_body(first, FrameKind.HELLO))
        compressions = (ZSTD,) if self.compression else ()
        welcome = make_welcome(hello, self.node, self.frame_bytes_max, self.now_us(), compressions, self.instance)
        send_bytes_max = min(hello.frame_bytes_max, limits.FRAME_BYTES_MAX)
        compression = self.compression if welcome.compression else None
        agreed = Agreement(welcome.version, self.frame_bytes_max, send_bytes_max, compression)
        return agreed, encode_welcome(welcome), hello.credential


# --- the client's side ------------------------------------------------------------------------------------------------


def accept_welcome(hello: Hello, first: Frame, compression: Compression | None = None) -> tuple[Agreement, Welcome]:
    """Returns the agreement that follows from the broker's answer to `hello`.

    Raises the broker's error, UnknownVersion, InvalidInput or DecodeError.
    """
    if first.kind == FrameKind.ERROR:
        raise document.decode_error(_expected_body(first, FrameKind.ERROR))
    welcome = decode_welcome(_expected_body(first, FrameKind.WELCOME))
    if not hello.version_min <= welcome.version <= hello.version:
        raise errors.UnknownVersion(
            f"the broker chose version {welcome.version} of the protocol",
            hint=f"this client supports {hello.version_min} to {hello.version}",
        )
    if welcome.compression and (compression is None or welcome.compression not in hello.compression):
        raise errors.DecodeError("the broker chose a compression that was not offered")
    _check_bound(welcome.frame_bytes_max, "the broker")
    send_bytes_max = min(welcome.frame_bytes_max, limits.FRAME_BYTES_MAX)
    agreed_compression = compression if welcome.compression else None
    return Agreement(welcome.version, hello.frame_bytes_max, send_bytes_max, agreed_compression), welcome


def _expected_body(first: Frame, kind: FrameKind) -> bytes:
    if first.kind != kind or first.flags:
        raise errors.DecodeError(f"frame of kind {first.kind} where {kind.name} was expected")
    return first.body


def _check_bound(frame_bytes_max: int, side: str) -> None:
    if frame_bytes_max < limits.FRAME_BYTES_MIN:
        raise errors.InvalidInput(
            f"{side} accepts frames of {frame_bytes_max} bytes only",
            hint=f"each side must accept at least {limits.FRAME_BYTES_MIN}: the largest answers need it",
        )


# --- frames after the handshake ---------------------------------------------------------------------------------------


def incoming_frame(frame: Frame, agreed: Agreement) -> Frame:
    """Returns a received frame with its body decompressed. Raises DecodeError."""
    if not frame.flags & COMPRESSED:
        return frame
    if agreed.compression is None:
        raise errors.DecodeError("compressed frame, but the handshake chose no compression")
    # Bounded by what this side accepts uncompressed: a few bytes must not become gigabytes (hazard 35).
    body = agreed.compression.decompress(frame.body, agreed.frame_bytes_max - SIZE_MIN)
    return frame._replace(flags=frame.flags & ~COMPRESSED, body=body)


def outgoing_frame(kind: int, number: int, body: bytes, agreed: Agreement) -> bytes:
    """Returns the bytes of a frame to send, compressed if that was agreed and helps. Raises MessageTooLarge."""
    if SIZE_MIN + len(body) > agreed.send_bytes_max:
        raise errors.MessageTooLarge(
            f"frame too large: {SIZE_MIN + len(body)} bytes, limit {agreed.send_bytes_max}",
            hint="the other side announced this limit in the handshake",
        )
    flags, packed = (0, body) if agreed.compression is None else agreed.compression.compress(body)
    return encode_frame(kind, number, packed, flags)
