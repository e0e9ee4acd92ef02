"""Protobuf: the language, which file reads what another one wrote, and payloads."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.schema.definition import define
from icestream.schema.kinds import SchemaType
from icestream.schema.protobuf import check_payload, unreadable
from icestream.schema.protobuf_source import parse
from tests.tidy.tree import ROOT

WIRE = (ROOT / "src/icestream/frontends/danube/wire/danube.proto").read_text(encoding="utf-8")


def reads(reader: str, writer: str) -> bool:
    return not unreadable(parse(reader), parse(writer))


def message(*fields: str) -> str:
    return 'syntax = "proto3"; package p; message M { ' + " ".join(fields) + " } enum E { A = 0; }"


def test_the_language() -> None:
    file = parse(
        """
        // a comment
        syntax = "proto3"; /* another
        one */
        package a.b;
        import "google/protobuf/timestamp.proto";
        option java_package = "x;{y}";
        message Outer {
          reserved 4, 6 to 8, 100 to max; reserved "old";
          message Inner { repeated int32 numbers = 1 [packed = true]; }
          enum Kind { option allow_alias = true; NONE = 0; }
          Inner inner = 1; map<string, Inner> named = 2;
          oneof choice { string text = 3; Kind kind = 5; }
          optional google.protobuf.Timestamp at = 0x9;
        }
        service S { rpc Call(Outer) returns (stream Outer) { option x = {a: 1}; } }
        """
    )
    outer = file.messages["a.b.Outer"]
    assert list(file.messages) == ["a.b.Outer", "a.b.Outer.Inner"]
    assert file.enums == {"a.b.Outer.Kind"}
    assert sorted(outer.fields) == [1, 2, 3, 5, 9]
    assert (outer.fields[2].type, outer.fields[2].value_type, outer.fields[2].label) == ("string", "Inner", "repeated")
    assert outer.fields[3].oneof == "choice"
    assert outer.reserved == [(4, 4), (6, 8), (100, 2**29 - 1)]
    assert file.resolve("Inner", "a.b.Outer") == "a.b.Outer.Inner"


@pytest.mark.parametrize(
    "text",
    ["", "message", "message M {", "message M { int32 x = y; }", "message M { int32 a = 1; int32 b = 1; }", "\x00",
     "message M { int32 a = 0; }", "enum E { A = 0; }", "message M { map<string> a = 1; }"],
)  # fmt: skip
def test_invalid_files_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        define(SchemaType.PROTOBUF, text.encode())


@pytest.mark.parametrize(
    ("reader", "writer", "is_fine"),
    [
        ("int32 a = 1; string b = 2;", "int32 a = 1;", True),
        ("int32 a = 1;", "int32 a = 1; string b = 2;", True),
        ("int64 a = 1;", "int32 a = 1;", True),
        ("string a = 1;", "int32 a = 1;", False),
        ("sint32 a = 1;", "int32 a = 1;", False),
        ("bytes a = 1;", "string a = 1;", True),
        ("string a = 1;", "bytes a = 1;", False),
        ("repeated int32 a = 1;", "int32 a = 1;", False),
        ("E a = 1;", "int32 a = 1;", True),
        ("int32 renamed = 1;", "int32 a = 1;", True),
        ("int32 a = 2;", "reserved 2; int32 b = 1;", False),
        ("map<string, int32> a = 1;", "map<string, string> a = 1;", False),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", False),
        ("required int32 a = 1;", "optional int32 a = 1;", False),
        ("required int32 a = 1; required int32 b = 2;", "required int32 a = 1;", False),
    ],
)
def test_fields_are_identified_by_their_numbers(reader: str, writer: str, is_fine: bool) -> None:
    assert reads(message(reader), message(writer)) == is_fine


@pytest.mark.parametrize(
    "around",
    ["N n = 1; message N {{ {} }}", "repeated N n = 1; message N {{ {} }}", "map<string, N> n = 1; message N {{ {} }}",
     "oneof o {{ N n = 1; }} message N {{ {} }}", "N n = 1; message N {{ O o = 1; message O {{ {} }} }}"],
)  # fmt: skip
def test_nested_messages_are_checked_too(around: str) -> None:
    last, wider, other = (message(around.format(f"{kind} x = 1;")) for kind in ("int32", "int64", "string"))
    assert reads(wider, last)
    assert not reads(other, last)


def test_a_removed_message_is_incompatible() -> None:
    assert not reads("message A { int32 x = 1; }", "message A { int32 x = 1; } message B { int32 y = 1; }")


def test_payloads_are_messages_of_the_first_type() -> None:
    text = "message M { string name = 1; N inner = 2; repeated int32 many = 3; message N { fixed64 x = 1; } }"
    schema = define(SchemaType.PROTOBUF, text.encode())
    for good in (b"", b"\x0a\x01a", b"\x12\x09\x09" + bytes(8), b"\x1a\x02\x01\x02", b"\x18\x01\x18\x02", b"\x78\x01"):
        schema.check(good)
    for bad in (b"\x0a\x05a", b"\x0a\x01\xff", b"\x08\x01", b"\x12\x02\x08\x01", b"\xff", b"\x0f", b"\x0b"):
        with pytest.raises(errors.InvalidInput):
            schema.check(bad)


@given(st.builds(pb.SchemaReference, subject=st.text(), pinned_version=st.integers(0, 2**32 - 1)))
def test_encoded_messages_are_valid_payloads(message: pb.SchemaReference) -> None:
    file = parse("message SchemaReference" + WIRE.split("message SchemaReference")[1].split("// ---")[0])
    check_payload(file, message.SerializeToString())
    assert next(iter(file.messages)) == "SchemaReference"


TAGS = [b"\x0a", b"\x12", b"\x1a", b"\x3a", b"\x08", b"\x20", b"\x40", b"\x52"]
VALUES = [b"\x00", b"\x01", b"\x02", b"\x03", b"\x05", b"a", b"\xff", b"\x80", bytes(8)]
WHOLE = [b"\x3a\x04\x0a\x02ab", b"\x12\x02\x08\x01", b"\x52\x01k"]
PIECES = st.sampled_from(TAGS + VALUES + WHOLE)


@given(st.binary(max_size=40) | st.lists(PIECES, max_size=12).map(b"".join))
@example(b"\x62\x00\x00")  # a field with the number 0
@example(b"\x3a\x03\x0a\x01\xff")  # a key of a map that is not UTF-8
@example(b"\x08" + b"\xff" * 9 + b"\x7f")  # a number of more than 64 bits
def test_any_bytes_are_a_payload_or_refused(payload: bytes) -> None:
    """Whatever passes is read by Protobuf itself."""
    file = parse(WIRE)
    file.messages = {"icestream.danube.StreamMessage": file.messages["icestream.danube.StreamMessage"], **file.messages}
    try:
        check_payload(file, payload)
    except errors.InvalidInput:
        return
    assert pb.StreamMessage.FromString(payload) is not None
