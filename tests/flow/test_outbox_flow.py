"""The outbox as the runtime offers it: against the model, with real conflicts, and where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from outbox_building import Clocks, code, put, runtime, status

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.conflicts import ConflictKind, raised
from cks_runtime.flow.outbox import Held
from cks_runtime.model.errors import CksError, InvalidParameter, NotSupported, StaleClaim, TaskNotFound
from cks_runtime.model.events import TemporalConflictDetected
from cks_runtime.model.outbox import (
    Claim,
    Complete,
    Dead,
    DeadLetter,
    Done,
    Fail,
    Leased,
    Now,
    Ready,
    Release,
    Renew,
    Retry,
    RetryPolicy,
    Signal,
    State,
    step,
)
from cks_runtime.runtime import Runtime
from sweepers import InferenceStalenessSweeper


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
async def rt(tmp_path: Path, clocks: Clocks) -> AsyncIterator[Runtime]:
    async with runtime(tmp_path / "cks.db", clocks) as opened:
        yield opened


async def claimed(rt: Runtime, **options: Any) -> Held:
    held = await rt.outbox.claim("me", **options)
    assert held is not None
    return held


Move = tuple[int, str, int]
KINDS = ("claim", "renew", "complete", "fail", "dead_letter", "release", "retry")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BlockingPortal, Runtime, Clocks]]:
    """A runtime in a thread, for all examples of a synchronous test."""
    clocks, path = Clocks(), tmp_path_factory.mktemp("outbox") / "cks.db"
    opened = runtime(path, clocks, outbox_lease_s=60, outbox_attempts_max=3)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as rt:
        yield portal, rt, clocks


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from(KINDS), st.integers(0, 3)), max_size=25))
def test_the_stored_task_goes_the_way_of_the_model(
    bench: tuple[BlockingPortal, Runtime, Clocks], moves: list[Move]
) -> None:
    portal, rt, clocks = bench
    portal.call(_compare, rt, clocks, moves)


async def _compare(rt: Runtime, clocks: Clocks, moves: list[Move]) -> None:
    async with rt.store.unit() as unit:
        await unit.execute("DELETE FROM cks_outbox_tasks")
    await put(rt, "t")
    state: State = Ready(0, 1)
    tokens = ["nobody's"]
    for passed_ms, kind, which in moves:
        clocks.pass_ms(passed_ms)
        state = await _both(rt, state, kind, tokens, which, clocks)


async def _both(rt: Runtime, state: State, kind: str, tokens: list[str], which: int, clocks: Clocks) -> State:
    now, policy = Now(clocks.wall_ms, clocks.lease_ms, clocks.boot_id), RetryPolicy(3)
    token = tokens[-1 - which % len(tokens)]
    signals: dict[str, Signal] = {
        "claim": Claim("me", "", 60_000),
        "renew": Renew(token, 60_000),
        "complete": Complete(token),
        "fail": Fail(token, "no", 0.0),
        "dead_letter": DeadLetter(token, "no"),
        "release": Release(token),
        "retry": Retry(),
    }
    calls: dict[str, Any] = {
        "claim": lambda: rt.outbox.claim("me"),
        "renew": lambda: rt.outbox.renew("t", token),
        "complete": lambda: rt.outbox.complete("t", token),
        "fail": lambda: rt.outbox.fail("t", token, "no"),
        "dead_letter": lambda: rt.outbox.dead_letter("t", token, "no"),
        "release": lambda: rt.outbox.release("t", token),
        "retry": lambda: rt.outbox.retry("t"),
    }
    answer: object = None
    try:
        answer = await calls[kind]()
        refused = None
    except CksError as error:
        refused = type(error)
    if isinstance(answer, Held):
        tokens.append(answer.token) if kind == "claim" else None
        signals["claim"] = Claim("me", answer.token, 60_000)
    try:
        after = step(state, signals[kind], now, policy)
        assert refused is None
    except CksError as error:
        assert refused is type(error)
        return state
    stored = await _stored(rt)
    if isinstance(after, Ready) and isinstance(stored, Ready) and kind == "fail":
        delay_ms = after.due_ms - now.wall_ms
        assert delay_ms <= stored.due_ms - now.wall_ms <= 2 * delay_ms
        after = stored
    assert stored == (None if isinstance(after, Done) else after)
    if kind == "claim":
        assert isinstance(answer, Held) == (after is not state and isinstance(after, Leased))
    return after


async def _stored(rt: Runtime) -> State | None:
    try:
        return (await rt.outbox.get("t")).state
    except TaskNotFound:
        return None


async def test_a_claim_tells_what_a_worker_needs(rt: Runtime, clocks: Clocks) -> None:
    await put(rt, "t", session="s")
    held = await claimed(rt, lease_s=90)
    assert (held.task_id, held.session_id, held.attempts, held.payload) == ("t", "s", 1, {"name": "t"})
    assert held.expires_at_ms == clocks.wall_ms + 90_000
    clocks.pass_ms(50_000)
    assert (await rt.outbox.renew("t", held.token, lease_s=90)).expires_at_ms == clocks.wall_ms + 90_000


async def test_types_that_do_not_exist_are_refused_and_own_ones_are_known(tmp_path: Path) -> None:
    async with runtime(tmp_path / "cks.db") as rt:
        with pytest.raises(InvalidParameter, match="'licence_conflict'"):
            await rt.outbox.claim("me", ["gossip_conflict", "licence_conflict"])
        with pytest.raises(InvalidParameter, match="task type"):
            await rt.outbox.page("DEAD", "licence_conflict")
        assert await rt.outbox.claim("me", []) is None
    own = ConflictKind("licence", "licence_conflict", raised(TemporalConflictDetected))
    async with Runtime.open(rt.config, conflict_kinds=[own]) as rt:
        await put(rt, "t", task_type="licence_conflict")
        assert (await claimed(rt, task_types=["licence_conflict"])).task_id == "t"


async def test_a_store_in_memory_has_no_outbox() -> None:
    async with Runtime.open(RuntimeConfig(db_path=":memory:")) as rt:
        assert not rt.outbox.supported
        for call in (
            lambda: rt.outbox.claim("me"),
            lambda: rt.outbox.complete("t", "x"),
            lambda: rt.outbox.fail("t", "x", "no"),
            lambda: rt.outbox.retry("t"),
            lambda: rt.outbox.get("t"),
            lambda: rt.outbox.page("DEAD"),
        ):
            with pytest.raises(NotSupported):
                await call()


async def test_unknown_tasks_and_tokens(rt: Runtime) -> None:
    await put(rt, "t")
    held = await claimed(rt)
    for name, token, expected in (
        ("nobody", held.token, "task_not_found"),
        ("t", "x", "stale_claim"),
        ("t", "", "stale_claim"),
        ("t", held.token.upper() + " ", "stale_claim"),
    ):
        assert await code(rt.outbox.renew(name, token)) == expected
        assert await code(rt.outbox.complete(name, token)) == expected
        assert await code(rt.outbox.fail(name, token, "no")) == expected
        assert await code(rt.outbox.dead_letter(name, token, "no")) == expected
        assert await code(rt.outbox.release(name, token)) == expected
    assert await status(rt, "t") == "IN_PROGRESS"


async def test_completing_twice_is_the_same_answer_for_the_holder_alone(rt: Runtime, clocks: Clocks) -> None:
    await put(rt, "t")
    early = await claimed(rt, lease_s=1)
    clocks.pass_ms(1000)
    late = await claimed(rt)
    assert await rt.outbox.complete("t", late.token) == "key-t"
    assert await rt.outbox.complete("t", late.token) is None
    for call in (rt.outbox.complete, rt.outbox.renew, rt.outbox.release):
        assert await code(call("t", early.token)) == "stale_claim"
    assert await code(rt.outbox.fail("t", late.token, "no")) == "stale_claim"
    assert await code(rt.outbox.retry("t")) == "task_not_found"


async def test_a_released_task_is_due_at_once_with_its_attempt(rt: Runtime) -> None:
    await put(rt, "t")
    for _ in range(20):
        held = await claimed(rt)
        assert held.attempts == 1
        await rt.outbox.release("t", held.token)


async def test_failing_to_the_limit_and_retrying_by_hand(rt: Runtime, clocks: Clocks) -> None:
    await put(rt, "t")
    for attempt in range(1, 6):
        held = await claimed(rt)
        assert held.attempts == attempt
        task = await rt.outbox.fail("t", held.token, f"no {attempt}")
        if attempt < 5:
            assert isinstance(task.state, Ready)
            assert 2**attempt * 1000 <= task.state.due_ms - clocks.wall_ms <= 2 * 2**attempt * 1000
            assert await rt.outbox.claim("me") is None
            clocks.pass_ms(task.state.due_ms - clocks.wall_ms)
    assert task.state == Dead(5, "no 5", clocks.wall_ms)
    assert [row.task_id for row in await rt.outbox.page("DEAD")] == ["t"]
    assert (await rt.outbox.retry("t")).state == Ready(0, clocks.wall_ms, "no 5")
    held = await claimed(rt)
    assert held.attempts == 1
    assert isinstance((await rt.outbox.retry("t")).state, Leased), "a task at work is not disturbed"
    assert await code(rt.outbox.renew("t", held.token)) == "ok"


async def test_a_worker_may_have_its_own_limit_of_attempts(rt: Runtime) -> None:
    await put(rt, "t")
    held = await claimed(rt, attempts_max=1)
    task = await rt.outbox.fail("t", held.token, "no", attempts_max=1)
    assert isinstance(task.state, Dead)


async def test_errors_may_be_long_and_hold_any_text(rt: Runtime) -> None:
    await put(rt, "t")
    held = await rt.outbox.claim("me \ud800")
    assert held is not None
    task = await rt.outbox.dead_letter("t", held.token, "a\ud800\0" + "é" * 100_000)
    assert isinstance(task.state, Dead) and task.state.error is not None
    assert task.state.error.startswith("a\\ud800") and len(task.state.error) == 4000
    assert (await rt.outbox.get("t")).state == task.state


STEPS = [
    {"op": "add_object", "identity": {"id": name, "type": "Claim", "name": name}, "structure": {}}
    for name in ("premise", "conclusion")
] + [
    {
        "op": "record_inference",
        "identity": {"id": f"step-{confidence}", "type": "InferenceStep", "name": "step"},
        "premises": ["premise"],
        "conclusion": "conclusion",
        "operator": "deductive",
        "confidence": confidence,
        "justification": "because",
        "alternatives_considered": [],
    }
    for confidence in (0.4, 0.9)
]
RESOLVE = {
    "op": "resolve_inference_conflict",
    "conclusion_id": "conclusion",
    "winner_id": "step-0.9",
    "reasoning": "it is better founded",
}
REOPEN = {
    "op": "update_object",
    "object_id": "step-0.4",
    "structure_patch": {"superseded_by": None, "superseded_reason": None},
}


async def test_a_task_whose_conflict_closed_is_gone_and_its_holder_completes_it(rt: Runtime) -> None:
    sweeper = InferenceStalenessSweeper(rt, None)
    await rt.commits.evolve("main", STEPS)
    await sweeper.sweep()
    held = await claimed(rt, task_types=["inference_conflict"], session_id="main")
    assert held.payload["diagnostics"][0]["conclusion_id"] == "conclusion"
    await rt.commits.evolve("main", [RESOLVE])
    await sweeper.sweep()
    assert await status(rt, held.task_id) is None
    assert await code(rt.outbox.renew(held.task_id, held.token)) == "stale_claim"
    assert await rt.outbox.complete(held.task_id, held.token) is None
    assert await code(rt.outbox.complete(held.task_id, "another's")) == "stale_claim"
    assert (await rt.conflicts.get(str(held.payload["record_id"]))).state == "closed"  # type: ignore[union-attr]


async def test_completing_leaves_an_open_conflict_without_a_task_until_it_comes_again(rt: Runtime) -> None:
    sweeper = InferenceStalenessSweeper(rt, None)
    await rt.commits.evolve("main", STEPS)
    await sweeper.sweep()
    held = await claimed(rt)
    record_id = str(held.payload["record_id"])
    assert await rt.outbox.complete(held.task_id, held.token) == record_id
    await rt.commits.evolve("main", [{"op": "rename_object", "object_id": "step-0.4", "new_name": "x"}])
    await sweeper.sweep()
    record = await rt.conflicts.get(record_id)
    assert record is not None and record.state == "open"
    assert await rt.outbox.claim("me") is None
    for operation in (RESOLVE, REOPEN):
        await rt.commits.evolve("main", [operation])
        await sweeper.sweep()
    again = await claimed(rt)
    assert again.payload["record_id"] == record_id and again.payload["occurrence"] == 2
    assert again.task_id != held.task_id and again.attempts == 1
    with pytest.raises(StaleClaim):
        await rt.outbox.complete(again.task_id, held.token)


async def test_two_runtimes_never_hold_one_task(tmp_path: Path) -> None:
    async with runtime(tmp_path / "cks.db") as one, runtime(tmp_path / "cks.db") as two:
        await put(one, *(f"t{index:03}" for index in range(120)))
        done: list[str] = []

        async def work(rt: Runtime) -> None:
            while held := await rt.outbox.claim("me"):
                assert await rt.outbox.complete(held.task_id, held.token)
                done.append(held.task_id)

        async with anyio.create_task_group() as tasks:
            for rt in (one, two, one, two):
                tasks.start_soon(work, rt)
        assert sorted(done) == [f"t{index:03}" for index in range(120)]


@pytest.mark.parametrize("call", ["claim", "renew", "complete", "fail", "release", "retry"])
async def test_cancelling_a_call_anywhere_leaves_the_outbox_usable(
    rt: Runtime, clocks: Clocks, call: str
) -> None:
    for delay in range(12):
        name = f"t{delay}"
        await put(rt, name)
        held = await claimed(rt)
        if call == "retry":
            await rt.outbox.dead_letter(name, held.token, "no")
        if call == "claim":
            await rt.outbox.release(name, held.token)
        calls: dict[str, Any] = {
            "claim": lambda: rt.outbox.claim("me"),
            "renew": lambda held=held: rt.outbox.renew(held.task_id, held.token),
            "complete": lambda held=held: rt.outbox.complete(held.task_id, held.token),
            "fail": lambda held=held: rt.outbox.fail(held.task_id, held.token, "no"),
            "release": lambda held=held: rt.outbox.release(held.task_id, held.token),
            "retry": lambda name=name: rt.outbox.retry(name),
        }
        with anyio.move_on_after(delay * 0.0003):
            await calls[call]()
        clocks.pass_ms(7_300_000)
        async with rt.store.unit() as unit:
            await unit.execute(
                "UPDATE cks_outbox_tasks SET status = 'PENDING', attempts = 0, claim_token = NULL"
            )
        if await status(rt, name) is not None:
            again = await claimed(rt)
            assert await rt.outbox.complete(name, again.token) == f"key-{name}"
