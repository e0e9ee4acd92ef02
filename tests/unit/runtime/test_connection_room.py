"""The places of a listener: which connection goes, against a model, and how many descriptors a listener may take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream.runtime.connection_room import ConnectionRoom, Standing
from icestream.runtime.open_files import CONNECTIONS_MIN, OWN, connections_within

STEPS = st.lists(
    st.one_of(
        st.just(("open", 0, Standing.SILENT)),
        st.tuples(st.just("move"), st.integers(0, 20), st.sampled_from(Standing)),
        st.tuples(st.just("close"), st.integers(0, 20), st.just(Standing.SILENT)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4), st.integers(0, 2))
def test_the_least_useful_connection_is_closed_and_never_a_busy_one(
    steps: list[tuple[str, int, Standing]], capacity: int, reserve: int
) -> None:
    room: ConnectionRoom[int] = ConnectionRoom("test", capacity, reserve)
    model: list[tuple[Standing, int, int, bool]] = []  # standing, since when, connection, whether in the reserve
    evicted = refused = 0
    for now, (step, index, standing) in enumerate(steps):
        if step == "open":
            idle = sorted(
                (s.value, since, name, kept_name) for s, since, name, kept_name in model if s is not Standing.BUSY
            )
            regular, kept_ones = [row for row in idle if not row[3]], [row for row in idle if row[3]]
            reserved = sum(row[3] for row in model)
            expected, is_admitted, is_reserved = None, True, False
            if len(model) - reserved >= capacity:
                is_reserved = not regular
                if regular:
                    expected = regular[0][2]
                elif reserved >= reserve:
                    expected = kept_ones[0][2] if kept_ones else None
                    is_admitted = is_reserved = bool(kept_ones)
            assert room.admit(now) == (is_admitted, expected, is_reserved)
            model = [row for row in model if row[2] != expected or expected is None]
            evicted += expected is not None
            refused += not is_admitted
            if is_admitted:
                model.append((Standing.SILENT, now, now, is_reserved))
        elif model:
            _, _, name, kept_name = model.pop(index % len(model))
            if step == "move":
                room.move(name, standing)
                model.append((standing, now, name, kept_name))
            else:
                room.leave(name)
        busy = sum(1 for row in model if row[0] is Standing.BUSY)
        assert room.state == ("test", capacity, len(model), busy, evicted, refused)
        assert len(model) <= capacity + reserve
        assert room.state.is_refusing <= room.state.is_crowded


def test_a_closed_connection_is_not_restored() -> None:
    room: ConnectionRoom[str] = ConnectionRoom("test", 2)
    room.admit("a")
    room.leave("a")
    room.leave("a")
    room.move("a", Standing.BUSY)
    assert len(room) == 0


@given(st.integers(-1, 1_000_000), st.integers(100, 10_000))
def test_all_listeners_leave_descriptors_for_the_log(allowed: int, limit: int) -> None:
    bounds = [connections_within(allowed, limit, share) for share in (0.2, 0.2, 0.2, 0.2, 0.05, 0.05)]
    assert all(CONNECTIONS_MIN <= bound <= limit for bound in bounds)
    if allowed >= OWN + 20 * CONNECTIONS_MIN:
        assert sum(bounds) <= allowed - OWN
    if allowed < 0:
        assert bounds == [limit] * 6


STRANGERS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "recognise", "move", "close"]), st.integers(0, 40), st.sampled_from(Standing)
    ),
    max_size=80,
)


@given(STRANGERS, st.integers(1, 12))
def test_hazard_120_strangers_are_closed_for_each_other_only(
    steps: list[tuple[str, int, Standing]], capacity: int
) -> None:
    """A connection without a credential neither closes one that has proved a credential, nor takes its place."""
    room: ConnectionRoom[int] = ConnectionRoom("test", capacity)
    share = max(capacity // 4, 1)
    strangers: set[int] = set()
    known: set[int] = set()
    busy: set[int] = set()
    for now, (step, index, standing) in enumerate(steps):
        everyone = sorted(strangers | known)
        chosen = everyone[index % len(everyone)] if everyone else -1
        if step == "open":
            was_full = len(strangers) >= share
            admission = room.admit(now, is_stranger=True)
            if admission.evicted is not None:
                assert admission.evicted in strangers
                assert admission.evicted not in busy
            assert admission.is_admitted or strangers <= busy
            assert admission.is_admitted or was_full
            strangers.discard(-1 if admission.evicted is None else admission.evicted)
            if admission.is_admitted:
                strangers.add(now)
        elif step == "recognise" and chosen in strangers:
            evicted = room.recognise(chosen)
            assert evicted not in strangers
            assert evicted not in busy
            known.discard(-1 if evicted is None else evicted)
            if len(known) < capacity - share:
                known.add(chosen)
                strangers.discard(chosen)
            else:
                assert known <= busy, "it stays a stranger only while all others are busy"
        elif step == "move" and chosen >= 0:
            room.move(chosen, standing)
            (busy.add if standing is Standing.BUSY else busy.discard)(chosen)
        elif step == "close" and chosen >= 0:
            room.leave(chosen)
            strangers.discard(chosen)
            known.discard(chosen)
        busy &= strangers | known
        assert len(room) == len(strangers) + len(known) <= capacity
        assert len(strangers) <= share


def test_a_listener_full_of_idle_clients_lets_a_new_one_prove_itself() -> None:
    room: ConnectionRoom[str] = ConnectionRoom("test", 4)
    for name in ("a", "b", "c"):
        room.admit(name, is_stranger=True)
        room.recognise(name)
        room.move(name, Standing.IDLE)
    assert room.admit("d", is_stranger=True) == (True, None, False)
    assert room.admit("flood", is_stranger=True).evicted == "d"
    assert room.admit("e", is_stranger=True).evicted == "flood"
    assert room.recognise("e") == "a", "the longest idle of those that have a credential"
