"""The planted bugs on the native path: a real directory, the real writer thread, the real order of system calls.

Each story runs in a process of its own. What traffic asks of the disk is recorded and judged afterwards, by healthy
code, in its real order; the other stories are judged by what the next start finds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from icestream.model.sync_mode import SyncMode
from icestream.runtime.simulated_disk import Inode
from tests.planted.expectation import (
    ACKED_AND_GONE,
    ACKED_BEFORE_SYNC,
    BODY_FLIPPED,
    DOES_NOT_OPEN,
    FREED_TOO_EARLY,
    LENGTH_FLIPPED,
    PAST_IS_BACK,
    check_caught,
    named_acks,
)
from tests.planted.order import order_violations
from tests.planted.power_loss import loss_violations, spread
from tests.support.syscall_recorder import UNFINISHED, Call, Event, environment, read_trace

pytest.importorskip("icestream_native", reason="the native extension is not built (make test builds it)")

ROOT = Path(__file__).resolve().parents[2]
PLANTED = Path(sys.prefix) / "planted"
INLINE_ALWAYS_US = 1_000_000


@dataclass
class NativeScenario:
    violations: list[str]
    events: list[Event] = field(default_factory=list)


def tell(
    recorder: Path, root: Path, story: str, *, mode: str = "always", bug: str = "", native_bug: str | None = None,
    inline_sync_below_us: int = 0,
) -> NativeScenario:  # fmt: skip
    """Runs a story. `native_bug` uses the planted build of the extension; the empty one is that build without a bug."""
    place, answer_path = root / "story", root / "answer"
    trace = root / "trace" if story == "traffic" else None
    place.mkdir()
    order = {"story": story, "root": str(place), "answer": str(answer_path), "bug": bug}
    order |= {"mode": mode, "inline_sync_below_us": inline_sync_below_us}
    surroundings = {**os.environ, **environment(recorder, place, trace)}
    if native_bug is not None:
        surroundings["PYTHONPATH"] = os.pathsep.join([str(planted_build()), os.environ.get("PYTHONPATH", "")])
        surroundings["ICESTREAM_PLANTED"] = native_bug
    command = [sys.executable, "-m", "tests.planted.child", json.dumps(order)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=surroundings, start_new_session=True, **pipes) as child:
        try:
            printed, _ = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # the process that it has forked too
            raise
    assert child.returncode == 0, printed.decode()
    answer = json.loads(answer_path.read_text(encoding="utf-8"))
    assert (Path(answer["native"]).parent == PLANTED) == (native_bug is not None), answer["native"]
    return NativeScenario(answer["violations"], read_trace(trace, place / "log", place / "said") if trace else [])


def planted_build() -> Path:
    if not (PLANTED / "icestream_native.abi3.so").is_file():
        if shutil.which("cargo") is None:
            pytest.skip("there is no Rust compiler (cargo): the planted build cannot be made")
        pytest.fail("the planted build is missing: make test, or scripts/build_native.py --planted, makes it")
    return PLANTED


def judge(story: NativeScenario, mode: SyncMode) -> list[str]:
    """The whole verdict on a run of traffic."""
    violations = story.violations + order_violations(story.events, mode)
    return violations or loss_violations(story.events, mode, spread(story.events, 6), seeds=2)


# --- healthy code is green --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(SyncMode))
def test_acks_names_seals_and_reuse_follow_their_syncs(recorder: Path, tmp_path: Path, mode: SyncMode) -> None:
    assert judge(tell(recorder, tmp_path, "traffic", mode=mode), mode) == []


def test_inline_writes_keep_the_same_order(recorder: Path, tmp_path: Path) -> None:
    story = tell(recorder, tmp_path, "traffic", inline_sync_below_us=INLINE_ALWAYS_US)
    assert judge(story, SyncMode.ALWAYS) == []
    loops = {event.thread for event in story.events if event.call is Call.SAY}
    inline = [event for event in story.events if event.call is Call.SYNC and event.thread in loops]
    assert len(inline) >= 20, "the loop wrote almost nothing inline: nothing was proved"


@pytest.mark.parametrize("story", ["flips", "past", "reuse"])
def test_the_scenarios_pass_on_healthy_code(recorder: Path, tmp_path: Path, story: str) -> None:
    assert tell(recorder, tmp_path, story).violations == []


@pytest.mark.parametrize("story", ["traffic", "past"])
def test_the_planted_build_is_healthy_while_no_bug_is_chosen(recorder: Path, tmp_path: Path, story: str) -> None:
    recorded = tell(recorder, tmp_path, story, native_bug="")
    assert judge(recorded, SyncMode.ALWAYS) == [] if story == "traffic" else recorded.violations == []


def test_the_recorder_saw_every_byte(recorder: Path, tmp_path: Path) -> None:
    """The files rebuilt from the recorded calls equal those on the disk."""
    story = tell(recorder, tmp_path, "traffic")
    with_unfinished = rebuilt(story.events)
    without = rebuilt(event for event in story.events if event.end != UNFINISHED or event.call is not Call.WRITE)
    directory = tmp_path / "story" / "log"
    disk = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert disk.keys() == with_unfinished.keys()
    for name, content in disk.items():
        first, second = with_unfinished[name], without[name].ljust(len(with_unfinished[name]), b"\0")
        assert len(content) in (len(first), len(without[name]))
        # The first process ends with work in flight: its last write may be on the disk wholly, in part or not at all.
        wrong = [at for at, byte in enumerate(content) if byte not in (first[at], second[at])]
        assert not wrong, f"{name} differs from its recorded writes at byte {wrong[0]} and {len(wrong) - 1} others"


def rebuilt(events: Iterable[Event]) -> dict[str, bytes]:
    files: dict[str, Inode] = {}
    for event in events:
        match event.call:
            case Call.CREATE:
                files[event.name] = Inode()
            case Call.RENAME:
                files[event.target] = files.pop(event.name)
            case Call.UNLINK:
                del files[event.name]
            case Call.WRITE:
                files[event.name].write(event.position, event.data)
            case Call.TRUNCATE | Call.ALLOCATE if event.call is Call.TRUNCATE or event.position > len(
                files[event.name].cache
            ):
                files[event.name].resize(event.position)
    return {name: bytes(file.cache) for name, file in files.items()}


# --- each planted bug is red ------------------------------------------------------------------------------------------


def check_acks_are_caught(story: NativeScenario) -> None:
    """By the order, and by what a power loss in the moment of such an ack would leave."""
    violations = order_violations(story.events, SyncMode.ALWAYS)
    check_caught(violations, ACKED_BEFORE_SYNC)
    chosen = named_acks(violations, story.events)[:6]
    check_caught(loss_violations(story.events, SyncMode.ALWAYS, chosen, seeds=8), ACKED_AND_GONE)


@pytest.mark.parametrize("bug", ["ack_when_written", "sync_left_out"])
def test_ack_before_sync_in_the_appender_is_caught(recorder: Path, tmp_path: Path, bug: str) -> None:
    check_acks_are_caught(tell(recorder, tmp_path, "traffic", bug=bug))


def test_ack_before_sync_in_the_writer_thread_is_caught(recorder: Path, tmp_path: Path) -> None:
    check_acks_are_caught(tell(recorder, tmp_path, "traffic", native_bug="report_before_sync"))


def test_crc_without_length_is_caught(recorder: Path, tmp_path: Path) -> None:
    story = tell(recorder, tmp_path, "flips", bug="crc_without_length_read", native_bug="crc_without_length")
    check_caught(story.violations, LENGTH_FLIPPED)


def test_recycled_record_accepted_is_caught(recorder: Path, tmp_path: Path) -> None:
    check_caught(tell(recorder, tmp_path, "past", native_bug="recycled_accepted").violations, PAST_IS_BACK)


@pytest.mark.parametrize("bug", ["freed_without_checkpoint", "checkpoint_not_written", "checkpoint_name_not_synced"])
def test_checkpoint_skipped_is_caught_by_the_order(recorder: Path, tmp_path: Path, bug: str) -> None:
    story = tell(recorder, tmp_path, "traffic", bug=bug)
    check_caught(order_violations(story.events, SyncMode.ALWAYS), FREED_TOO_EARLY)


@pytest.mark.parametrize("bug", ["freed_without_checkpoint", "checkpoint_not_written"])
def test_checkpoint_skipped_is_caught_by_the_next_start(recorder: Path, tmp_path: Path, bug: str) -> None:
    check_caught(tell(recorder, tmp_path, "reuse", bug=bug).violations, DOES_NOT_OPEN)


def test_cut_instead_of_report_is_caught(recorder: Path, tmp_path: Path) -> None:
    check_caught(tell(recorder, tmp_path, "flips", bug="cut_instead_of_report").violations, BODY_FLIPPED)
