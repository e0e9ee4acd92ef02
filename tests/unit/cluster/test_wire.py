"""The frames between nodes round-trip, and everything else is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.cluster import wire
from icestream.cluster.calls import Calls
from icestream.cluster.cluster_node import ClusterNode
from icestream.cluster.wire import PeerFrame, PeerHello, PeerWelcome
from icestream.metadata import eraftpb
from icestream.metadata.eraftpb import SnapshotParts
from icestream.metadata.log_format import NO_CLUSTER
from icestream.rpc import document
from icestream.rpc.frame import HEAD

ROOT = Path(__file__).resolve().parents[3]
ids = st.integers(1, 2**64 - 1)
clusters = st.one_of(st.just(NO_CLUSTER), st.binary(min_size=16, max_size=16))
addresses = st.sampled_from(["", "127.0.0.1:7650", "[::1]:7650", "node-1.example:1"])


@given(clusters, ids, addresses, st.one_of(st.just(0), ids))
def test_a_hello_round_trips(cluster: bytes, node: int, address: str, to: int) -> None:
    hello = PeerHello(cluster, node, address, to)
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


@given(clusters, ids, st.one_of(st.just(0), ids), addresses)
def test_a_welcome_round_trips(cluster: bytes, node: int, founder: int, address: str) -> None:
    welcome = PeerWelcome(cluster, node, founder, address)
    assert wire.decode_welcome(wire.encode_welcome(welcome)) == welcome


def test_a_hello_that_was_cut_or_changed_is_refused_or_another_hello() -> None:
    good = wire.encode_hello(PeerHello(bytes([3] * 16), 7, "a:1", 9))
    for end in range(len(good)):
        with pytest.raises(errors.IcestreamError):
            wire.decode_hello(good[:end])
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit >> 3] ^= 1 << (bit & 7)
        with contextlib.suppress(errors.IcestreamError):
            assert isinstance(wire.decode_hello(bytes(data)), PeerHello)


@given(st.binary(max_size=200))
def test_garbage_raises_an_icestream_error(data: bytes) -> None:
    for decode in (wire.decode_hello, wire.decode_welcome, eraftpb.snapshot_in):
        with pytest.raises(errors.IcestreamError):
            decode(data)


def test_another_version_is_reported() -> None:
    body = wire.MAGIC + document.encode({"version": 2, "node": "1"})
    with pytest.raises(errors.UnknownVersion, match="version 2"):
        wire.decode_hello(body)


@pytest.mark.parametrize("text", ["", "0", "x", "1" * 17, "-1", "0x1", " 1"])
def test_an_invalid_node_id_is_refused(text: str) -> None:
    with pytest.raises(errors.DecodeError):
        wire.parse_id(text)


def test_an_address_of_every_interface_is_reached_on_this_machine() -> None:
    assert wire.dialled("0.0.0.0:7650") == ("127.0.0.1", 7650)
    assert wire.dialled("[::]:7650") == ("::1", 7650)
    assert wire.dialled("[::1]:7650") == ("::1", 7650)
    assert wire.dialled("node-1.example:7651") == ("node-1.example", 7651)
    for text in ("", "7650", ":7650", "host:", "host:0", "host:65536", "host:x"):
        with pytest.raises(errors.DecodeError):
            wire.split_address(text)


@pytest.mark.parametrize(
    ("type_of_message", "kind"),
    [
        (3, PeerFrame.APPEND_ENTRIES),
        (9, PeerFrame.APPEND_ENTRIES),
        (5, PeerFrame.VOTE),
        (18, PeerFrame.VOTE),
        (14, PeerFrame.VOTE),
    ],
)
def test_messages_are_sent_under_the_names_of_their_calls(type_of_message: int, kind: PeerFrame) -> None:
    frame = wire.encode_message(bytes([8, type_of_message, 16, 1]))
    assert HEAD.unpack_from(frame)[1] == kind


def test_the_snapshot_of_a_message_is_extracted() -> None:
    parts = SnapshotParts(7, 3, b"\x0a\x01\x01", b"snapshot-x 1")
    encoded = eraftpb.encode_snapshot(parts)
    message = bytes([8, 7, 16, 2]) + bytes([9 << 3 | 2, len(encoded)]) + encoded
    assert eraftpb.snapshot_in(message) == parts
    with pytest.raises(errors.DecodeError, match="without a snapshot"):
        eraftpb.snapshot_in(bytes([8, 7, 16, 2]))


def test_the_protocol_document_names_every_call_between_nodes() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text().split("## Between nodes")[1]
    methods = Calls(cast(ClusterNode, None)).table
    assert [name for name in (*methods, "AppendEntries", "Vote", "InstallSnapshot") if name not in page] == []
