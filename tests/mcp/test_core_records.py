"""Verification records through real servers: signed ones are shown and expire, others are refused on every path."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from serving import Agent, add, remove, serving, update

from cks_runtime.config import RuntimeConfig
from cks_runtime.model.knowledge import object_from_json
from cks_runtime.model.records import Keyring, record_operations
from cks_runtime.runtime import Runtime

SECRET = "correct-horse-battery-staple-0123456789"
TTL_S = 1000
EVERYTHING = ["provenance", "temporal", "inference"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def db_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "cks.db"


@pytest.fixture(scope="module")
async def keys(db_path: Path) -> Keyring:
    async with Runtime.open(RuntimeConfig(db_path=str(db_path), record_secret=SECRET.encode())) as rt:
        return rt.keys


@pytest.fixture(scope="module")
async def agent(db_path: Path, keys: Keyring) -> AsyncIterator[Agent]:
    settings = {"CKS_MCP_SECRET": SECRET, "CKS_PROVENANCE_TTL_SECONDS": str(TTL_S)}
    async with serving(db_path, settings=settings) as agent:
        yield agent


def checked(keys: Keyring, subject: dict[str, Any], age_s: float = 0, record_id: str = "v") -> list[Any]:
    """The operations that record a check of the subject, `age_s` ago."""
    at_ms = int((time.time() - age_s) * 1000)
    return record_operations(
        record_id,
        f"{record_id}-link",
        object_from_json(subject),
        "https://example.org/sun",
        "https://example.org/sun",
        200,
        at_ms,
        "automated_http_check",
        keys,
    )


async def test_a_signed_record_is_shown_until_it_or_its_subject_changes(agent: Agent, keys: Keyring) -> None:
    name = await agent.session(add("sun", mass=1))
    told = await agent.evolve(name, *checked(keys, await agent.object(name, "sun")), extensions=EVERYTHING)
    assert told["changed"]["added"]["ids"] == ["v", "v-link"] and told["diagnostics"] == []
    (shown,) = (await agent.ok("explain_knowledge", session_id=name, object_id="sun"))["verification"]
    assert shown["record_id"] == "v" and shown["url"] == "https://example.org/sun"
    assert (shown["http_status"], shown["checked_via"]) == (200, "automated_http_check")
    assert (shown["superseded"], shown["expired"], shown["subject_changed"]) == (False, False, False)
    await agent.evolve(name, update("sun", mass=2))
    (shown,) = (await agent.ok("explain_knowledge", session_id=name, object_id="sun"))["verification"]
    assert shown["subject_changed"] is True
    told = await agent.evolve(name, remove("sun"))
    assert told["cascade_removed_records"] == ["v"] and told["cascade_removed_relations"] == ["v-link"]


async def test_an_old_check_expires(agent: Agent, keys: Keyring) -> None:
    name = await agent.session(add("sun"))
    old = checked(keys, await agent.object(name, "sun"), age_s=TTL_S + 60)
    (warned,) = (await agent.evolve(name, *old, extensions=["provenance"]))["diagnostics"]
    assert warned["code"] == "CKS-EXT-PROVENANCE-EXPIRED" and warned["severity"] == "WARNING"
    assert (warned["record_id"], warned["subject_id"]) == ("v", "sun")
    assert warned["source_url"] == "https://example.org/sun" and warned["checked_at"]
    told = await agent.until("explain_knowledge", lambda told: told["open_conflicts"] != [], session_id=name)
    assert [c["kind"] for c in told["open_conflicts"]] == ["provenance"]
    assert told["freshness"]["verifications_expired"] == 1
    records = (await agent.resource("cks://conflicts/provenance"))["conflicts"]
    assert name in [record["session_id"] for record in records]
    fresh = checked(keys, await agent.object(name, "sun"), record_id="v2")
    await agent.evolve(name, *fresh, update("v", superseded_by="v2"))
    await agent.until("explain_knowledge", lambda told: told["open_conflicts"] == [], session_id=name)


async def test_whatever_is_not_signed_for_its_subject_is_refused(agent: Agent, keys: Keyring) -> None:
    name = await agent.session(add("sun", mass=1), add("moon"))
    good = checked(keys, await agent.object(name, "sun"))
    record, link = good
    structure = record["structure"]

    def altered(**changes: Any) -> dict[str, Any]:
        return {**record, "structure": {**structure, **changes}}

    wrong: list[list[Any]] = [
        [record],  # no link
        [altered(url="https://example.org/other"), link],
        [altered(checked_at="2999-01-01T00:00:00Z"), link],
        [altered(signature="0" * 64), link],
        [altered(key_id="another"), link],
        [altered(http_status=404), link],
        [altered(subject_id="moon"), {**link, "participants": ["moon", "v"]}],
        [{**record, "identity": {**record["identity"], "id": "w"}}, {**link, "participants": ["sun", "w"]}],
        [update("sun", mass=2), *good],  # checked as it was before
        [*good, {**link, "identity": {**link["identity"], "id": "twice"}}],
        [*good, {"op": "remove_relation", "relation_id": "v-link"}],
    ]
    for operations in wrong:
        error = await agent.refused(
            "evolve_knowledge", "invalid_knowledge", session_id=name, operations=operations
        )
        codes = {diagnostic["code"] for diagnostic in error["details"]["diagnostics"]}
        assert codes <= {"CKS-MCP-UNVERIFIED-PROVENANCE", "CKS-EXT-VERIFICATION-RECORD"}, codes
    await agent.evolve(name, *good)
    for operations in (
        [update("v", url="https://example.org/other")],
        [update("v-link", participants=["moon", "v"])],
        [{"op": "remove_object", "object_id": "v-link"}],
    ):
        await agent.refused("evolve_knowledge", "invalid_knowledge", session_id=name, operations=operations)
    assert (await agent.ok("validate_knowledge", session_id=name))["valid"] is True


async def test_records_travel_by_export_only_between_those_that_share_the_key(
    agent: Agent, keys: Keyring, tmp_path: Path
) -> None:
    name = await agent.session(add("sun"))
    await agent.evolve(name, *checked(keys, await agent.object(name, "sun")))
    exported = await agent.export(name)
    assert (await agent.ok("validate_knowledge", knowledge=exported))["valid"] is True
    await agent.ok("evolve_knowledge", session_id="imported", create=True, knowledge=exported)
    async with serving(tmp_path / "stranger.db") as stranger:
        told = await stranger.ok("validate_knowledge", knowledge=exported)
        assert told["valid"] is False
        assert {d["code"] for d in told["diagnostics"]} == {"CKS-MCP-UNVERIFIED-PROVENANCE"}
        await stranger.refused("evolve_knowledge", "invalid_knowledge", knowledge=exported)
        assert (await stranger.ok("explain_knowledge"))["counts"]["objects"] == 0
