"""The critic as a real process on a shared database, with a stand-in for a language model on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from llm_server import Behaviour, LlmServer, first_offered, hangs, refuses, says, slow
from wire import Wire

from cks_mcp.agents.breaker import PAUSE_MAX_S, PAUSE_S, SKIPS_MAX, Breaker, Claimable
from cks_mcp.agents.critic import open_critic
from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.clock import wall_ms
from cks_runtime.model.history import Version
from cks_runtime.runtime import Runtime
from cks_runtime.settings import load_settings
from cks_runtime.store import conflicts as records
from cks_runtime.store.agents import list_agents
from cks_runtime.store.conflicts import RecordRow
from cks_runtime.store.outbox import put_task
from sweepers.dated import TemporalStalenessSweeper
from sweepers.inference import InferenceStalenessSweeper

PROGRAM = [sys.executable, "-c", "from cks_mcp.agents.critic import main; main()"]
SERVER = [sys.executable, "-c", "from cks_mcp.cli import main; main()"]


class Place:
    """A database, a runtime on it in this process, and critics in processes of their own."""

    def __init__(self, path: Path, rt: Runtime) -> None:
        self.path = path
        self.rt = rt

    def environment(self, llm: str, **settings: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CKS_", "ANTHROPIC"))}
        own = {
            "CKS_MCP_DB_PATH": str(self.path),
            "CKS_SQLITE_SYNCHRONOUS": "NORMAL",
            "CKS_LLM_PROVIDER": "ollama",
            "CKS_LLM_MODEL": "stand-in:1b",
            "CKS_OLLAMA_HOST": llm,
            "CKS_LOG_FORMAT": "json",
            "CKS_CRITIC_POLL_INTERVAL": "0.2",
        }
        return kept | own | settings

    async def here(self, llm: str, **settings: str) -> None:
        """The same as `once` in this process, which is quicker."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment(llm, **settings).items():
                patch.setenv(name, value)
            read = load_settings()
        async with open_critic(read) as worker:
            await worker.run(once=True)

    def once(self, llm: str, **settings: str) -> list[dict[str, Any]]:
        """Let a critic work off what is due, in a process of its own; what it logged."""
        done = subprocess.run(
            [*PROGRAM, "--once"],
            env=self.environment(llm, **settings),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and done.stdout == "", done.stderr
        return [json.loads(line) for line in done.stderr.splitlines()]

    @contextmanager
    def running(self, llm: str, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            PROGRAM,
            env=self.environment(llm, **settings),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)

    async def evolve(self, *operations: dict[str, Any]) -> None:
        await self.rt.commits.evolve("main", list(operations), create=True)

    async def sweep(self) -> None:
        await InferenceStalenessSweeper(self.rt, None).sweep()
        await TemporalStalenessSweeper(self.rt, None).sweep()

    async def tasks(self) -> dict[str, tuple[str, int, str | None]]:
        """(status, attempts, error) by task type."""
        async with self.rt.store.reader() as reader:
            rows = await reader.fetch("SELECT task_type, status, attempts, last_error FROM cks_outbox_tasks")
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    async def structure(self, id: str) -> dict[str, Any]:
        _, graph = await self.rt.sessions.head("main")
        return dict(graph[id].structure)

    async def head(self) -> Version:
        row, _ = await self.rt.sessions.head("main")
        return await self.rt.graphs.version(row.head)

    async def open_kinds(self) -> dict[str, int]:
        async with self.rt.store.reader() as reader:
            return await records.count_open(reader)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    path = tmp_path / "cks.db"
    async with Runtime.open(RuntimeConfig(db_path=str(path), sqlite_synchronous="NORMAL")) as rt:
        yield Place(path, rt)


def thing(id: str, **structure: Any) -> dict[str, Any]:
    return {"op": "add_object", "identity": {"id": id, "type": "Claim", "name": id}, "structure": structure}


def step(id: str, conclusion: str, confidence: float, *premises: str, **more: Any) -> dict[str, Any]:
    return {
        "op": "record_inference",
        "identity": {"id": id, "type": "InferenceStep", "name": id},
        "premises": list(premises),
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": confidence,
        **more,
    }


async def disagree(place: Place) -> None:
    await place.evolve(thing("f"), thing("c"), step("a", "c", 0.9, "f"), step("b", "c", 0.4, "f"))
    await place.sweep()


def nowhere() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def until(probe: Callable[[], Any], seconds: float = 15.0) -> None:
    with anyio.fail_after(seconds):
        while not probe():  # noqa: ASYNC110 (what it waits for happens in another process)
            await anyio.sleep(0.05)


async def test_both_kinds_of_one_task_in_one_version(place: Place) -> None:
    await place.evolve(thing("f"), thing("p"), thing("c"), thing("d"), step("p1", "p", 0.5, "f"))
    await place.evolve(
        step("a", "c", 0.9, "f"),
        step("b", "c", 0.4, "f"),
        step("e", "d", 0.7, "p1"),
        step("p2", "p", 0.6, "f", supersedes="p1"),
    )
    await place.sweep()
    before = await place.head()
    assert await place.tasks() == {"inference_conflict": ("PENDING", 0, None)}
    with LlmServer(first_offered) as llm:
        logged = place.once(llm.url)
    assert len(llm.seen) == 1
    after = await place.head()
    assert after.parents == (before.id,) and after.author.startswith("critic@")
    assert "llm ollama/stand-in:1b" in after.message and "rule" in after.message
    assert (await place.structure("b"))["superseded_by"] == "a"
    assert (await place.structure("e"))["premises"] == ["p2"]
    assert await place.tasks() == {} and await place.open_kinds() == {}
    parts = {line["event"]: line for line in logged}
    assert parts["conclusion settled"]["winner_id"] == "a"
    assert parts["premise rewritten"]["current_step_id"] == "p2"


async def test_a_winner_that_makes_others_stale_is_followed_up(place: Place) -> None:
    await disagree(place)
    await place.evolve(thing("d"), step("e", "d", 0.7, "b"))
    await place.sweep()
    with LlmServer(first_offered) as llm:
        await place.here(llm.url)
    assert (await place.structure("e"))["premises"] == ["a"]
    assert await place.tasks() == {} and await place.open_kinds() == {}


@pytest.mark.parametrize("behaviour", [refuses(500, {"retry-after": "0"}), refuses(401), None])
async def test_a_dead_model_burns_no_attempts(place: Place, behaviour: Behaviour | None) -> None:
    await disagree(place)
    before = await place.head()
    if behaviour is None:
        await place.here(nowhere())
        await place.here(nowhere())
    else:
        with LlmServer(behaviour) as llm:
            await place.here(llm.url)
    assert await place.tasks() == {"inference_conflict": ("PENDING", 0, None)}
    assert await place.head() == before
    with LlmServer(first_offered) as llm:
        await place.here(llm.url)
    assert await place.tasks() == {}


async def test_what_needs_no_model_is_settled_without_one(place: Place) -> None:
    await disagree(place)
    await place.evolve(thing("p"), thing("d"), step("p1", "p", 0.5, "f"), step("e", "d", 0.7, "p1"))
    await place.evolve(step("p2", "p", 0.6, "f", supersedes="p1"))
    await place.sweep()
    await place.here(nowhere())
    assert (await place.structure("e"))["premises"] == ["p2"]
    assert await place.tasks() == {"inference_conflict": ("PENDING", 0, None)}


async def test_a_refused_answer_is_tried_again_and_then_left_to_a_person(place: Place) -> None:
    await disagree(place)
    before = await place.head()
    with LlmServer(says({"winner_id": "f", "reasoning": "obeyed"})) as llm:
        await place.here(llm.url)
        status, attempts, error = (await place.tasks())["inference_conflict"]
        assert (status, attempts) == ("PENDING", 1) and error is not None and "refused" in error
        async with place.rt.store.unit() as unit:
            await unit.execute("UPDATE cks_outbox_tasks SET next_retry_at = 0")
        await place.here(llm.url, CKS_CRITIC_MAX_RETRIES="2")
    assert (await place.tasks())["inference_conflict"][:2] == ("DEAD", 2)
    assert await place.head() == before and await place.open_kinds() == {"inference": 1}


async def test_an_edit_during_the_model_call_is_not_lost(place: Place) -> None:
    await disagree(place)
    with LlmServer(slow(1.0, first_offered)) as llm, place.running(llm.url):
        await until(lambda: llm.seen)
        await place.evolve(thing("new"), {"op": "rename_object", "object_id": "b", "new_name": "renamed"})
        with anyio.fail_after(15):
            while await place.tasks():  # noqa: ASYNC110 (as in until)
                await anyio.sleep(0.05)
        assert len(llm.seen) == 2
    _, graph = await place.rt.sessions.head("main")
    assert "new" in graph and graph["b"].name == "renamed" and graph["b"].structure["superseded_by"] == "a"


async def test_a_conflict_that_was_settled_meanwhile_is_completed(place: Place) -> None:
    await disagree(place)
    await place.evolve(
        {"op": "resolve_inference_conflict", "conclusion_id": "c", "winner_id": "b", "reasoning": ""}
    )
    before = await place.head()
    with LlmServer(first_offered) as llm:
        await place.here(llm.url)
        assert not llm.seen
    assert await place.tasks() == {} and await place.open_kinds() == {} and await place.head() == before


async def test_dates_are_left_unless_an_action_is_set(place: Place) -> None:
    await place.evolve(thing("d", valid_until="2020-01-01T00:00:00Z"))
    await place.sweep()
    await place.here(nowhere())
    assert await place.tasks() == {"temporal_conflict": ("PENDING", 0, None)}
    await place.here(nowhere(), CKS_CRITIC_TASK_TYPES="temporal_conflict")
    assert await place.tasks() == {"temporal_conflict": ("PENDING", 0, None)}
    await place.here(nowhere(), CKS_CRITIC_TEMPORAL_ACTION="bump")
    assert (await place.structure("d"))["valid_until"] > "2026" and await place.tasks() == {}
    assert "rule" in (await place.head()).message
    await place.evolve(thing("e", valid_until="2020-01-01T00:00:00Z"))
    await place.sweep()
    await place.here(nowhere(), CKS_CRITIC_TEMPORAL_ACTION="archive")
    assert (await place.structure("e"))["archived"] is True and await place.tasks() == {}
    await place.evolve(thing("g", valid_until="2020-01-01T00:00:00Z"))
    await place.sweep()
    before = await place.head()
    await place.here(nowhere(), CKS_CRITIC_TEMPORAL_ACTION="ignore")
    assert await place.head() == before and await place.tasks() == {} and await place.open_kinds() == {}


async def test_a_date_that_somebody_moved_is_not_moved_again(place: Place) -> None:
    await place.evolve(thing("d", valid_until="2020-01-01T00:00:00Z"))
    await place.sweep()
    later = {
        "op": "update_object",
        "object_id": "d",
        "structure_patch": {"valid_until": "2099-01-01T00:00:00Z"},
    }
    await place.evolve({**later, "mode": "merge"})
    before = await place.head()
    await place.here(nowhere(), CKS_CRITIC_TEMPORAL_ACTION="bump")
    assert await place.head() == before and await place.tasks() == {} and await place.open_kinds() == {}


async def gossip_task(place: Place, source: str) -> None:
    """A gossip conflict between `main` and another line, as replication raises it."""
    body: dict[str, Any] = {"source_session_id": source, "object_ids": ["c"], "conflicts": ["c"]}
    now_ms = wall_ms()
    record = RecordRow(
        "r1",
        "gossip",
        "main",
        "open",
        1,
        1,
        now_ms,
        now_ms,
        "",
        {**body, "diagnostics": []},
        None,
        None,
        None,
    )
    async with place.rt.store.unit() as unit:
        await records.put_record(unit, record)
        await put_task(unit, "t1", "gossip_conflict", "main", {**body, "record_id": "r1"}, "r1", now_ms)


@pytest.mark.parametrize("clash", [False, True])
async def test_lines_that_agree_are_merged_and_a_clash_is_dead_lettered(place: Place, clash: bool) -> None:
    await place.evolve(thing("c", value=1))
    branch = (await place.rt.branches.create("main")).session_id
    edit = {"op": "update_object", "object_id": "c", "mode": "merge"}
    await place.rt.commits.evolve(branch, [{**edit, "structure_patch": {"value": 2, "own": True}}])
    await place.evolve({**edit, "structure_patch": {"value": 3} if clash else {"other": True}})
    before = await place.head()
    await gossip_task(place, branch)
    await place.here(nowhere())
    if clash:
        status, attempts, error = (await place.tasks())["gossip_conflict"]
        assert (status, attempts) == ("DEAD", 1) and error is not None and "'c'" in error
        assert await place.head() == before
    else:
        assert await place.tasks() == {}
        assert await place.structure("c") == {"value": 2, "own": True, "other": True}


async def test_an_expired_verification_waits_for_who_can_fetch(place: Place) -> None:
    async with place.rt.store.unit() as unit:
        await put_task(unit, "t1", "provenance_conflict", "main", {}, "r1", wall_ms())
    logged = place.once(nowhere())
    assert await place.tasks() == {"provenance_conflict": ("PENDING", 0, None)}
    assert any(line.get("task_types") == ["provenance_conflict"] for line in logged)


async def test_sigterm_gives_the_task_back(place: Place) -> None:
    await disagree(place)
    kept: list[LlmServer] = []
    with LlmServer(hangs(kept)) as llm, place.running(llm.url) as process:
        kept.append(llm)
        await until(lambda: llm.seen)
        assert (await place.tasks())["inference_conflict"][0] == "IN_PROGRESS"
        async with place.rt.store.reader() as reader:
            (row,) = await list_agents(reader)
        assert row.name == "critic" and row.is_alive(wall_ms())
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(process.wait, 6) == 0
        assert time.monotonic() - began < 5
        assert llm.gone.is_set()
    assert await place.tasks() == {"inference_conflict": ("PENDING", 0, None)}
    async with place.rt.store.reader() as reader:
        assert await list_agents(reader) == []


async def test_the_critic_is_seen_in_runtime_status(place: Place) -> None:
    with place.running(nowhere()), Wire(SERVER, environment=place.environment(nowhere())) as wire:
        wire.start()
        agents: list[dict[str, Any]] = []

        def seen() -> bool:
            agents[:] = wire.call("runtime_status")["structuredContent"]["agents"]
            return bool(agents)

        await until(seen)
    (agent,) = agents
    assert agent["name"] == "critic" and agent["alive"] is True and agent["state"] == "idle"
    assert agent["task_types"] == ["gossip_conflict", "inference_conflict"]


def test_help_and_version_need_no_settings(tmp_path: Path) -> None:
    for flag, says_ in (("--help", "--once"), ("--version", "cks-critic-agent 0.")):
        done = subprocess.run(
            [*PROGRAM, flag], env={**os.environ, "CKS_GOSSIP_PORT": "x"}, capture_output=True, text=True
        )
        assert done.returncode == 0 and says_ in done.stdout
    done = subprocess.run(
        [*PROGRAM], env={**os.environ, "CKS_CRITIC_POLL_INTERVAL": "x"}, capture_output=True, text=True
    )
    assert done.returncode == 2 and "CKS_CRITIC_POLL_INTERVAL" in done.stderr


def test_the_program_imports_no_protocol() -> None:
    code = (
        "import sys, cks_mcp.agents.critic\n"
        "print([name for name in ('mcp', 'httpx', 'starlette', 'apscheduler') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done


def test_the_breaker_opens_longer_and_closes_at_once() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    types = Claimable(["gossip_conflict", "inference_conflict"], ["inference_conflict"], breaker)
    assert not breaker.is_open and list(types) == ["gossip_conflict", "inference_conflict"]
    pause = PAUSE_S
    for _ in range(8):
        breaker.failed()
        now[0] += pause - 0.1
        assert breaker.is_open
        now[0] += 0.1
        assert not breaker.is_open
        pause = min(2 * pause, PAUSE_MAX_S)
    breaker.failed()
    breaker.succeeded()
    assert not breaker.is_open
    breaker.failed()
    for number in range(SKIPS_MAX):
        assert breaker.looks_on and len(types) == 2
        breaker.skip(f"t{number}")
    assert not breaker.looks_on and list(types) == ["gossip_conflict"]
    now[0] += PAUSE_S
    assert len(types) == 2
    breaker.failed()
    breaker.skip("t1")
    assert breaker.looks_on
    breaker.skip("t1")
    assert not breaker.looks_on, "a task that comes round again means that all were seen"
