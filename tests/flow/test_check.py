"""Reading a whole database: a sound one has no problems, and each damage is named, whatever else is damaged."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from conftest import FakeClock, OpenRuntime
from making import branch, evolve, merged, patch, prove, step, thing, things

from cks_runtime.flow.check import check_database
from cks_runtime.model.errors import CksError, StoreUnusable
from cks_runtime.runtime import Runtime
from sweepers import SweeperTeam


@pytest.fixture
async def filled(open_rt: OpenRuntime, clock: FakeClock, tmp_path: Path) -> Path:
    """A database with something of everything."""
    async with open_rt() as rt:
        await evolve(
            rt, "s", *things(*(f"o{n}" for n in range(50))), thing("c", valid_until="2020-01-01T00:00:00Z")
        )
        await evolve(rt, "s", step("i", "c", confidence=0.1), step("j", "c", confidence=0.9))
        await prove(rt, "s", "c", "proof", clock())
        other = await branch(rt)
        await evolve(rt, other, patch("o1", x=1))
        await evolve(rt, "s", patch("o2", x=1))
        await merged(rt, "s", other)
        await evolve(rt, "empty", thing("gone"))
        await evolve(rt, "empty", {"op": "remove_object", "object_id": "gone"})
        await SweeperTeam.standard(rt).run_now()
        await rt.documents.publish("/plan.md", "text\n", 0, "ann")
    return tmp_path / "cks.db"


def change(path: Path, sql: str, *params: object) -> None:
    conn = sqlite3.connect(path)
    with conn:
        assert conn.execute(sql, params).rowcount > 0
    conn.close()


def ask(path: Path, sql: str) -> list[tuple[bytes, ...]]:
    conn = sqlite3.connect(path)
    found = conn.execute(sql).fetchall()
    conn.close()
    return found


async def test_a_sound_database_has_no_problems(filled: Path) -> None:
    told: list[tuple[int, int]] = []
    report = await check_database(str(filled), lambda done, total: told.append((done, total)))
    assert report.problems == []
    assert (report.sessions, report.documents) == (3, 1) and report.versions >= 8
    assert told[-1] == (report.blobs, report.blobs) and report.blobs > 60


async def test_a_database_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(StoreUnusable):
        await check_database(str(path))


async def test_every_sort_of_damage_is_named(filled: Path) -> None:
    objects = ask(filled, "SELECT hash FROM blobs WHERE kind = 'object' ORDER BY blob_no")
    (bad,), (gone,) = objects[3], objects[4]
    ((old,),) = ask(filled, "SELECT id FROM versions ORDER BY version_no LIMIT 1 OFFSET 2")
    ((record,),) = ask(filled, "SELECT record_id FROM conflicts WHERE kind = 'temporal'")
    change(filled, "UPDATE blobs SET data = x'7b7d' WHERE hash = ?", bad)
    change(filled, "DELETE FROM blobs WHERE hash = ?", gone)
    change(filled, "UPDATE versions SET generation = 77 WHERE id = ?", old)
    change(filled, "UPDATE sessions SET root = head WHERE session_id = 'empty'")
    change(filled, "UPDATE conflicts SET body = 'torn' WHERE record_id = ?", record)
    change(filled, "UPDATE journal SET body = 'torn' WHERE seq = 2")
    problems = (await check_database(str(filled))).problems
    for hint in (bad.hex(), gone.hex(), old.hex(), "session empty", str(record), "event 2"):
        assert any(hint in problem for problem in problems), (hint, problems)


async def test_a_version_of_the_past_is_read_too(filled: Path) -> None:
    ((root,),) = ask(filled, "SELECT hash FROM blobs WHERE kind = 'node' ORDER BY blob_no LIMIT 1")
    change(filled, "DELETE FROM blobs WHERE hash = ?", root)
    assert any(root.hex() in problem for problem in (await check_database(str(filled))).problems)


async def test_a_damaged_conflict_does_not_hide_the_others(open_rt: OpenRuntime, filled: Path) -> None:
    ((record,),) = ask(filled, "SELECT record_id FROM conflicts WHERE kind = 'inference'")
    change(filled, "UPDATE conflicts SET body = '{' WHERE record_id = ?", record)
    change(filled, "UPDATE claims SET body = '{' WHERE record_id = ?", record)
    async with open_rt() as rt:
        await evolve(rt, "t", thing("c"), step("i", "c", confidence=0.1), step("j", "c", confidence=0.9))
        await evolve(rt, "s", patch("i", confidence=0.2))
        await SweeperTeam.standard(rt).run_now()
        taken = await rt.inboxes["inference"].drain()
        assert {row.session_id for row in taken.records} == {"s", "t"}
        (closed,) = await rt.conflicts.page("inference", "closed")
        assert closed.record_id == record and "unreadable" in closed.body


def flip(good: Path, path: Path, rng: random.Random) -> Path:
    """A copy with one bit turned over, anywhere behind the header."""
    content = bytearray(good.read_bytes())
    bit = rng.randrange(100 * 8, len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))
    return path


async def test_flipped_bits_anywhere_are_found_or_harmless(
    open_rt: OpenRuntime, filled: Path, tmp_path: Path
) -> None:
    """Promise 9, at its fast size: whatever is hit, the program starts or refuses, and no call ends in a crash."""
    rng = random.Random(90)
    whole = await _reading(open_rt, filled)
    hit = 0
    for number in range(40):
        path = flip(filled, tmp_path / f"flipped-{number}.db", rng)
        try:
            report = await check_database(str(path))
        except StoreUnusable as error:
            assert str(path) in error.message
            hit += 1
            continue
        try:
            read = await _reading(open_rt, path)
        except StoreUnusable as error:
            assert str(path) in error.message and report.problems
            hit += 1
            continue
        hit += bool(report.problems)
        if read != whole:
            assert report.problems, "knowledge that reads otherwise is reported"
    assert hit > 5


async def _reading(open_rt: OpenRuntime, path: Path) -> list[object]:
    """What the sessions say, or the errors that stand there instead; nothing else may crash either."""
    async with open_rt(db_path=str(path)) as rt:
        found = [await _or_error(_session(rt, session_id)) for session_id in ("s", "empty", "nobody")]
        for kind in ("inference", "temporal"):
            await _or_error(rt.conflicts.page(kind, "open"))
        await _or_error(rt.search.find("s", "o2", 5))
        await _or_error(SweeperTeam.standard(rt).run_now())
        await _or_error(evolve(rt, f"new-{path.stem}", thing("a")))
    return found


async def _session(rt: Runtime, session_id: str) -> object:
    row, graph = await rt.sessions.head(session_id)
    history = await rt.sessions.history([row.head], 50)
    return [row.head, [graph[id].as_json() for id in sorted(graph.ids())], [v.id for v in history.versions]]


async def _or_error(work: object) -> object:
    try:
        return await work
    except CksError as error:
        return error.message
