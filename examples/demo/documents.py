"""An act about documents: writers who are faster and slower than each other, and nobody's text is lost."""

from __future__ import annotations

from typing import Any

from examples.demo.stage import Agent, Stage, agent

PATH = "/team/observing-plan.md"
PLAN = """\
# Observing plan

## Monday
- Pluto, 2 h
- Eris, 1 h

## Tuesday
- Ceres, 1 h

## Notes
Bring the large telescope.
"""


async def play(stage: Stage) -> None:
    """Three writers on one document, and a fourth that slips in between."""
    database = stage.folder / "documents.db"
    async with agent("ada", database) as ada, agent("ben", database) as ben, agent("cleo", database) as cleo:
        stage.act("Three writers on one document")
        made = await ada.call("mark_publish", path=PATH, body=PLAN, expected_version=0)
        stage.say(f"Ada publishes {PATH} as version {made['version']}; all three begin from it.")
        await disjoint(stage, ada, ben)
        await overlapping(stage, ada, cleo)
        await slip_in(stage, ada, ben, cleo)
        chain = await cleo.call("mark_versions", path=PATH)
        stage.table(
            ("version", "author", "hash", "previous"),
            [
                (v["version"], v["author"].split("@")[0], v["hash"][:16], (v["previous_hash"] or "")[:16])
                for v in chain["versions"]
            ],
            "The chain of versions, newest first",
        )
        stage.check(chain["chain_valid"], "every body and every link of the chain is verified")


async def disjoint(stage: Stage, ada: Agent, ben: Agent) -> None:
    ours = PLAN.replace("- Pluto, 2 h", "- Pluto, 3 h")
    theirs = PLAN.replace("- Ceres, 1 h", "- Ceres, 1 h\n- Vesta, 1 h")
    await ada.call("mark_publish", path=PATH, body=ours, expected_version=1)
    lost, candidate = await publish(ben, theirs, 1)
    stage.check(
        lost["status"] == "merge-candidate", "Ben loses the race and gets a merge candidate, not an error"
    )
    stage.check(not lost["has_markers"], "the edits do not touch each other: no markers")
    stage.check("Pluto, 3 h" in candidate and "Vesta" in candidate, "both edits are in the candidate")
    done, _ = await publish(ben, candidate, lost["publish_at_version"])
    stage.check(done["status"] == "ok" and done["version"] == 3, "reviewed by Ben and published as version 3")


async def overlapping(stage: Stage, ada: Agent, cleo: Agent) -> None:
    text = await fetch(ada)
    await publish(ada, text.replace("- Eris, 1 h", "- Eris, 2 h"), 3)
    lost, candidate = await publish(cleo, text.replace("- Eris, 1 h", "- Eris, 30 min"), 3)
    stage.check(lost["has_markers"], "Cleo and Ada changed one line: the candidate carries markers")
    stage.say("")
    for line in candidate.splitlines()[2:11]:
        stage.say(f"  │ {line}")
    stage.check(
        lost["current_version"] == 4 and "<<<<<<< ours" in candidate,
        "nothing was published: the head is still Ada's",
    )
    settled = []
    for line in candidate.splitlines(keepends=True):
        if line.startswith(("<<<<<<<", "=======", ">>>>>>>")) or "30 min" in line:
            continue
        settled.append(line.replace("Eris, 2 h", "Eris, 90 min"))
    done, _ = await publish(cleo, "".join(settled), lost["publish_at_version"])
    stage.check(done["status"] == "ok", "Cleo decides, and publishes what she decided")


async def slip_in(stage: Stage, ada: Agent, ben: Agent, cleo: Agent) -> None:
    text = await fetch(ada)
    await publish(ada, text.replace("# Observing plan", "# Observing plan, week 1"), 5)
    first, candidate = await publish(ben, text + "Check the weather.\n", 5)
    await cleo.call("mark_append", path=PATH, body="Ask for a second dome.")
    again, second = await publish(ben, candidate, first["publish_at_version"])
    stage.check(again["status"] == "merge-candidate", "a fourth writer slips in: Ben gets another candidate")
    done, _ = await publish(ben, resolve_both(second), again["publish_at_version"])
    final = await fetch(ben)
    kept = [part in final for part in ("week 1", "Check the weather.", "Ask for a second dome.")]
    stage.check(done["status"] == "ok" and all(kept), "the final text has every line that anybody published")


async def publish(who: Agent, body: str, expected_version: int) -> tuple[dict[str, Any], str]:
    """The structured answer, and the body of a candidate."""
    sent = {"path": PATH, "body": body, "expected_version": expected_version, "author": who.name}
    result = await who.client.call_tool("mark_publish", sent)
    text = "".join(getattr(part, "text", "") for part in result.content)
    return dict(result.structured_content or {}), text.partition("\n\n")[2]


async def fetch(who: Agent) -> str:
    """The body of the head."""
    result = await who.client.call_tool("mark_fetch", {"path": PATH})
    text = "".join(getattr(part, "text", "") for part in result.content)
    return text.partition("\n\n")[2]


def resolve_both(candidate: str) -> str:
    """Both sides of every conflict, one after the other."""
    lines = candidate.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("<<<<<<<", "=======", ">>>>>>>")))
