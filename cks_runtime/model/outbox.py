"""The life of an outbox task as a pure function; `TRANSITIONS` tells all of it and is tested against `step`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cks_runtime.model.errors import CksError, StaleClaim, TaskNotFound

DELAY_MAX_S = 3600
_EXPONENT_MAX = 12  # 2**12 s is beyond DELAY_MAX_S already
NO_ATTEMPTS_LEFT = "Every attempt is used up."


@dataclass(frozen=True, slots=True)
class Now:
    """Due times count by the wall clock (`wall_ms`), leases by the store's clock: `lease_ms` of boot `boot_id`."""

    wall_ms: int
    lease_ms: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a task is tried: a claim is an attempt, whatever becomes of it."""

    attempts_max: int = 5

    def delay_ms(self, attempt: int, jitter: float) -> int:
        """How long after failed attempt 1, 2, … a task is due again: d to 2d, d = min(2^attempt, 3600) s.

        `jitter` from 0 to 1 picks the place between. Costs the same for every attempt.
        """
        assert 0 <= jitter <= 1
        base_ms = 1000 * min(1 << min(max(attempt, 0), _EXPONENT_MAX), DELAY_MAX_S)
        return base_ms + int(base_ms * jitter)


@dataclass(frozen=True, slots=True)
class Ready:
    """Waits for a claim, not before `due_ms`; `attempts` are used up, `error` is what the last one said."""

    attempts: int
    due_ms: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Leased:
    """Some worker holds it until `until_ms` of the lease clock; `token` proves the holder."""

    attempts: int
    owner: str
    token: str
    until_ms: int
    length_ms: int
    boot_id: str
    error: str | None = None

    def is_over(self, now: Now) -> bool:
        """Whether the lease ended. A lease of another boot has, and one that ends later than now + its length."""
        return (
            self.boot_id != now.boot_id or not now.lease_ms < self.until_ms <= now.lease_ms + self.length_ms
        )

    def is_held_by(self, token: str, now: Now) -> bool:
        """Whether this token is that of the running lease."""
        return token != "" and self.token == token and not self.is_over(now)


@dataclass(frozen=True, slots=True)
class Dead:
    """Put aside for a person since `at_ms` (None: not noted); keeps its conflict from queueing a second task."""

    attempts: int
    error: str | None
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Done:
    """Off the queue: completed, or moot because its conflict closed. `token` is of the last holder, if any."""

    token: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker asks for the task, for `length_ms` at a time."""

    owner: str
    token: str
    length_ms: int


@dataclass(frozen=True, slots=True)
class Renew:
    """The holder is still at work: its lease begins anew."""

    token: str
    length_ms: int


@dataclass(frozen=True, slots=True)
class Complete:
    """The holder is done."""

    token: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The holder could not do it this time; `jitter` as in `RetryPolicy.delay_ms`."""

    token: str
    error: str
    jitter: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The holder says that no further try will help."""

    token: str
    error: str


@dataclass(frozen=True, slots=True)
class Release:
    """The holder stops without having tried: the task is due at once and its attempt is not used up."""

    token: str


@dataclass(frozen=True, slots=True)
class Retry:
    """A person wants a dead task tried again from the start."""


@dataclass(frozen=True, slots=True)
class Recur:
    """The task's conflict was raised (again)."""


@dataclass(frozen=True, slots=True)
class Moot:
    """The task's conflict closed."""


State = Ready | Leased | Dead | Done
Held = Renew | Complete | Fail | DeadLetter | Release
Signal = Claim | Held | Retry | Recur | Moot
Outcome = type[State] | type[CksError]

