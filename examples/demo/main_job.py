"""Act one: two agents share one body of knowledge on one machine."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from examples.demo.stage import EXAMPLES, Agent, Stage, agent, patch, short, step, until

SOLAR_SYSTEM = EXAMPLES / "solar-system.json"


async def play(stage: Stage) -> None:
    """The main job, from loading to a restart."""
    database = stage.folder / "knowledge.db"
    async with agent("ada", database) as ada, agent("ben", database) as ben:
        await load(stage, ada, ben)
        await share(stage, ada, ben)
        branch = await diverge(stage, ada, ben)
        await clash(stage, ada, ben, branch)
        await compare(stage, ben)
        await disagree(stage, ada, ben)
        await expire(stage, ada, ben)
        await replay(stage, database)
        before = await ada.call("export_session")
    await restart(stage, database, before)


async def load(stage: Stage, ada: Agent, ben: Agent) -> None:
    stage.act("Two cks-mcp processes, one database: load the solar system")
    knowledge = json.loads(SOLAR_SYSTEM.read_text(encoding="utf-8"))
    began = time.monotonic()
    loaded = await ada.call("evolve_knowledge", knowledge=knowledge, message="Load the solar system")
    stage.say(
        f"Ada loads {loaded['changed']['added']['count']} objects through MCP in {time.monotonic() - began:.2f} s."
    )
    seen = await ben.call("explain_knowledge")
    kinds = sorted(seen["counts"]["by_type"].items(), key=lambda entry: -entry[1])[:8]
    stage.table(("type", "objects"), kinds, "What Ben sees (largest kinds)")
    stage.check(
        seen["counts"]["objects"] == len(knowledge["objects"]), "Ben sees every object that Ada loaded"
    )
    stage.check(seen["head"]["version_id"] == loaded["version_id"], "both stand on the same version")
    pluto = await ben.call("explain_knowledge", object_id="claim-pluto-dwarf-planet")
    stage.table(
        ("step", "conclusion", "premises", "confidence"),
        [
            (s["step_id"], s["conclusion"], s["premises"], s["confidence"])
            for s in pluto["premise_chain"]["steps"]
        ],
        "Why Pluto is a dwarf planet, down to base facts",
    )
    found = await ben.call("search_knowledge", query="cleared its neighbourhood", limit=3)
    stage.check(found["hits"], f"full text finds {[hit['object_id'] for hit in found['hits']]}")


async def share(stage: Stage, ada: Agent, ben: Agent) -> None:
    stage.act("Edits by both, on one session, at once")
    await ada.call("evolve_knowledge", operations=[patch("pluto", note="visited by New Horizons")])
    await ben.call("evolve_knowledge", operations=[patch("eris", note="more massive than Pluto")])
    head = await ada.call("explain_knowledge")
    pluto = await ben.call("explain_knowledge", object_id="pluto")
    eris = await ada.call("explain_knowledge", object_id="eris")
    stage.check(
        "note" in pluto["object"]["structure"] and "note" in eris["object"]["structure"],
        "each sees the other's edit at once",
    )
    stale = await ada.try_call(
        "evolve_knowledge", operations=[patch("ceres", note="x")], expected_head=head["head"]["parents"][0]
    )
    stage.check(stale.get("code") == "head_moved", "a write that expects an old head is refused: head_moved")


async def diverge(stage: Stage, ada: Agent, ben: Agent) -> str:
    stage.act("A branch, and a merge by itself where fields differ")
    branch = await ada.call("create_branch", title="New measurements")
    name = str(branch["session_id"])
    await ada.call("evolve_knowledge", session_id=name, operations=[patch("pluto", albedo=0.52)])
    await ben.call("evolve_knowledge", operations=[patch("pluto", moons_known=5)])
    merged = await ben.call("merge_branch", target_session_id="main", source_session_id=name)
    stage.check(merged["merged"], "different fields of one object merge by themselves")
    pluto = (await ada.call("explain_knowledge", object_id="pluto"))["object"]["structure"]
    stage.table(
        ("field", "value", "written by"),
        [
            ("albedo", pluto.get("albedo"), "Ada, on the branch"),
            ("moons_known", pluto.get("moons_known"), "Ben, on main"),
        ],
    )
    stage.check(pluto.get("albedo") == 0.52 and pluto.get("moons_known") == 5, "both values are in main")
    again = await ben.call("merge_branch", target_session_id="main", source_session_id=name)
    stage.check(again["no_op"], "the same merge again changes nothing")
    return name


async def clash(stage: Stage, ada: Agent, ben: Agent, branch: str) -> None:
    stage.act("A conflict where they clash, settled by resolutions")
    await ada.call("evolve_knowledge", session_id=branch, operations=[patch("pluto", radius_km=1189)])
    await ben.call("evolve_knowledge", operations=[patch("pluto", radius_km=1187)])
    head = (await ben.call("explain_knowledge"))["head"]["version_id"]
    refused = await ben.call("merge_branch", target_session_id="main", source_session_id=branch)
    stage.table(
        ("object", "kind", "field", "base", "main (branch_a)", "branch (branch_b)"),
        [_conflict_row(entry) for entry in refused["conflicts"]],
        "What does not merge",
    )
    stage.check(not refused["merged"] and len(refused["conflicts"]) == 1, "one conflict, on one field")
    now = (await ben.call("explain_knowledge"))["head"]["version_id"]
    stage.check(now == head, "the target is untouched")
    settled = await ben.call(
        "merge_branch", target_session_id="main", source_session_id=branch, resolutions={"pluto": "branch_b"}
    )
    pluto = (await ada.call("explain_knowledge", object_id="pluto"))["object"]["structure"]
    stage.check(
        settled["merged"] and pluto["radius_km"] == 1189, "settled by resolutions: Ada's radius stands"
    )


def _conflict_row(entry: dict[str, Any]) -> tuple[object, ...]:
    field = entry["fields"][0]
    return (
        entry["object_id"],
        entry["kind"],
        field,
        entry["base"]["structure"].get(field),
        entry["target_diff"]["changes"][field]["to"],
        entry["source_diff"]["changes"][field]["to"],
    )


async def compare(stage: Stage, ben: Agent) -> None:
    stage.act("Compare two versions")
    history = await ben.call("list_versions", limit=8)
    stage.table(
        ("version", "by", "message"),
        [(short(v["version_id"]), v["author"].split("@")[0], v["message"]) for v in history["versions"]],
        "The history of main, newest first",
    )
    first = history["versions"][-1]["version_id"]
    diff = await ben.call("compare_versions", **{"from": first})
    rows = [
        (entry["object_id"], field, change.get("from"), change.get("to"))
        for entry in diff["objects"]
        for field, change in entry["changes"].items()
    ]
    stage.table(("object", "field", "from", "to"), rows, f"From {short(first)} to the head")
    stage.check(
        diff["changed"]["updated"]["count"] == len(diff["objects"]) > 0,
        "the difference is told field by field",
    )


async def disagree(stage: Stage, ada: Agent, ben: Agent) -> None:
    stage.act("Disagreeing reasoning and a replaced premise reach list_inference_conflicts")
    claim = "claim-pluto-planet"
    old = await ada.call("explain_knowledge", object_id=claim)
    stage.table(
        ("active step", "confidence", "why"),
        [(s["step_id"], s["confidence"], s["justification"]) for s in old["active_steps"]],
    )
    await ada.call(
        "evolve_knowledge",
        operations=[
            step(
                "step-pluto-geophysical",
                "Round worlds are planets",
                ["pluto"],
                claim,
                0.8,
                "A geophysical definition.",
            ),
            step(
                "step-pluto-cleared-2",
                "Pluto has not cleared its zone",
                ["pluto"],
                "claim-pluto-cleared",
                0.03,
                "A newer catalogue of its neighbours.",
                "step-pluto-cleared",
            ),
        ],
    )

    async def queued() -> dict[str, Any] | None:
        found = await ben.call("list_inference_conflicts", peek=True)
        return found if found["count"] else None

    peeked, took = await until(queued, 5.0)
    stage.check(peeked is not None and took < 2.0, f"queued {took:.2f} s after the commit (promised: 2 s)")
    if peeked is None:
        return
    diagnostics = [d for conflict in peeked["conflicts"] for d in conflict["diagnostics"]]
    stage.table(
        ("code", "message"),
        [(d["code"].removeprefix("CKS-EXT-"), d["message"]) for d in diagnostics],
        "Ben peeks",
    )
    codes = {d["code"] for d in diagnostics}
    stage.check(
        {"CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT", "CKS-EXT-STALE-PREMISE"} <= codes,
        "both kinds are found: disagreeing confidence and a replaced premise",
    )
    drained = await ada.call("list_inference_conflicts")
    left = await ben.call("list_inference_conflicts")
    stage.check(
        drained["count"] == peeked["count"] and left["count"] == 0,
        "Ada drains what Ben peeked; nobody gets it twice",
    )
    still = await ben.call("list_inference_conflicts", state="open")
    stage.check(still["count"] == peeked["count"], "the conflict itself stays open until it is resolved")


async def expire(stage: Stage, ada: Agent, ben: Agent) -> None:
    stage.act("A fact expires while nobody edits")
    due = datetime.now(UTC) + timedelta(seconds=2.5)
    stamp = due.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    await ada.call("evolve_knowledge", operations=[patch("probe-new-horizons", valid_until=stamp)])

    async def raised() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(await ben.resource("cks://conflicts/temporal"))
        return found if found["count"] else None

    found, _ = await until(raised, 8.0)
    late = (datetime.now(UTC) - due).total_seconds()
    stage.check(found is not None and 0 <= late < 2.0, f"raised {late:.2f} s after its time (promised: 2 s)")
    if found is not None:
        stage.table(
            ("object", "message"),
            [(c["object_ids"], c["diagnostics"][0]["message"]) for c in found["conflicts"]],
            "cks://conflicts/temporal",
        )


async def replay(stage: Stage, database: Path) -> None:
    stage.act("Replay the journal")
    from cks_runtime import Runtime, RuntimeConfig

    async with Runtime.open(RuntimeConfig(db_path=str(database))) as rt:
        first = [event async for event in rt.journal.replay(since=0)]
        second = [event async for event in rt.journal.replay(since=0)]
        async with rt.store.reader() as reader:
            tasks = await reader.fetch(
                "SELECT task_type, status, session_id FROM cks_outbox_tasks ORDER BY task_type"
            )
    rows = [
        (e.seq, e.kind, e.session_id, getattr(e, "version_id", getattr(e, "how", ""))[:10]) for e in first
    ]
    stage.table(
        ("seq", "event", "session", "version / how"), rows[-12:], f"The last 12 of {len(rows)} events"
    )
    stage.check(
        first == second and [e.seq for e in first] == sorted(e.seq for e in first),
        "replay gives the same events in the same order",
    )
    stage.table(("task type", "status", "session"), tasks, "The outbox")
    kinds = {task[0] for task in tasks}
    stage.check(
        {"inference_conflict", "temporal_conflict"} <= kinds, "each conflict has its task in the outbox"
    )


async def restart(stage: Stage, database: Path, before: dict[str, Any]) -> None:
    stage.act("A restart keeps all of it")
    async with agent("cleo", database) as cleo:
        after = await cleo.call("export_session")
        stage.check(after == before, "every object and the head are as they were")
        still = await cleo.call("list_inference_conflicts", state="open")
        stage.check(still["count"] >= 1, "open conflicts are still open")
        again = await cleo.call("list_inference_conflicts")
        stage.check(again["count"] == 0, "drained notices do not come back")
