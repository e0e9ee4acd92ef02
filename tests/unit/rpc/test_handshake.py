"""The handshake: both sides keep to the same terms, or the connection ends with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.rpc import document, frame, handshake
from icestream.rpc.body_compression import Compression
from icestream.rpc.frame import COMPRESSED, MAGIC, VERSION, Frame, FrameKind
from icestream.rpc.handshake import Agreement, HandshakeServer, Hello, Welcome
from icestream.rpc.stream import FrameStream
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VERSIONS = st.integers(1, 2**16 - 1)
HELLOS = st.builds(
    lambda versions, client, size, names: Hello(max(versions), min(versions), client, size, tuple(names)),
    st.tuples(VERSIONS, VERSIONS), NAMES, st.integers(0, 2**32 - 1), st.lists(NAMES, max_size=4),
)  # fmt: skip
WELCOMES = st.builds(Welcome, VERSIONS, NAMES, st.integers(0, 2**32 - 1), NAMES, st.integers(0, 2**62), NAMES)
NOW_US = 1_700_000_000_000_000


def server(compression: Compression | None = None) -> HandshakeServer:
    return HandshakeServer("node-1", lambda: NOW_US, limits.FRAME_BYTES_MAX_DEFAULT, compression)


def hello_frame(hello: Hello) -> Frame:
    return Frame(FrameKind.HELLO, 0, 9, handshake.encode_hello(hello))


def hello_with(**fields: Any) -> Frame:
    """A HELLO with any fields."""
    return Frame(FrameKind.HELLO, 0, 9, MAGIC + document.encode({"version": 1, **fields}))


# --- both sides -------------------------------------------------------------------------------------------------------


@given(HELLOS)
def test_a_hello_round_trips(hello: Hello) -> None:
    assert handshake.decode_hello(handshake.encode_hello(hello)) == hello


@given(WELCOMES)
def test_a_welcome_round_trips(welcome: Welcome) -> None:
    assert handshake.decode_welcome(handshake.encode_welcome(welcome)) == welcome


def test_both_sides_agree() -> None:
    for offered, has in ((("zstd",), True), (("lz9", "zstd"), True), (("zstd",), False), ((), True)):
        hello = Hello(client="me", frame_bytes_max=5_000_000, compression=offered)
        at_broker, body, _ = server(Compression() if has else None).agree(hello_frame(hello))
        at_client, welcome = handshake.accept_welcome(hello, Frame(FrameKind.WELCOME, 0, 9, body), Compression())
        chosen = "zstd" if has and offered else ""
        assert welcome == Welcome(VERSION, "node-1", limits.FRAME_BYTES_MAX_DEFAULT, chosen, NOW_US)
        assert (at_broker.frame_bytes_max, at_broker.send_bytes_max) == (limits.FRAME_BYTES_MAX_DEFAULT, 5_000_000)
        assert (at_client.frame_bytes_max, at_client.send_bytes_max) == (5_000_000, limits.FRAME_BYTES_MAX_DEFAULT)
        assert (at_broker.compression is None) is (at_client.compression is None) is (not chosen)
        assert at_broker.version == at_client.version == VERSION


@given(HELLOS)
def test_every_hello_is_agreed_with_or_refused(hello: Hello) -> None:
    try:
        agreed, body, _ = server(Compression()).agree(hello_frame(hello))
    except (errors.UnknownVersion, errors.InvalidInput):
        assert hello.version_min > VERSION or hello.frame_bytes_max < limits.FRAME_BYTES_MIN
        return
    client, welcome = handshake.accept_welcome(hello, Frame(FrameKind.WELCOME, 0, 9, body), Compression())
    assert agreed.send_bytes_max <= client.frame_bytes_max
    assert client.send_bytes_max <= agreed.frame_bytes_max
    assert hello.version_min <= welcome.version <= min(hello.version, VERSION)


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "version_min", "chosen"),
    [(VERSION, VERSION, VERSION), (VERSION + 1, VERSION, VERSION), (99, 1, VERSION), (VERSION + 1, VERSION + 1, None)],
)
def test_the_highest_version_that_both_speak_is_chosen(version: int, version_min: int, chosen: int | None) -> None:
    hello = Hello(version, version_min)
    if chosen is not None:
        assert server().agree(hello_frame(hello))[0].version == chosen
        return
    with pytest.raises(errors.UnknownVersion, match=f"{version_min} to {version}") as refused:
        server().agree(hello_frame(hello))
    assert str(VERSION) in refused.value.hint


def test_a_peer_with_one_version_speaks_only_that() -> None:
    with pytest.raises(errors.UnknownVersion):
        server().agree(hello_with(version=VERSION + 1))


def test_a_client_refuses_a_version_that_it_did_not_offer() -> None:
    for version in (VERSION + 1, 9):
        body = handshake.encode_welcome(Welcome(version, "n", limits.FRAME_BYTES_MIN, "", 0))
        with pytest.raises(errors.UnknownVersion, match=f"version {version}"):
            handshake.accept_welcome(Hello(), Frame(FrameKind.WELCOME, 0, 9, body))


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_an_impossible_bound_is_refused() -> None:
    least = limits.FRAME_BYTES_MIN
    assert server().agree(hello_frame(Hello(frame_bytes_max=least)))[0].send_bytes_max == least
    with pytest.raises(errors.InvalidInput, match="the client accepts"):
        server().agree(hello_frame(Hello(frame_bytes_max=least - 1)))
    for size in (least, least - 1):
        answer = Frame(FrameKind.WELCOME, 0, 9, handshake.encode_welcome(Welcome(VERSION, "n", size, "", 0)))
        if size == least:
            assert handshake.accept_welcome(Hello(), answer)[0].send_bytes_max == least
        else:
            with pytest.raises(errors.InvalidInput, match="the broker accepts"):
                handshake.accept_welcome(Hello(), answer)


def test_no_peer_sends_more_than_the_largest_frame() -> None:
    agreed, _, _ = server().agree(hello_frame(Hello(frame_bytes_max=2**32 - 1)))
    assert agreed.send_bytes_max == limits.FRAME_BYTES_MAX


def test_keys_that_are_missing_have_defaults_and_unknown_ones_are_ignored() -> None:
    agreed, _, _ = server(Compression()).agree(hello_with(later={"a": [1]}, token="x"))
    assert agreed == Agreement(VERSION, limits.FRAME_BYTES_MAX_DEFAULT, limits.FRAME_BYTES_MAX_DEFAULT, None)
    welcome = handshake.decode_welcome(document.encode({"version": 1, "frame_bytes_max": 7, "later": 1}))
    assert welcome == Welcome(1, "", 7, "", 0)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 0},
        {"version": -1},
        {"version": 2**16},
        {"version": "1"},
        {"version": True},
        {"version": None},
        {"version_min": 2},
        {"version_min": 0},
        {"client": 7},
        {"client": "x" * (limits.NAME_BYTES_MAX + 1)},
        {"frame_bytes_max": -1},
        {"frame_bytes_max": 2**32},
        {"frame_bytes_max": 1.5e7},
        {"compression": "zstd"},
        {"compression": [1]},
        {"compression": ["zstd"] * (limits.COMPRESSIONS_MAX + 1)},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_hello_of_wrong_values_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.DecodeError):
        server().agree(hello_with(**fields))


@pytest.mark.parametrize(
    "first",
    [
        Frame(FrameKind.PUBLISH, 0, 1, handshake.encode_hello(Hello())),
        Frame(FrameKind.PING, 0, 1, b""),
        Frame(FrameKind.WELCOME, 0, 1, b"\x80"),
        Frame(FrameKind.HELLO, COMPRESSED, 1, handshake.encode_hello(Hello())),
        Frame(FrameKind.HELLO, 0, 1, b""),
        Frame(FrameKind.HELLO, 0, 1, b"ICESTRM"),
        Frame(FrameKind.HELLO, 0, 1, b"ICESTRM2" + document.encode({"version": 1})),
        Frame(FrameKind.HELLO, 0, 1, MAGIC),
        Frame(FrameKind.HELLO, 0, 1, MAGIC + b"\x80"),
    ],
    ids=lambda first: f"{FrameKind(first.kind).name} {first.body[:12]!r}",
)
def test_a_first_frame_that_is_no_hello_is_refused(first: Frame) -> None:
    with pytest.raises(errors.DecodeError):
        server().agree(first)


def test_a_client_gets_the_reason_of_the_broker() -> None:
    reason = document.encode_error(errors.UnknownVersion("no", hint="so"))
    with pytest.raises(errors.UnknownVersion, match="no"):
        handshake.accept_welcome(Hello(), Frame(FrameKind.ERROR, 0, 9, reason))
    with pytest.raises(errors.DecodeError, match="where WELCOME was expected"):
        handshake.accept_welcome(Hello(), Frame(FrameKind.RESULT, 0, 9, b"\x80"))


@pytest.mark.parametrize(("offered", "has"), [((), True), (("zstd",), False), (("lz9",), True)])
def test_a_client_refuses_a_compression_that_it_did_not_offer(offered: tuple[str, ...], has: bool) -> None:
    body = handshake.encode_welcome(Welcome(VERSION, "n", limits.FRAME_BYTES_MIN, "zstd", 0))
    with pytest.raises(errors.DecodeError, match="not offered"):
        handshake.accept_welcome(
            Hello(compression=offered), Frame(FrameKind.WELCOME, 0, 9, body), Compression() if has else None
        )


HELLO_BODY = handshake.encode_hello(Hello(client="me", compression=("zstd",)))
WELCOME_BODY = handshake.encode_welcome(Welcome(VERSION, "node", limits.FRAME_BYTES_MIN, "zstd", NOW_US))
BODIES = [(handshake.decode_hello, HELLO_BODY), (handshake.decode_welcome, WELCOME_BODY)]


@pytest.mark.parametrize(("decode", "body"), BODIES, ids=["hello", "welcome"])
def test_every_truncation_is_refused_and_every_flip_read_or_refused(decode: Any, body: bytes) -> None:
    for cut in truncations(body):
        with pytest.raises(errors.DecodeError):
            decode(cut)
    for _, flipped in bit_flips(body):
        decoded = decoded_or_refused(decode, flipped)
        assert decoded is None or decoded.version >= 1


@pytest.mark.parametrize(("decode", "body"), BODIES, ids=["hello", "welcome"])
@given(data=st.data())
def test_any_bytes_are_read_or_refused(decode: Any, body: bytes, data: st.DataObject) -> None:
    damaged = data.draw(st.one_of(mutated(body), st.binary(max_size=60), st.binary(max_size=40).map(MAGIC.__add__)))
    decoded = decoded_or_refused(decode, damaged)
    assert decoded is None or decoded.version >= 1


# --- afterwards -------------------------------------------------------------------------------------------------------


def agreed(compression: Compression | None, size: int = limits.FRAME_BYTES_MIN) -> Agreement:
    return Agreement(VERSION, size, size, compression)


@given(st.binary(max_size=300).map(lambda data: data * 20))
def test_sealed_frames_can_be_opened(body: bytes) -> None:
    for compression in (None, Compression()):
        (sealed_frame,) = FrameStream().feed(handshake.outgoing_frame(FrameKind.PUBLISH, 3, body, agreed(compression)))
        assert handshake.incoming_frame(sealed_frame, agreed(compression)) == Frame(FrameKind.PUBLISH, 0, 3, body)


def test_a_frame_is_compressed_only_where_that_was_agreed() -> None:
    body = bytes(10_000)
    sealed = handshake.outgoing_frame(FrameKind.PUBLISH, 3, body, agreed(Compression()))
    assert len(sealed) < 100
    (sealed_frame,) = FrameStream().feed(sealed)
    assert sealed_frame.flags == COMPRESSED
    with pytest.raises(errors.DecodeError, match="chose no compression"):
        handshake.incoming_frame(sealed_frame, agreed(None))
    assert len(handshake.outgoing_frame(FrameKind.PUBLISH, 3, body, agreed(None))) == frame.HEAD.size + len(body)


def test_the_bound_applies_to_the_decompressed_body() -> None:
    """hazard 35: a compressed frame may not become larger than a plain one may be."""
    most = bytes(10_000 - frame.SIZE_MIN)
    (sealed_frame,) = FrameStream().feed(
        handshake.outgoing_frame(FrameKind.CALL, 3, most, agreed(Compression(), 10_000))
    )
    assert handshake.incoming_frame(sealed_frame, agreed(Compression(), 10_000)).body == most
    with pytest.raises(errors.DecodeError, match="at most"):
        handshake.incoming_frame(sealed_frame, agreed(Compression(), 9_999))
    with pytest.raises(errors.MessageTooLarge, match="10001 bytes"):
        handshake.outgoing_frame(FrameKind.CALL, 3, most + b"x", agreed(Compression(), 10_000))
