"""An act with the critic: conflicts are settled by a worker of its own, by a call, or left for a person."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from examples.demo.ollama import StandIn, stand_in
from examples.demo.stage import PROGRAMS, Agent, Stage, agent, patch, short, step, until


async def play(stage: Stage) -> None:
    """Disagree, let the critic settle it while somebody edits, settle a date by a call, tell what became of each."""
    database = stage.folder / "critic.db"
    with stand_in() as model:
        async with agent("dana", database) as dana:
            await disagree(stage, dana)
            with critic(database, model) as process:
                await settle(stage, dana, model)
                await expire(stage, dana)
                await stop(stage, dana, process)
            await tell(stage, database)


def thing(id: str, name: str, **structure: Any) -> dict[str, Any]:
    """The operation that adds an object."""
    return {"op": "add_object", "identity": {"id": id, "type": "Claim", "name": name}, "structure": structure}


async def disagree(stage: Stage, dana: Agent) -> None:
    stage.act("Two beliefs disagree, and a step rests on a premise that was replaced")
    await dana.call(
        "evolve_knowledge",
        operations=[
            thing("spectrum", "Spectrum of the exoplanet's air"),
            thing("water", "There is water vapour"),
            thing("clouds", "There are clouds"),
            thing("habitable", "It could be habitable"),
            step("clouds-1", "First look", ["spectrum"], "clouds", 0.5, "One transit."),
            step(
                "water-yes",
                "Two lines at 1.4 µm",
                ["spectrum"],
                "water",
                0.9,
                "Both lines stand in six transits.",
            ),
            step("water-no", "Noise", ["spectrum"], "water", 0.3, "One transit only."),
            step("habitable-1", "Clouds and water", ["clouds-1", "water"], "habitable", 0.4, "It follows."),
            step("clouds-2", "Second look", ["spectrum"], "clouds", 0.7, "Six transits.", "clouds-1"),
        ],
    )

    async def queued() -> dict[str, Any] | None:
        found = await dana.call("list_inference_conflicts", peek=True)
        return found if found["count"] else None

    found, took = await until(queued, 5.0)
    codes = sorted({d["code"] for c in (found or {"conflicts": []})["conflicts"] for d in c["diagnostics"]})
    stage.check(len(codes) == 2, f"one task holds both kinds, {took:.2f} s after the commit: {codes}")
    shown = await dana.call("arbitrate_inference_conflict", conclusion_id="water")
    stage.table(
        ("step", "confidence", "justification"),
        [(s["step_id"], s["confidence"], s["justification"]) for s in shown["active_steps"]],
        "What stands against what",
    )


async def settle(stage: Stage, dana: Agent, model: StandIn) -> None:
    stage.act("cks-critic-agent claims the task; Dana edits while the model thinks")
    before = (await dana.call("explain_knowledge"))["head"]["version_id"]

    async def thinking() -> dict[str, Any] | None:
        return {} if model.busy.is_set() else None

    asked, _ = await until(thinking, 15.0)
    stage.check(asked is not None, "the critic asks the model (a local stand-in for Ollama)")
    edited = await dana.call("evolve_knowledge", operations=[patch("spectrum", instrument="JWST")])

    async def settled() -> dict[str, Any] | None:
        head = (await dana.call("list_versions", limit=1))["versions"][0]
        return head if head["version_id"] not in (before, edited["version_id"]) else None

    version, took = await until(settled, 15.0)
    if version is None:
        stage.check(False, "the critic settles the task")
        return
    for line in version["message"].splitlines():
        stage.say(line)
    stage.check(
        version["parents"] == [edited["version_id"]],
        f"one version {short(version['version_id'])} holds both parts, {took:.1f} s later, on top of Dana's edit",
    )
    spectrum = await dana.call("explain_knowledge", object_id="spectrum")
    stage.check("instrument" in spectrum["object"]["structure"], "the edit made meanwhile is not lost")
    loser = (await dana.call("explain_knowledge", object_id="water-no"))["object"]["structure"]
    citing = (await dana.call("explain_knowledge", object_id="habitable-1"))["object"]["structure"]
    stage.check(
        loser["superseded_by"] == "water-yes" and "clouds-2" in citing["premises"],
        "the weaker step is superseded with the reason; the stale premise is the current step now",
    )
    left = await dana.call("list_inference_conflicts", state="open")
    stage.check(left["count"] == 0, "the conflict closed in the same transaction")


async def expire(stage: Stage, dana: Agent) -> None:
    stage.act("A date passes: the critic leaves it, a call settles it")
    past = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await dana.call("evolve_knowledge", operations=[patch("water", valid_until=past)])

    async def queued() -> dict[str, Any] | None:
        status = await dana.call("runtime_status")
        waiting = [task for task in status["queues"]["outbox"] if task["task_type"] == "temporal_conflict"]
        return {"tasks": waiting, **status} if waiting else None

    found, _ = await until(queued, 5.0)
    stage.check(found is not None, "its task waits: by default dates are left to a person")
    if found is not None:
        rows = [(a["name"], a["state"], a["task_types"], a["llm"]) for a in found["agents"]]
        stage.table(("agent", "state", "works on", "model"), rows, "Agents in runtime_status")
    done = await dana.call(
        "resolve_temporal_conflict", object_id="water", action="bump", extend_by_days=90, commit=True
    )
    stage.check(
        done["new_valid_until"] > done["previous_valid_until"],
        f"extended to {done['new_valid_until']} by a call",
    )


async def stop(stage: Stage, dana: Agent, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    code = await anyio.to_thread.run_sync(process.wait, 6)
    left = (await dana.call("runtime_status"))["agents"]
    stage.check(code == 0 and not left, "SIGTERM ends the critic cleanly")


async def tell(stage: Stage, database: Path) -> None:
    """What happened to each conflict, from the journal alone."""
    from cks_runtime import ConflictClosed, Runtime, RuntimeConfig
    from cks_runtime.model.events import ConflictRaised

    story: dict[str, list[Any]] = {}
    async with Runtime.open(RuntimeConfig(db_path=str(database))) as rt:
        async for event in rt.journal.replay(since=0):
            if isinstance(event, ConflictRaised):
                kind = event.kind.removesuffix("Detected")
                story[event.record_id] = [short(event.record_id), kind, event.seq, None, None]
            elif isinstance(event, ConflictClosed):
                story[event.record_id][3:] = [event.seq, event.how]
    stage.table(
        ("conflict", "kind", "raised: event", "closed: event", "how"), story.values(), "From the journal"
    )
    stage.check(
        len(story) >= 2 and all(row[4] == "resolved" for row in story.values()),
        "every conflict that was raised is resolved",
    )


@contextmanager
def critic(database: Path, model: StandIn) -> Iterator[subprocess.Popen[bytes]]:
    """A `cks-critic-agent` process on the database, its log beside it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CKS_")}
    environment |= {
        "CKS_MCP_DB_PATH": str(database),
        "CKS_LLM_PROVIDER": "ollama",
        "CKS_OLLAMA_HOST": model.url,
        "CKS_CRITIC_POLL_INTERVAL": "0.5",
    }
    with open(database.parent / "critic.log", "ab") as log:
        process = subprocess.Popen(
            [str(PROGRAMS / "cks-critic-agent")], env=environment, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)