TRANSITIONS: tuple[tuple[type[State], type[Signal], str, Outcome], ...] = (
    # state, signal, when, becomes (or raises)
    (Ready, Claim, "not due", Ready),
    (Ready, Claim, "due, attempts left: one more is used", Leased),
    (Ready, Claim, "due, no attempt left", Dead),
    (Ready, Retry, "", Ready),
    (Ready, Recur, "", Ready),
    (Ready, Moot, "", Done),
    (Leased, Claim, "lease runs", Leased),
    (Leased, Claim, "lease over, attempts left: the new holder's", Leased),
    (Leased, Claim, "lease over, no attempt left", Dead),
    (Leased, Renew, "holder, lease runs", Leased),
    (Leased, Complete, "holder, lease runs", Done),
    (Leased, Fail, "holder, lease runs, attempts left: due in d to 2d", Ready),
    (Leased, Fail, "holder, lease runs, no attempt left", Dead),
    (Leased, DeadLetter, "holder, lease runs", Dead),
    (Leased, Release, "holder, lease runs: due now, the attempt is given back", Ready),
    *((Leased, signal, "another's token, or lease over", StaleClaim) for signal in Held.__args__),
    (Leased, Retry, "", Leased),
    (Leased, Recur, "", Leased),
    (Leased, Moot, "", Done),
    (Dead, Claim, "", Dead),
    (Dead, Retry, "attempts 0, due now", Ready),
    (Dead, Recur, "attempts 0, due now", Ready),
    (Dead, Moot, "", Done),
    (Done, Claim, "", Done),
    (Done, Complete, "the last holder again, or its conflict closed meanwhile", Done),
    (Done, Complete, "anyone else", StaleClaim),
    *((Done, signal, "", StaleClaim) for signal in (Renew, Fail, DeadLetter, Release)),
    (Done, Retry, "", TaskNotFound),
    (Done, Recur, "a task of its own", Ready),
    (Done, Moot, "", Done),
    *((state, signal, "", StaleClaim) for state in (Ready, Dead) for signal in Held.__args__),
)


def step(state: State, signal: Signal, now: Now, policy: RetryPolicy) -> State:
    """The task's next state.

    Raises StaleClaim when the signal needs the holder and its token is not that of a running lease, TaskNotFound
    for a retry of what is off the queue.
    """
    match state, signal:
        case Ready(), Claim() if state.due_ms <= now.wall_ms:
            if state.attempts >= policy.attempts_max:
                return Dead(state.attempts, state.error or NO_ATTEMPTS_LEFT, now.wall_ms)
            return _claimed(state, signal, now)
        case Leased(), Claim() if state.is_over(now):
            if state.attempts >= policy.attempts_max:
                return Dead(state.attempts, no_answer(state), now.wall_ms)
            return _claimed(state, signal, now)
        case _, Claim():
            return state
        case Leased(), Renew() if state.is_held_by(signal.token, now):
            return replace(state, until_ms=now.lease_ms + signal.length_ms, length_ms=signal.length_ms)
        case Leased(), Complete() if state.is_held_by(signal.token, now):
            return Done(state.token)
        case Leased(attempts=n), Fail() if state.is_held_by(signal.token, now):
            if n >= policy.attempts_max:
                return Dead(n, signal.error, now.wall_ms)
            return Ready(n, now.wall_ms + policy.delay_ms(n, signal.jitter), signal.error)
        case Leased(), DeadLetter() if state.is_held_by(signal.token, now):
            return Dead(state.attempts, signal.error, now.wall_ms)
        case Leased(), Release() if state.is_held_by(signal.token, now):
            return Ready(max(state.attempts - 1, 0), now.wall_ms, state.error)
        case Done(token=held), Complete(token=shown) if shown != "" and held == shown:
            return state
        case _, Renew() | Complete() | Fail() | DeadLetter() | Release():
            raise _stale(state, signal.token)
        case Dead(), Retry() | Recur():
            return Ready(0, now.wall_ms, state.error)
        case Done(), Retry():
            raise TaskNotFound("The task is off the queue.", "There is nothing left to retry.")
        case Done(), Recur():
            return Ready(0, now.wall_ms)
        case _, Retry() | Recur():
            return state
        case _, Moot():
            return Done(state.token) if isinstance(state, Leased | Done) else Done()
        case _:
            raise AssertionError("every pair of state and signal is told above")


def no_answer(state: Leased) -> str:
    """What is noted when the last attempt's lease ended."""
    return f"Attempt {state.attempts}, by {state.owner}, ended without an answer."


def _claimed(state: Ready | Leased, signal: Claim, now: Now) -> Leased:
    return Leased(
        attempts=state.attempts + 1,
        owner=signal.owner,
        token=signal.token,
        until_ms=now.lease_ms + signal.length_ms,
        length_ms=signal.length_ms,
        boot_id=now.boot_id,
        error=state.error,
    )


def _stale(state: State, token: str) -> StaleClaim:
    match state:
        case Leased(token=held) if held == token:
            why = "its lease ended"
        case Leased():
            why = "another worker holds the task now"
        case Ready():
            why = "the task waits for its next claim"
        case Dead():
            why = "the task is dead-lettered"
        case Done(token=held) if held == token:
            why = "the task is off the queue: it was completed, or its conflict closed"
        case Done():
            why = "the task was settled without this claim, or its conflict closed"
    return StaleClaim(f"This claim is over: {why}.", "Drop the result; claim again to go on.")
