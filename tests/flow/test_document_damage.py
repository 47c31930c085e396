"""Documents in a damaged database: tampering shows in the chain, and what is sound stays usable."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from document_building import PLAN, made, runtime, text

from cks_runtime.flow.check import check_database
from cks_runtime.model.errors import DamagedBlob


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TAMPERINGS = {
    "a body was changed": (
        "UPDATE document_bodies SET data = 'forged' WHERE body_no = 2",
        "version 2: its body does not match its content hash",
    ),
    "a body is gone": (
        "DELETE FROM document_bodies WHERE body_no = 3",
        "version 3: its body is missing",
    ),
    "an author was changed": (
        "UPDATE document_versions SET author = 'eve' WHERE version = 2",
        "version 2 was changed: its hash does not match its fields",
    ),
    "a time was changed": (
        "UPDATE document_versions SET at_ms = 0 WHERE version = 3",
        "version 3 was changed: its hash does not match its fields",
    ),
    "a content hash was changed": (
        "UPDATE document_versions SET content = (SELECT hash FROM document_bodies WHERE body_no = 1)"
        " WHERE version = 3",
        "version 3 was changed: its hash does not match its fields",
    ),
    "a version is gone": (
        "DELETE FROM document_versions WHERE version = 2",
        "version 2 is missing",
    ),
    "the first version is gone": (
        "DELETE FROM document_versions WHERE version = 1 AND path = '/team/plan.md'",
        "version 1 is missing",
    ),
    "the newest version is gone": (
        "DELETE FROM document_versions WHERE version = 4",
        "version 4 is missing",
    ),
    "two versions changed places": (
        "UPDATE document_versions SET version = CASE version WHEN 2 THEN 30 ELSE 2 END WHERE version IN (2, 3);"
        "UPDATE document_versions SET version = 3 WHERE version = 30",
        "version 2 does not name the hash of version 1",
    ),
    "a document was moved": (
        "UPDATE document_versions SET path = '/other' WHERE path = '/team/plan.md';"
        "UPDATE documents SET path = '/other' WHERE path = '/team/plan.md'",
        "version 1 was changed: its hash does not match its fields",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_tampering_shows(tmp_path: Path, name: str) -> None:
    change, error = TAMPERINGS[name]
    db_path = str(tmp_path / "cks.db")
    async with runtime(db_path) as rt:
        for number in range(4):
            await rt.documents.publish(PLAN, f"text {number}", number)
        await rt.documents.publish("/sound.md", "sound", 0)
        with closing(sqlite3.connect(db_path)) as conn:
            conn.executescript(change.replace("'forged'", "CAST('forged' AS BLOB)"))
        path = "/other" if "moved" in name else PLAN
        chain = await rt.documents.versions(path)
        assert (chain.current, chain.error) == (4, error)
        assert (await rt.documents.versions("/sound.md")).error is None
    report = await check_database(db_path)
    assert report.problems == [f"document {path}: {error}"] and report.documents == 2


async def test_a_damaged_body_is_an_error_of_its_own_and_heals(tmp_path: Path) -> None:
    db_path = str(tmp_path / "cks.db")
    async with runtime(db_path) as rt:
        await rt.documents.publish(PLAN, "one", 0)
        await rt.documents.publish(PLAN, "two", 1)
        with closing(sqlite3.connect(db_path)) as conn:
            conn.executescript("UPDATE document_bodies SET data = x'00' WHERE body_no = 2")
        with pytest.raises(DamagedBlob, match="version 2 does not match"):
            await rt.documents.fetch(PLAN)
        with pytest.raises(DamagedBlob):
            await rt.documents.append(PLAN, "x")
        assert await text(rt.documents, f"{PLAN}/v1") == "one"
        made(await rt.documents.publish(PLAN, "three", 2))
        made(await rt.documents.publish("/copy.md", "two", 0))
        assert await text(rt.documents, f"{PLAN}/v2") == "two"


async def test_a_head_whose_row_is_gone_stops_writes_to_it_alone(tmp_path: Path) -> None:
    db_path = str(tmp_path / "cks.db")
    async with runtime(db_path) as rt:
        await rt.documents.publish(PLAN, "one", 0)
        with closing(sqlite3.connect(db_path)) as conn:
            conn.executescript("DELETE FROM document_versions")
        for call in (rt.documents.fetch(PLAN), rt.documents.publish(PLAN, "x", 0)):
            with pytest.raises(DamagedBlob, match="missing"):
                await call
        made(await rt.documents.publish("/other.md", "x", 0))
