"""The life of an outbox task: the table of transitions is true and complete, and the laws of leases and attempts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model.errors import CksError, StaleClaim
from cks_runtime.model.outbox import (
    TRANSITIONS,
    Claim,
    Complete,
    Dead,
    DeadLetter,
    Done,
    Fail,
    Held,
    Leased,
    Moot,
    Now,
    Outcome,
    Ready,
    Recur,
    Release,
    Renew,
    Retry,
    RetryPolicy,
    Signal,
    State,
    step,
)

NOW = Now(wall_ms=1_000_000, lease_ms=50_000, boot_id="boot")
POLICY = RetryPolicy(attempts_max=3)
HELD = Leased(1, "me", "mine", NOW.lease_ms + 10, 100, "boot")
LAPSED = replace(HELD, until_ms=NOW.lease_ms)
MINE: tuple[Signal, ...] = (
    Renew("mine", 100),
    Complete("mine"),
    Fail("mine", "no", 0.5),
    DeadLetter("mine", "no"),
    Release("mine"),
)


def outcome(state: State, signal: Signal, now: Now = NOW, policy: RetryPolicy = POLICY) -> Outcome:
    try:
        return type(step(state, signal, now, policy))
    except CksError as error:
        return type(error)


def examples() -> Iterator[tuple[State, Signal]]:
    """States and signals that reach every row of the table."""
    claim = Claim("you", "yours", 100)
    states: list[State] = [
        Ready(0, NOW.wall_ms + 1),
        Ready(0, NOW.wall_ms),
        Ready(3, NOW.wall_ms),
        HELD,
        replace(HELD, attempts=3),
        LAPSED,
        replace(LAPSED, attempts=3),
        replace(HELD, token="another"),
        Dead(3, "no", 5),
        Done("mine"),
        Done("another"),
    ]
    for state in states:
        for signal in (claim, *MINE, Retry(), Recur(), Moot()):
            yield state, signal


def test_every_row_of_the_table_happens_and_nothing_else_does() -> None:
    told = {(state, signal, becomes) for state, signal, _, becomes in TRANSITIONS}
    seen = {(type(state), type(signal), outcome(state, signal)) for state, signal in examples()}
    assert seen == told


def test_the_table_tells_every_pair_of_state_and_signal() -> None:
    told = {(state, signal) for state, signal, _, _ in TRANSITIONS}
    assert told == {(state, signal) for state in get_args(State) for signal in get_args(Signal)}
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)


tokens = st.sampled_from(["a", "b", "c"])
lengths = st.integers(1, 50)
signals: st.SearchStrategy[Signal] = st.one_of(
    st.builds(Claim, st.just("w"), tokens, lengths),
    st.builds(Renew, tokens, lengths),
    st.builds(Complete, tokens),
    st.builds(Fail, tokens, st.just("no"), st.floats(0, 1)),
    st.builds(DeadLetter, tokens, st.just("no")),
    st.builds(Release, tokens),
    st.builds(Retry),
    st.builds(Recur),
    st.builds(Moot),
)
moves = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000), signals), max_size=40)


@settings(deadline=None)
@given(moves, st.integers(1, 4))
def test_a_token_counts_from_its_claim_to_the_end_of_its_lease(
    moves: list[tuple[int, int, Signal]], attempts_max: int
) -> None:
    """Against a model that remembers only who was let in last, and until when."""
    policy, state, now = RetryPolicy(attempts_max), Ready(0, 0), NOW
    holder: tuple[str, int] | None = None
    claims = 0
    for passed_ms, wall_ms, signal in moves:
        now = Now(now.wall_ms + wall_ms, now.lease_ms + passed_ms, "boot")
        running = holder is not None and now.lease_ms < holder[1]
        before = state
        try:
            state = step(before, signal, now, policy)
        except StaleClaim:
            assert isinstance(signal, Held)
            assert not running or signal.token != holder[0]  # type: ignore[index]
            continue
        except CksError:
            assert isinstance(before, Done) and isinstance(signal, Retry)
            continue
        match signal:
            case Claim() if state is not before and isinstance(state, Leased):
                assert not running, "a running lease was taken"
                claims += 1
                holder = (signal.token, now.lease_ms + signal.length_ms)
            case Claim():
                assert not isinstance(state, Leased) or running
            case Renew():
                assert running and holder is not None and holder[0] == signal.token
                holder = (signal.token, now.lease_ms + signal.length_ms)
            case Complete() if isinstance(before, Done):
                assert before.token == signal.token
            case Complete() | Fail() | DeadLetter() | Release():
                assert running and holder is not None and holder[0] == signal.token
                claims -= isinstance(signal, Release)
        if not isinstance(state, Leased):
            holder = None
        if isinstance(signal, Retry | Recur) and state is not before:
            claims = 0
        if not isinstance(state, Done):
            assert state.attempts == claims <= attempts_max


@settings(deadline=None)
@given(st.integers(1, 5), st.booleans())
def test_a_task_that_kills_its_worker_is_dead_after_the_last_attempt(attempts_max: int, boots: bool) -> None:
    state, now, claims = Ready(0, 0), NOW, 0
    while not isinstance(state, Dead):
        state = step(state, Claim("w", f"t{claims}", 100), now, RetryPolicy(attempts_max))
        claims += isinstance(state, Leased)
        now = replace(now, boot_id=f"boot-{claims}") if boots else replace(now, lease_ms=now.lease_ms + 100)
    assert claims == attempts_max == state.attempts
    assert state.error == f"Attempt {attempts_max}, by w, ended without an answer."


@pytest.mark.parametrize(
    ("lease", "over"),
    [
        (HELD, False),
        (replace(HELD, until_ms=NOW.lease_ms + 1), False),
        (replace(HELD, until_ms=NOW.lease_ms), True),
        (replace(HELD, until_ms=NOW.lease_ms + 100), False),
        (replace(HELD, until_ms=NOW.lease_ms + 101), True),
        (replace(HELD, boot_id="another boot"), True),
        (replace(HELD, until_ms=0, length_ms=0, boot_id=""), True),
    ],
)
def test_when_a_lease_is_over(lease: Leased, over: bool) -> None:
    assert lease.is_over(NOW) is over
    for signal in MINE:
        assert (outcome(lease, signal) is StaleClaim) is over


@settings(deadline=None)
@given(st.integers(0, 1 << 64), st.floats(0, 1))
def test_a_failed_task_is_due_again_in_d_to_2d(attempt: int, jitter: float) -> None:
    base_ms = 1000 * (3600 if attempt >= 12 else min(2**attempt, 3600))
    delay_ms = RetryPolicy().delay_ms(attempt, jitter)
    assert isinstance(delay_ms, int) and base_ms <= delay_ms <= 2 * base_ms


def test_the_delay_grows_up_to_an_hour_at_any_attempt() -> None:
    delays = [RetryPolicy().delay_ms(n, 0.0) for n in range(1, 16)]
    assert delays == [1000 * min(2**n, 3600) for n in range(1, 16)]
    assert RetryPolicy().delay_ms(1 << 63, 1.0) == 7_200_000
    assert RetryPolicy().delay_ms(0, 0.0) == RetryPolicy().delay_ms(-5, 0.0) == 1000


@pytest.mark.parametrize("wall_ms", [1_767_225_599_000, 1_767_225_599_999, 0, 253_402_300_799_000])
def test_the_last_second_of_a_day_is_like_any_other(wall_ms: int) -> None:
    failed = step(HELD, Fail("mine", "no", 0.25), replace(NOW, wall_ms=wall_ms), POLICY)
    assert failed == Ready(1, wall_ms + 2500, "no")


def test_a_released_task_keeps_its_attempt_and_what_was_said_before() -> None:
    again = step(Ready(1, 0, "first try"), Claim("me", "mine", 100), NOW, POLICY)
    assert isinstance(again, Leased) and again.attempts == 2 and again.error == "first try"
    assert step(again, Release("mine"), NOW, POLICY) == Ready(1, NOW.wall_ms, "first try")


def test_a_moot_task_remembers_its_holder_only() -> None:
    assert step(HELD, Moot(), NOW, POLICY) == Done("mine")
    assert step(Done("mine"), Complete("mine"), NOW, POLICY) == Done("mine")
    for state in (Ready(0, 0), Dead(1, "no", 0)):
        assert step(state, Moot(), NOW, POLICY) == Done("")
    assert outcome(Done(""), Complete("mine")) is StaleClaim
