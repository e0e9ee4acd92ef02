"""The circuit breaker: a transcript to read, and rules that hold for every life of one."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from icestream.catalogs.circuit_breaker import CallPermit, CallRefused, CircuitBreaker, CircuitState

FILE = Path(__file__).with_name("breaker.txt")
MS = 1_000_000
FAILURES, SHORT_NS, LONG_NS = 3, 1000 * MS, 4000 * MS


class BreakerTranscript:
    """Plays one transcript and records each change of state and each refusal."""

    def __init__(self) -> None:
        self.breaker = CircuitBreaker(FAILURES, SHORT_NS, LONG_NS)
        self.now_ns = 0
        self.permits: dict[str, CallPermit] = {}
        self.lines: list[str] = []

    def play(self, line: str) -> None:
        word, *rest = line.split()
        before = self.breaker.state
        match word, rest:
            case "wait", [milliseconds]:
                self.now_ns += int(milliseconds) * MS
            case "ask", []:
                self.ask("nobody")
            case "ask", ["as", name]:
                self.ask(name)
            case _:
                self.end(word, rest[0] if rest else self.ask(""))
        if self.breaker.state is not before:
            self.lines.append(self.breaker.state.value)

    def ask(self, name: str) -> str:
        answer = self.breaker.request(self.now_ns)
        if isinstance(answer, CallRefused):
            self.lines.append(f"refused, {answer.wait_ns // MS} ms")
        else:
            self.permits[name] = answer
        return name

    def end(self, word: str, name: str) -> None:
        permit = self.permits[name]
        if word == "succeed":
            self.breaker.succeeded(permit)
        elif word == "fail":
            self.breaker.failed(permit, self.now_ns)
        else:
            self.breaker.abandoned(permit, self.now_ns)


def replay(text: str) -> str:
    player = BreakerTranscript()
    written = []
    for part in text.strip().split("\n\n"):
        commands = part.split("----")[0].strip()
        player.lines = []
        for line in commands.splitlines():
            if not line.startswith("#"):
                player.play(line)
        written.append("\n".join([commands, "----", *(player.lines or [player.breaker.state.value])]))
    return "\n\n".join(written) + "\n"


def test_it_still_answers_like_this() -> None:
    text = FILE.read_text(encoding="utf-8")
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        FILE.write_text(replay(text), encoding="utf-8")
    assert replay(text) == FILE.read_text(encoding="utf-8")


def test_a_wrong_line_of_a_transcript_is_detected() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert replay(text.replace("refused, 2000 ms", "refused, 2001 ms")) == text


class BreakerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(FAILURES, SHORT_NS, LONG_NS)
        self.now_ns = 0
        self.probe: CallPermit | None = None
        self.running: list[tuple[CallPermit, CircuitState]] = []  # with the state in which each was let through
        self.probe: CallPermit | None = None

    @rule(milliseconds=st.integers(0, 5000))
    def wait(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS

    @rule()
    def ask(self) -> None:
        was = self.breaker.state
        answer = self.breaker.request(self.now_ns)
        if isinstance(answer, CallRefused):
            assert was is not CircuitState.CLOSED
            assert 0 < answer.wait_ns <= LONG_NS
            return
        assert was is not CircuitState.HALF_OPEN, "two probes at once"
        if was is CircuitState.OPEN:
            assert self.breaker.state is CircuitState.HALF_OPEN
            self.probe = answer
        self.running.append((answer, self.breaker.state))

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 99), outcome=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def end(self, number: int, outcome: str) -> None:
        permit, _ = self.running.pop(number % len(self.running))
        before = self.breaker.state
        if outcome == "succeeded":
            self.breaker.succeeded(permit)
            assert self.breaker.state is not CircuitState.OPEN or before is CircuitState.OPEN, "a success opened it"
        elif outcome == "failed":
            self.breaker.failed(permit, self.now_ns)
            assert self.breaker.state is not CircuitState.CLOSED or before is CircuitState.CLOSED, "a failure closed it"
        else:
            self.breaker.abandoned(permit, self.now_ns)
            assert self.breaker.state is not CircuitState.CLOSED or before is CircuitState.CLOSED
        if before is CircuitState.OPEN or (before is CircuitState.HALF_OPEN and permit != self.probe):
            assert self.breaker.state is before, "what was let through before decides nothing"
        if self.breaker.state is CircuitState.OPEN and before is not CircuitState.OPEN:
            refusal = CircuitBreaker.request(self.breaker, self.now_ns) if outcome == "failed" else None
            assert refusal is None or isinstance(refusal, CallRefused), "it opened without a pause"

    @invariant()
    def whoever_waits_long_enough_gets_in(self) -> None:
        """From every state there is a way back: no permit is needed that no call holds."""
        probes = [permit for permit, state in self.running if state is CircuitState.HALF_OPEN]
        if self.breaker.state is CircuitState.HALF_OPEN:
            assert probes, "half-open without a probe in flight"


TestBreaker = BreakerMachine.TestCase
