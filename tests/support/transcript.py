"""Transcripts of dispatchers: text files of commands and what they lead to, to be read like a conversation.

    # a comment
    join a credit=3
    ----
    deliver a 0-2

A command stands on a line of its own; below `----` is everything that the dispatcher answers, up to an empty line.
`replay` gives the text back with the answers that the dispatcher gives today. Files are written anew, to be looked at
as a diff, with REWRITE_TRANSCRIPTS=1.

    open TYPE [best-effort] [position=0 acked=3-4 attempts=5x2 unacked_max=9 look_ahead=9 rate=9] [policy]
    restart                             a new dispatcher from the cursor of the old one; the consumers are gone
    join a credit=3 [keys=a*,b?]        leave a               credit a 3
    publish 3 [keys=x,y,x]              skip 3-4              wait 100 (milliseconds)
    ack 0-2,5 [generation=0]            ack-through 5         nack 3 [delay=50 from=a]
    settled 3                           not-settled 3         seek 0
    policy [policy]                     rate 9                state

    policy: redeliveries=5 ack_timeout=30000 delay=1000 max_delay=60000 backoff=exponential poison=block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from icestream import errors
from icestream.broker.dispatch.best_effort import BestEffortDispatcher, KeySharedBestEffortDispatcher
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.hash_ring import KeyFilter
from icestream.broker.dispatch.instruction import DeadLetter, Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, RedeliveryBackoff, SubscriptionType

RULE = "----"
Options = dict[str, str]


def replay(text: str) -> str:
    """The same commands and comments, with the answers of today."""
    stage, out = TranscriptPlayer(), []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.split(f"\n{RULE}")[0].splitlines()
        out.append("\n".join(lines))
        commands = [line for line in lines if not line.startswith("#")]
        if commands:
            answers = [answer for command in commands for answer in stage.play(command)]
            out[-1] = "\n".join([out[-1], RULE, *answers])
    return "\n\n".join(out) + "\n"


class TranscriptPlayer:
    """One dispatcher, its consumers and its log."""

    def __init__(self) -> None:
        self.now = 0
        self.keys: list[bytes] = []
        self.credits: dict[str, Credit] = {}
        self.pause: Pause | None = None
        self.opening: tuple[str, Options] = ("", {})

    def play(self, command: str) -> list[str]:
        name, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        action: Callable[[list[str], Options], list[str]] = getattr(self, f"_{name.replace('-', '_')}")
        try:
            answers = action(plain, options)
        except errors.InvalidInput as error:
            answers = [f"refused: {error.message}"]
        return [*answers, *self._pause_changed()]

    def _pause_changed(self) -> list[str]:
        before, self.pause = self.pause, self.dispatcher.pause
        if self.pause is before:
            return []
        return [f"pause: {self.pause.value}" if self.pause else "pause is over"]

    # --- life ---

    def _open(self, words: list[str], options: Options) -> list[str]:
        self.now, self.keys, self.credits, self.pause = 0, [], {}, None
        self.opening = (" ".join(words), options)
        acked = AckedOffsets(int(options.get("position", 0)), ranges(options.get("acked", "")))
        attempts = [word.split("x") for word in options.get("attempts", "").split(",") if word]
        counted = [(int(offset), int(offset) + 1, int(count)) for offset, count in attempts]
        self.dispatcher = self._build(acked, counted, 0)
        self.policy = self.dispatcher.policy
        return []

    def _build(self, acked: AckedOffsets, attempts: list[tuple[int, int, int]], generation: int) -> Dispatcher:
        words, options = self.opening
        kind, is_best_effort = SubscriptionType(words.split()[0]), "best-effort" in words
        rate = TokenBucket(int(options.get("rate", 0)))
        if kind is SubscriptionType.KEY_SHARED:
            look_ahead = int(options.get("look_ahead", 100))
            if is_best_effort:
                return KeySharedBestEffortDispatcher(acked, look_ahead, rate, generation)
            unacked_max = int(options.get("unacked_max", 100))
            return KeySharedDispatcher(policy(options), acked, attempts, unacked_max, look_ahead, rate, generation)
        if is_best_effort:
            return BestEffortDispatcher(kind, acked, rate, generation)
        unacked_max = int(options.get("unacked_max", 100))
        return Dispatcher(kind, policy(options), acked, attempts, unacked_max, rate, generation)

    def _restart(self, words: list[str], options: Options) -> list[str]:
        old, self.credits = self.dispatcher, {}
        self.dispatcher = self._build(
            AckedOffsets(old.acked.position, old.acked.ranges), old.attempts, old.generation + 1
        )
        return self._tell(self.dispatcher.readable(old.end, self.now))

    # --- consumers ---

    def _join(self, words: list[str], options: Options) -> list[str]:
        credit = self.credits[words[0]] = Credit(ord(words[0]), int(options["credit"]))
        patterns = options["keys"].split(",") if "keys" in options else []
        if isinstance(self.dispatcher, KeySharedDispatcher):
            return self._tell(self.dispatcher.join_with(credit, KeyFilter(patterns), self.now))
        return self._tell(self.dispatcher.join(credit, self.now))

    def _leave(self, words: list[str], options: Options) -> list[str]:
        del self.credits[words[0]]
        return self._tell(self.dispatcher.leave(ord(words[0]), self.now))

    def _credit(self, words: list[str], options: Options) -> list[str]:
        return self._tell(self.dispatcher.give_credit(ord(words[0]), int(words[1]), self.now))

    def _ack(self, words: list[str], options: Options) -> list[str]:
        return self._tell(self.dispatcher.ack(ranges(words[0]), self._generation(options), self.now))

    def _ack_through(self, words: list[str], options: Options) -> list[str]:
        return self._tell(self.dispatcher.ack_through(int(words[0]), self._generation(options), self.now))

    def _nack(self, words: list[str], options: Options) -> list[str]:
        delay_ms, consumer = int(options.get("delay", 0)), ord(options["from"]) if "from" in options else None
        instructions = self.dispatcher.nack(ranges(words[0]), self._generation(options), self.now, delay_ms, consumer)
        return self._tell(instructions)

    def _generation(self, options: Options) -> int:
        return int(options.get("generation", self.dispatcher.generation))

    # --- the log, the clock, the dead letters, changes ---

    def _publish(self, words: list[str], options: Options) -> list[str]:
        keys = options.get("keys", "none").split(",")
        self.keys += [keys[number % len(keys)].encode() for number in range(int(words[0]))]
        return self._tell(self.dispatcher.readable(len(self.keys), self.now))

    def _skip(self, words: list[str], options: Options) -> list[str]:
        ((start, end),) = ranges(words[0])
        return self._tell(self.dispatcher.skip(start, end, self.now))

    def _wait(self, words: list[str], options: Options) -> list[str]:
        self.now += int(words[0])
        return self._tell(self.dispatcher.tick(self.now))

    def _settled(self, words: list[str], options: Options) -> list[str]:
        ((start, end),) = ranges(words[0])
        return self._tell(self.dispatcher.settled(start, end, self.now))

    def _not_settled(self, words: list[str], options: Options) -> list[str]:
        ((start, end),) = ranges(words[0])
        return self._tell(self.dispatcher.not_settled(start, end, self.now))

    def _seek(self, words: list[str], options: Options) -> list[str]:
        return self._tell(self.dispatcher.seek(int(words[0]), self.now))

    def _policy(self, words: list[str], options: Options) -> list[str]:
        self.opening = (self.opening[0], {**self.opening[1], **options})
        return self._tell(self.dispatcher.set_policy(policy(self.opening[1]), self.now))

    def _rate(self, words: list[str], options: Options) -> list[str]:
        return self._tell(self.dispatcher.set_rate(int(words[0]), self.now))

    # --- answers ---

    def _tell(self, instructions: Iterable[Instruction]) -> list[str]:
        lines = [self._line(instruction) for instruction in instructions]
        while isinstance(self.dispatcher, KeySharedDispatcher):
            start, end = self.dispatcher.needed_keys
            if start >= end:
                break
            lines += [self._line(key) for key in self.dispatcher.add_keys(start, self.keys[start:end], self.now)]
        return lines

    def _line(self, instruction: Instruction) -> str:
        where = shown([(instruction.start, instruction.end)])
        match instruction:
            case Deliver(consumer, start, _, attempt):
                key = f" {self.keys[start].decode()}" if isinstance(self.dispatcher, KeySharedDispatcher) else ""
                return f"deliver {chr(consumer)} {where}{key}" + (f" attempt {attempt}" if attempt else "")
            case DeadLetter(_, _, attempt, reason):
                return f"dead letter {where} after {attempt} failures: {reason}"
            case Dropped(_, _, attempt, reason):
                return f"drop {where} after {attempt} failures: {reason}"

    def _state(self, words: list[str], options: Options) -> list[str]:
        dispatcher = self.dispatcher
        acked = f" and {shown(dispatcher.acked.ranges)}" if dispatcher.acked.ranges else ""
        lines = [
            f"at {self.now} ms: acked below {dispatcher.acked.position}{acked}, "
            f"next {dispatcher.next} of {dispatcher.end}"
        ]
        lines += [
            f"  {chr(run.value.consumer)} has {span(run)} until {run.value.due_ms}" for run in dispatcher.in_flight
        ]
        lines += [f"  {span(run)} waits until {run.value.due_ms}" for run in dispatcher.delayed]
        lines += [f"  {span(run)} is ready" for run in dispatcher.ready]
        lines += [f"  {span(run)} becomes a dead letter" for run in dispatcher.settling]
        lines += [f"  {span(run)} is blocked" for run in dispatcher.blocked]
        lines += [f"  {shown([(start, end)])} failed {count} times" for start, end, count in dispatcher.attempts]
        return lines + ([f"  wakes at {dispatcher.wake_ms}"] if dispatcher.wake_ms is not None else [])


def policy(options: Options) -> FailurePolicy:
    return FailurePolicy(
        max_redelivery_count=int(options.get("redeliveries", 5)),
        ack_timeout_ms=int(options.get("ack_timeout", 30_000)),
        base_delay_ms=int(options.get("delay", 1_000)),
        max_delay_ms=int(options.get("max_delay", 60_000)),
        backoff=RedeliveryBackoff(options.get("backoff", "exponential")),
        poison=PoisonPolicy(options.get("poison", "block")),
        dead_letter_topic="/default/dead",
    )


def ranges(text: str) -> list[tuple[int, int]]:
    """`3-5,7`: both ends are meant."""
    words = [word.partition("-") for word in text.split(",") if word]
    return [(int(first), int(last or first) + 1) for first, _, last in words]


def shown(pairs: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{start}-{end - 1}" if end - start > 1 else f"{start}" for start, end in pairs)


def span(run: object) -> str:
    return shown([(run.start, run.end)])  # type: ignore[attr-defined]
