"""One frame of each kind, as docs/protocol.md shows them: a small story on one connection."""

from __future__ import annotations

from icestream import errors
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import (
    AckRanges,
    Delivery,
    FrameKind,
    GapNotice,
    Outcome,
    PartResult,
    PublishPart,
    encode_frame,
)
from icestream.rpc.handshake import Hello, Welcome

NOW_US = 1_700_000_000_000_000
BLOCK = encode_block(2, {envelope.PAYLOAD: [b"one", b"three"]}, Numbering(7, 1, 0))
OPENED = {
    "handle": 1, "producer_id": 7, "producer_epoch": 1, "shards": 1, "last_sequences": [None], "max_message_bytes": 0,
}  # fmt: skip

EXAMPLES: dict[str, bytes] = {
    "HELLO": encode_frame(FrameKind.HELLO, 1, handshake.encode_hello(Hello(client="demo", compression=("zstd",)))),
    "WELCOME": encode_frame(
        FrameKind.WELCOME,
        1,
        handshake.encode_welcome(Welcome(1, "node-1", 16_777_216, "zstd", NOW_US, "0123456789abcdef" * 2)),
    ),
    "CALL": encode_frame(
        FrameKind.CALL, 2, document.encode_call("open_producer", {"topic": "/default/orders", "producer": "p1"})
    ),
    "RESULT": encode_frame(FrameKind.RESULT, 2, document.encode(OPENED)),
    "ERROR": encode_frame(
        FrameKind.ERROR, 3, document.encode_error(errors.UnknownTopic("no topic /a/b", hint="create it"))
    ),
    "PING": encode_frame(FrameKind.PING, 4, b"abc"),
    "PONG": encode_frame(FrameKind.PONG, 4, b"abc"),
    "PUBLISH": encode_frame(FrameKind.PUBLISH, 5, frame.encode_parts([PublishPart(1, 0, BLOCK)])),
    "PUBLISHED": encode_frame(FrameKind.PUBLISHED, 5, frame.encode_part_results([PartResult(Outcome.STORED, 41)])),
    "CREDIT": encode_frame(FrameKind.CREDIT, 6, frame.encode_credit(2, 1000)),
    "DELIVER": encode_frame(FrameKind.DELIVER, 0, frame.encode_delivery(Delivery(2, 0, 0, 0, 41, NOW_US, 0, 2, BLOCK))),
    "PICK": encode_frame(
        FrameKind.PICK, 0, frame.encode_pick(Delivery(2, 0, 0, 0, 41, NOW_US, 0, 2, BLOCK, [(41, 42), (50, 51)]))
    ),
    "ACK": encode_frame(FrameKind.ACK, 7, frame.encode_ranges(AckRanges(2, 0, 0, 0, [(41, 42)]))),
    "NACK": encode_frame(FrameKind.NACK, 8, frame.encode_ranges(AckRanges(2, 0, 0, 250, [(42, 43)]))),
    "GAP": encode_frame(FrameKind.GAP, 0, frame.encode_gap(GapNotice(2, 0, 0, 1, 43, 100, "unclean stop"))),
    "EVENT": encode_frame(FrameKind.EVENT, 2, document.encode({"event": "active"})),
}
