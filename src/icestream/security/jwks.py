"""The public keys of an external issuer: a JSON Web Key Set (RFC 7517), from a file or over https.

    kept       the keys of the last good answer, for JWKS_KEPT_SECONDS; then tokens are refused until the issuer answers
    refetched  when a token names a key that is not known, or the keys are older than JWKS_AGE_SECONDS; at most once in
               JWKS_REFETCH_SECONDS, whatever clients send. A fetch that fails keeps the keys

A key is used with one algorithm: its `alg`, else the one of its type (RSA: RS256, P-256: ES256, Ed25519: EdDSA).
Symmetric keys and algorithms are refused, so no public key can become a shared secret (hazard 116). Keys for
encryption are skipped.

The address is the operator's; a redirect is an error, and a token has no part in it. The answer has JWKS_BYTES_MAX at
most, and JWKS_SECONDS_MAX for all of it. The standard library fetches it in a thread: the broker process loads no HTTP
client.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from icestream import errors, limits
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload
from icestream.security.signed_token import VerificationKey

_log = get_logger("security")
_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"})
_BY_TYPE: Final = {
    ("RSA", ""): "RS256",
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("OKP", "Ed25519"): "EdDSA",
}


class _KeyDocument(msgspec.Struct):
    kty: str
    kid: str = ""
    alg: str = ""
    use: str = "sig"
    crv: str = ""


class _KeySetDocument(msgspec.Struct):
    keys: list[msgspec.Raw]


def parse_key_set(raw: bytes, issuer: str, audience: str) -> Mapping[str, VerificationKey]:
    """The usable keys of a set, by id. Raises DecodeError if it is no key set, or has none."""
    try:
        texts = msgspec.json.decode(raw, type=_KeySetDocument).keys[: limits.JWKS_KEYS_MAX]
    except (msgspec.DecodeError, ValueError) as error:
        raise errors.DecodeError(f"not a JSON Web Key Set: {type(error).__name__}") from error
    # What cannot be used is skipped (RFC 7517, 5): an issuer may add keys for other purposes at any time.
    keys = {key.key_id: key for text in texts if (key := _usable_key(bytes(text), issuer, audience)) is not None}
    if not keys:
        raise errors.DecodeError("the key set has no key for signatures by a supported algorithm")
    return keys


def _usable_key(text: bytes, issuer: str, audience: str) -> VerificationKey | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        entry = msgspec.json.decode(text, type=_KeyDocument)
        algorithm = entry.alg or _BY_TYPE.get((entry.kty, "" if entry.kty == "RSA" else entry.crv), "")
        if entry.use != "sig" or algorithm not in _ALGORITHMS:
            return None
        public: dict[str, Any] = msgspec.json.decode(text)
        public.pop("d", None)  # a private key that was published by mistake is still used as a public one only
        key = PyJWK(public, algorithm).key  # refuses a key of another type than that of the algorithm
    except (msgspec.DecodeError, PyJWTError, ValueError, TypeError, KeyError):
        return None
    if entry.kty == "RSA" and key.key_size < limits.RSA_BITS_MIN:
        return None
    return VerificationKey(entry.kid, algorithm, key, issuer, audience)


def read_key_file(path: Path) -> bytes:
    """Raises OSError, DecodeError."""
    with path.open("rb") as file:
        raw = file.read(limits.JWKS_BYTES_MAX + 1)
    if len(raw) > limits.JWKS_BYTES_MAX:
        raise errors.DecodeError(f"{path} is larger than {limits.JWKS_BYTES_MAX} bytes")
    return raw


def fetch_key_set(uri: str, context: ssl.SSLContext | None = None, seconds: float = limits.JWKS_SECONDS_MAX) -> bytes:
    """Fetches a key set; blocks. Raises OSError, DecodeError. `context`: with other authorities than the system's."""
    parts = urlsplit(uri)
    if parts.scheme != "https" or parts.hostname is None or "@" in parts.netloc:
        raise errors.DecodeError("a key set is fetched over https only")
    connection = http.client.HTTPSConnection(
        parts.hostname, parts.port or 443, timeout=seconds, context=context or ssl.create_default_context()
    )
    # The time-out of a socket is for one read: an issuer that sends a byte now and then would hold the thread.
    is_over = threading.Event()
    timer = threading.Timer(seconds, _shut_down, [connection, is_over])
    timer.daemon = True
    timer.start()
    try:
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request("GET", target, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise errors.DecodeError(f"the issuer answered {response.status} instead of its keys")
        raw = response.read(limits.JWKS_BYTES_MAX + 1)
        if len(raw) > limits.JWKS_BYTES_MAX:
            raise errors.DecodeError(f"the key set is larger than {limits.JWKS_BYTES_MAX} bytes")
        if is_over.is_set() or response.length:
            raise errors.DecodeError(f"the issuer's answer was cut off, or took longer than {seconds} s")
    except http.client.HTTPException as error:
        raise errors.DecodeError(f"the issuer's answer is not HTTP: {type(error).__name__}") from error
    finally:
        timer.cancel()
        connection.close()
    return raw


def _shut_down(connection: http.client.HTTPSConnection, is_over: threading.Event) -> None:
    is_over.set()
    with contextlib.suppress(OSError, AttributeError):  # no socket yet, or no longer
        connection.sock.shutdown(socket.SHUT_RDWR)


class KeySet:
    """The present keys of an issuer."""

    def __init__(self, load: Callable[[], bytes], issuer: str, audience: str, clock: Clock, offload: Offload) -> None:
        """`load` reads the file or fetches the address; it runs by `offload`."""
        self._load = load
        self._issuer = issuer
        self._audience = audience
        self._clock = clock
        self._offload = offload
        self._keys: Mapping[str, VerificationKey] = {}
        self._loaded_ns: int | None = None
        self._tried_ns: int | None = None
        self._refetch: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> VerificationKey | None:
        """The key of this id; None if the issuer has none, or has not answered for too long.

        A token without an id gets the issuer's only key.
        """
        key = self._find(key_id)
        if (key is None or self._is_older(limits.JWKS_AGE_SECONDS)) and self._may_refetch():
            self._tried_ns = self._clock.monotonic_ns()
            self._refetch = asyncio.get_running_loop().create_task(self._load_keys(), name="key set")
        if key is None and self._refetch is not None:
            # Not cancelled with this login: others wait for the same answer.
            await asyncio.wait([self._refetch], timeout=limits.JWKS_SECONDS_MAX)
            key = self._find(key_id)
        return key

    async def close(self) -> None:
        """Waits for a fetch under way, and ends its thread."""
        if self._refetch is not None:
            await asyncio.wait([self._refetch])
        self._offload.close()

    def _find(self, key_id: str) -> VerificationKey | None:
        if self._is_older(limits.JWKS_KEPT_SECONDS):
            return None
        if not key_id:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    def _is_older(self, seconds: float) -> bool:
        return self._loaded_ns is None or self._clock.monotonic_ns() - self._loaded_ns > seconds * 1e9

    def _may_refetch(self) -> bool:
        if self._refetch is not None and not self._refetch.done():
            return False
        return (
            self._tried_ns is None
            or self._clock.monotonic_ns() - self._tried_ns >= limits.JWKS_REFETCH_SECONDS * 1_000_000_000
        )

    async def _load_keys(self) -> None:
        try:
            raw = await self._offload.run(self._load)
            self._keys = parse_key_set(raw, self._issuer, self._audience)
            self._loaded_ns = self._clock.monotonic_ns()
        except (OSError, errors.DecodeError) as error:
            _log.warning("could not load the keys of an issuer", issuer=self._issuer, error=str(error))
