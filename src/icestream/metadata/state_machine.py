"""The state machine of the metadata store: the state as a function of the applied commands. Pure.

Every node applies the same envelopes in the same order and gets the same state, answers, events and snapshot bytes.

    map        key -> value, revision of its creation and of its last change, how often it was changed, deadline
    revision   one number, +1 for each command that changes something; each event carries the revision that made it
    time_ms    the highest stamp seen: deadlines are measured by it, never by a clock
    leases     keys that live while they are renewed; the time until which is not part of the state (leases.py)
    clients    the last sequence of each client and its answer: a repeat gets that answer and changes nothing

Every command gets an answer: applied as a whole, or rejected as a whole. bounds.py has the checks that do not depend on
the state; those that do are here: the budget (hazard 28) and the number of keys that one command deletes. At the limits
a command that makes nothing larger is still accepted: a full store must be able to shrink.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from icestream import limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import key_bytes, refusal, refused_identity, shown
from icestream.metadata.entry import Entry, Event
from icestream.metadata.ordered_map import OrderedMap, ordered_map
from icestream.metadata.plan import Plan


class Applied(NamedTuple):
    """The answer of a command and the changes that it made."""

    answer: cmd.Answer
    events: list[Event]  # all of one revision, one for each key


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """The last command of a client, to recognise a retry."""

    sequence: int
    time_ms: int
    answer: cmd.Answer


class Budget(NamedTuple):
    """Bounds of the state; equal on every node, because states would diverge otherwise."""

    keys: int = limits.METADATA_KEYS_MAX
    size_bytes: int = limits.METADATA_BYTES_MAX


class StateMachine:
    """The state, changed only by `apply`."""

    def __init__(self, budget: Budget = Budget()) -> None:  # noqa: B008 (a constant)
        self.entries: OrderedMap[str, Entry] = ordered_map()
        self.revision = 0
        self.time_ms = 0
        self.size_bytes = 0  # keys and values
        self.clients: OrderedDict[bytes, Remembered] = OrderedDict()  # least recently used first
        self._budget = budget
        self._deadlines: OrderedMap[tuple[int, str], int] = ordered_map()  # -> mod_revision; not of leases
        self.leases: dict[str, Entry] = {}
        self.lease_revision = 0  # when one was put last
        # Called with the old entry before a key changes, while a snapshot is being taken (snapshot.py).
        self.keep_preimage: Callable[[str, Entry | None], None] | None = None

    # --- commands ---

    def apply(self, envelope: cmd.Envelope) -> Applied:
        """Applies one envelope and returns its answer and events."""
        client, sequence = envelope.client, envelope.sequence
        if envelope.time_ms > self.time_ms:
            # Never back: a new leader may have a clock behind the stamps of its predecessor (hazard 32).
            self.time_ms = min(envelope.time_ms, limits.METADATA_TIME_MS_MAX)
        if not client:
            return self._execute(envelope.command)
        # A repeat changes nothing, not even the time of the remembered answer.
        answer = refused_identity(client, sequence) or self._repeated(client, sequence)
        if answer is not None:
            return Applied(answer, [])
        applied = self._execute(envelope.command)
        self._remember(client, Remembered(sequence, self.time_ms, applied.answer))
        return applied

    def _repeated(self, client: bytes, sequence: int) -> cmd.Answer | None:
        """The answer to a command that was applied before; None for a new one."""
        last = self.clients.get(client)
        if last is None or sequence > last.sequence:
            return None
        if sequence == last.sequence:
            return last.answer
        return cmd.Rejected(
            "out_of_order", f"sequence number {sequence} is lower than {last.sequence}, which was applied already"
        )

    def _remember(self, client: bytes, last: Remembered) -> None:
        """Remembers the last command of a client, to answer a repeat; forgets clients by count and age.

        The age is measured by stamps, so that every node forgets the same ones.
        """
        clients, oldest_ms = self.clients, self.time_ms - limits.METADATA_CLIENT_AGE_MS
        clients[client] = last
        clients.move_to_end(client)
        while len(clients) > limits.METADATA_CLIENTS_MAX or clients[next(iter(clients))].time_ms < oldest_ms:
            clients.popitem(last=False)

    def _execute(self, command: cmd.Command) -> Applied:
        # Checked again although the submitter has done so: a node of another version may have let it through.
        if (rejected := refusal(command)) is not None:
            return Applied(rejected, [])
        if type(command) is cmd.Put:
            return self._change((command,))  # the most frequent command costs no match
        match command:
            case cmd.CompareAndSwap(compare, value, ttl_ms):
                # A comparison that fails is an answer, not an error: the command is applied and changes nothing.
                put = cmd.PutWithTtl(compare.key, value, ttl_ms) if ttl_ms else cmd.Put(compare.key, value)
                is_met = self._holds(compare)
                return self._change([put] if is_met else [], held=is_met)
            case cmd.Txn(comparisons, then, otherwise):
                is_met = all(self._holds(comparison) for comparison in comparisons)
                return self._change(then if is_met else otherwise, held=is_met, whole=True)
            case cmd.AllocateMonotonicId(counter, count):
                return self._allocate(cmd.COUNTERS + counter, count)
            case cmd.ExpireTtlKeys(keys):
                return self._change([cmd.Delete(key) for key, revision in keys if self._is_due(key, revision)])
            case cmd.TakeSnapshot():
                return self._change([])
            case _:
                return self._change([command])

    def _holds(self, compare: cmd.Compare) -> bool:
        """Whether a comparison holds."""
        entry = self.entries.get(compare.key)
        match compare:
            case cmd.Absent():
                return entry is None
            case cmd.AtRevision(_, revision):
                return entry is not None and entry.mod_revision == revision
            case cmd.HasValue(_, value):
                return entry is not None and entry.value == value

    def _is_due(self, key: str, revision: int) -> bool:
        """Whether a key may expire: unchanged since `revision`, and past its deadline."""
        entry = self.entries.get(key)
        return entry is not None and entry.mod_revision == revision and 0 < entry.deadline_ms <= self.time_ms

    def _allocate(self, key: str, count: int) -> Applied:
        entry = self.entries.get(key)
        last = _counter(entry.value) if entry else 0
        if last is None or last + count > limits.METADATA_COUNTER_MAX:
            return Applied(cmd.Rejected("invalid", f"{shown(key)} holds no number that can be counted up"), [])
        applied = self._change([cmd.Put(key, b"%d" % (last + count))])
        if isinstance(applied.answer, cmd.Rejected):
            return applied
        return Applied(cmd.Done(self.revision, first_id=last + 1), applied.events)

    def _change(self, operations: Sequence[cmd.Operation], *, held: bool = True, whole: bool = False) -> Applied:
        """Applies all operations or none. A command that changes nothing takes no revision."""
        plan = Plan(self.entries, self.revision + 1, self.time_ms)
        for operation in operations:
            plan.add(operation)
        # A deletion by prefix goes on in the next command; a transaction cannot, because its other half would be
        # visible before.
        if whole and plan.more:
            return Applied(
                cmd.Rejected("invalid", f"a transaction deletes at most {limits.METADATA_DELETE_KEYS_MAX} keys"), []
            )
        if (rejected := self._over_budget(plan)) is not None:
            return Applied(rejected, [])
        if plan.changes:
            self._commit(plan)
        revision = self.revision
        events = [Event(key, entry.value if entry else None, revision) for key, entry in plan.changes.items()]
        return Applied(cmd.Done(self.revision, held, plan.more), events)

    def _over_budget(self, plan: Plan) -> cmd.Rejected | None:
        """The rejection of a plan that grows beyond the budget; None if it fits.

        Answers are remembered for repeats and so are a part of the state and of its SHA-256: another wording of a
        rejection in this class would make nodes of two versions differ.
        """
        budget = self._budget
        # Only growth is refused: deletions must work when the store is full, or it could never be emptied.
        if plan.grown_keys > 0 and (keys := len(self.entries) + plan.grown_keys) > budget.keys:
            return cmd.Rejected("metadata_full", f"{keys} keys, at most {budget.keys} fit")
        if plan.grown_bytes > 0 and (size_bytes := self.size_bytes + plan.grown_bytes) > budget.size_bytes:
            return cmd.Rejected("metadata_full", f"{size_bytes} bytes, at most {budget.size_bytes} fit")
        if plan.grown_leases > 0 and (leases := len(self.leases) + plan.grown_leases) > limits.METADATA_LEASES_MAX:
            return cmd.Rejected("metadata_full", f"{leases} leases, at most {limits.METADATA_LEASES_MAX} fit")
        return None

    def _commit(self, plan: Plan) -> None:
        """Makes the changes of a plan, as one revision."""
        self.revision += 1
        self.size_bytes += plan.grown_bytes
        entries = self.entries
        for key, entry in plan.changes.items():
            old = entries.get(key)
            # Before the change: a snapshot in progress needs the entry as it was at its index.
            if self.keep_preimage is not None:
                self.keep_preimage(key, old)
            if old is not None and old.deadline_ms:
                self._forget_deadline(key, old)
            if entry is None:
                del entries[key]
                continue
            entries[key] = entry
            if entry.deadline_ms:
                self._note_deadline(key, entry)

    def _forget_deadline(self, key: str, entry: Entry) -> None:
        if entry.lease_ms:
            del self.leases[key]
        else:
            del self._deadlines[entry.deadline_ms, key]

    def _note_deadline(self, key: str, entry: Entry) -> None:
        if entry.lease_ms:
            self.leases[key] = entry
            self.lease_revision = entry.mod_revision
        else:
            self._deadlines[entry.deadline_ms, key] = entry.mod_revision

    # --- reads ---

    def get(self, key: str) -> Entry | None:
        """The entry of a key; None if it does not exist."""
        return self.entries.get(key)

    def keys(self, prefix: str, limit: int) -> Iterator[str]:
        """Iterates keys with `prefix`, in order."""
        for key in islice(self.entries.irange(prefix), limit):
            if not key.startswith(prefix):
                return
            yield key

    def page(self, prefix: str, after: str, limit: int) -> list[tuple[str, Entry]]:
        """Entries with `prefix` and keys greater than `after`, in order."""
        start = max(prefix, after)
        page: list[tuple[str, Entry]] = []
        for key in islice(self.entries.irange(start, inclusive=(start != after, True)), max(limit, 0)):
            if not key.startswith(prefix):
                break
            page.append((key, self.entries[key]))
        return page

    def expired(self, now_ms: int, limit: int) -> list[tuple[str, int]]:
        """Keys whose deadline has passed, with their revisions: the leader proposes to expire them."""
        expired: list[tuple[str, int]] = []
        for (deadline_ms, key), revision in islice(self._deadlines.items(), limit):
            if deadline_ms > now_ms:
                break
            expired.append((key, revision))
        return expired

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a key without a lease; None if there is none."""
        return self._deadlines.peekitem(0)[0][0] if self._deadlines else None

    # --- from a snapshot ---

    def restore(self, revision: int, time_ms: int, entries: Iterable[tuple[str, Entry]]) -> None:
        """Loads an empty machine from entries in the order of their keys."""
        self.revision, self.time_ms = revision, time_ms
        self.entries = ordered_map(entries)
        self.size_bytes = sum(key_bytes(key) + len(entry.value) for key, entry in self.entries.items())
        self._deadlines = ordered_map(
            ((entry.deadline_ms, key), entry.mod_revision)
            for key, entry in self.entries.items()
            if entry.deadline_ms and not entry.lease_ms
        )
        self.leases = {key: entry for key, entry in self.entries.items() if entry.lease_ms}
        self.lease_revision = revision


def _counter(value: bytes) -> int | None:
    """The number in a counter's value, None if it is not a number."""
    return int(value) if value.isdigit() and len(value) <= len(str(limits.METADATA_COUNTER_MAX)) else None
