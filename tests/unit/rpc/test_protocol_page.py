"""docs/protocol.md against the code: every example, every number and every code."""

from __future__ import annotations

import inspect
import re

import pytest

from icestream import errors, limits
from icestream.model.block import check_block
from icestream.model.envelope import COLUMN_BY_ID
from icestream.model.shard import GapState
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import FrameKind, Outcome
from icestream.rpc.stream import FrameStream
from tests.support.protocol_examples import BLOCK, EXAMPLES
from tests.tidy.tree import read, report

PAGE = read("docs/protocol.md")
CODE_BLOCKS = re.findall(r"^```text\n(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcestreamError)]


def dumped(text: str) -> bytes:
    """The bytes of a hex dump; what stands behind a semicolon is for people."""
    return bytes.fromhex(" ".join(line.partition(";")[0] for line in text.splitlines()))


def tables(head: str) -> list[list[list[str]]]:
    """The cells of every table whose head begins so."""
    bodies = re.findall(rf"^{re.escape(head)}.*\n\|[-|]+\n((?:\|.*\n)*)", PAGE, flags=re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()] for body in bodies]


def table(head: str) -> list[list[str]]:
    (only,) = tables(head)
    return only


# --- examples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FrameKind, ids=lambda kind: kind.name)
def test_every_frame_has_an_example_made_by_the_codec(kind: FrameKind) -> None:
    shown = {name: dumped(text) for name, text in CODE_BLOCKS if name in FrameKind.__members__}
    assert kind.name in shown, f"docs/protocol.md shows no {kind.name}"
    assert shown[kind.name] == EXAMPLES[kind.name], EXAMPLES[kind.name].hex(" ")


@pytest.mark.parametrize("kind", FrameKind, ids=lambda kind: kind.name)
def test_every_example_can_be_read(kind: FrameKind) -> None:
    (example,) = FrameStream().feed(EXAMPLES[kind.name])
    assert example.kind == kind
    match kind:
        case FrameKind.HELLO:
            assert handshake.decode_hello(example.body).client == "demo"
        case FrameKind.WELCOME:
            assert handshake.decode_welcome(example.body).node == "node-1"
        case FrameKind.CALL:
            assert document.decode_call(example.body)[0] == "open_producer"
        case FrameKind.RESULT | FrameKind.EVENT:
            assert document.decode(example.body)
        case FrameKind.ERROR:
            assert isinstance(document.decode_error(example.body), errors.UnknownTopic)
        case FrameKind.PUBLISH:
            assert [part.block for part in frame.decode_parts(example.body)] == [BLOCK]
            assert check_block(BLOCK).rows == 2
        case FrameKind.PUBLISHED:
            assert frame.decode_part_results(example.body)[0].base_offset == 41
        case FrameKind.CREDIT:
            assert frame.decode_credit(example.body) == (2, 1000)
        case FrameKind.DELIVER:
            assert frame.decode_delivery(example.body).body == BLOCK
        case FrameKind.PICK:
            assert frame.decode_pick(example.body).ranges == [(41, 42), (50, 51)]
        case FrameKind.ACK:
            assert frame.decode_ack(example.body).ranges == [(41, 42)]
        case FrameKind.NACK:
            assert frame.decode_nack(example.body).extra == 250
        case FrameKind.GAP:
            assert frame.decode_gap(example.body).state == GapState.UNUSED
        case _:
            assert example.body == b"abc"


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_table_of_kinds_is_that_of_the_codec() -> None:
    rows = table("| kind | name | from |")
    assert [(int(row[0]), row[1]) for row in rows] == [(kind.value, kind.name) for kind in FrameKind]
    client = {row[1] for row in rows if row[2] == "client"}
    assert client == {kind.name for kind in frame.FROM_CLIENT | frame.FIRST_FROM_CLIENT}


def test_the_table_of_outcomes_is_that_of_the_codec() -> None:
    rows = table("| outcome | name |")
    assert [(int(row[0]), row[1]) for row in rows] == [(outcome.value, outcome.name) for outcome in Outcome]


def test_the_states_of_a_gap_are_named() -> None:
    assert ", ".join(f"{state.value} {state.name}" for state in GapState) in PAGE


def test_handshake_and_errors_list_every_key() -> None:
    hello, welcome, error = tables("| key | type |")
    assert [row[0].strip("`") for row in hello] == list(handshake.Hello._fields)
    assert [row[0].strip("`") for row in welcome] == list(handshake.Welcome._fields)
    fields = document.decode(document.encode_error(errors.TopicElsewhere("x")))  # the one with the most to say
    assert {row[0].strip("`") for row in error} == fields.keys()
    assert frame.MAGIC.decode() in PAGE
    assert f"This is version {frame.VERSION}." in PAGE


def test_every_code_of_an_error_is_listed() -> None:
    shown = {row[0].strip("`"): row[1] for row in table("| code | retryable |")}
    there = {kind.code: "yes" if kind.retryable else "no" for kind in KINDS}
    missing = [f"| `{code}` | {retryable} | … |" for code, retryable in there.items() if shown.get(code) != retryable]
    assert not missing, report("docs/protocol.md, Errors: these rows are missing or differ:", missing)
    gone = sorted(shown.keys() - there.keys())
    assert not gone, report("docs/protocol.md, Errors: these codes are not in errors.py:", gone)


def test_every_bound_matches_limits() -> None:
    wrong, seen = [], set()
    for row in table("| | |"):
        numbers = [int(number.replace(",", "")) for number in re.findall(r"(?<![\w`])[\d,]*\d", row[1])]
        names = re.findall(r"`([A-Z_]+)`", row[1])
        seen.update(names)
        if numbers != [getattr(limits, name, None) for name in names]:
            wrong.append(f"{row[0]}: {row[1]}")
    assert not wrong, report("docs/protocol.md, Bounds: limits.py says something else:", wrong)
    assert {"FRAME_BYTES_MIN", "FRAME_BYTES_MAX", "PUBLISH_PARTS_MAX", "ACK_RANGES_MAX"} <= seen


def test_numbers_in_the_text_match_the_table() -> None:
    limit_texts = {f"{value:,}" for value in vars(limits).values() if isinstance(value, int)}
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    strays = sorted(set(re.findall(r"\b\d{1,3}(?:,\d{3})+\b", prose)) - limit_texts)
    assert not strays, report("docs/protocol.md: numbers that no bound in limits.py has:", strays)


def test_every_method_is_listed() -> None:
    calls = pytest.importorskip("icestream.frontends.native.public_calls", reason="there is no front end yet")
    shown = {row[0].strip("`") for row in table("| method | arguments |")}
    missing = sorted({*calls.CALLS, calls.PORTS} - shown)
    assert not missing, report("docs/protocol.md, Calls: these methods are not listed:", missing)
    assert shown <= {*calls.CALLS, calls.PORTS}, "docs/protocol.md lists methods that are not there"


def test_the_columns_that_a_client_may_set_are_named() -> None:
    door = pytest.importorskip("icestream.broker.block_validation", reason="there is no door yet")
    sentence = re.search(r"may set the columns\s(.*?)\. ", PAGE, flags=re.DOTALL)
    assert sentence is not None
    shown = set(re.findall(r"\w+", sentence[1])) - {"and"}
    assert shown == {COLUMN_BY_ID[id_].name for id_ in door.CLIENT_COLUMNS}
