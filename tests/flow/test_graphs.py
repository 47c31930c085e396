"""Reading graphs through the caches: many at once, from both bodies, and beside damaged blobs."""

from __future__ import annotations

import random

import anyio
import pytest
from conftest import OpenRuntime
from making import body, evolve, patch, relation, remove, thing, things

from cks_runtime.flow.graphs import Graphs, Lru
from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import CksError, DamagedBlob, VersionNotFound
from cks_runtime.model.graph import Graph
from cks_runtime.runtime import Runtime

MANY = 400


async def damage(
    rt: Runtime, blob_hash: Hash, sql: str = "UPDATE blobs SET data = x'00' WHERE hash = ?"
) -> None:
    async with rt.store.unit() as unit:
        await unit.execute(sql, blob_hash)


def objects(graph: Graph) -> dict[str, Hash]:
    return {id: graph[id].hash for id in graph.ids()}


@pytest.mark.parametrize("db_path", ["", ":memory:"])
async def test_readers_and_writers_of_a_graph_that_nobody_has_read_yet(
    open_rt: OpenRuntime, db_path: str
) -> None:
    """Whoever waits for another's read holds no connection that the read needs."""
    settings = {"db_path": db_path} if db_path else {}
    async with open_rt(**settings) as rt:
        await rt.commits.put("s", [body(f"o{n}") for n in range(MANY)], create=True)
        rt.graphs.__init__(rt.store)  # as after a restart
        done: list[str] = []

        async def write(number: int) -> None:
            await evolve(rt, "s", thing(f"w{number}"))
            done.append(f"w{number}")

        async def read() -> None:
            await rt.sessions.head("s")

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                for number in range(8):
                    tasks.start_soon(write, number)
                    tasks.start_soon(read)
        _, graph = await rt.sessions.head("s")
        assert len(graph) == MANY + 8
        assert sorted(done) == [f"w{number}" for number in range(8)]


async def test_a_graph_is_the_same_by_way_of_any_other(open_rt: OpenRuntime) -> None:
    rng = random.Random(4)
    async with open_rt() as rt:
        await rt.commits.put("base", [body(f"o{n}") for n in range(2500)], create=True)
        for name in ("a", "b"):
            row = await rt.branches.create("base", title=name)
            ids = rng.sample(range(2500), 120)
            await evolve(rt, row.session_id, *(patch(f"o{n}", by=name) for n in ids))
        await evolve(rt, "small", *things("x", "y"))
        rows = await rt.sessions.page(None, "", 10)
        graphs = [await rt.graphs.graph(row.root) for row in rows]
        for graph in graphs:
            for like in graphs:
                fresh = Graphs(rt.store)
                loaded = await fresh.graph(graph.root, like=like)
                assert loaded == graph and objects(loaded) == objects(graph)
                assert loaded.types() == graph.types()


async def test_a_damaged_object_is_named_and_the_rest_works(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", *things(*(f"o{n}" for n in range(60))))
        _, graph = await rt.sessions.head("s")
        await damage(rt, graph["o7"].hash)
    async with open_rt() as rt:
        _, graph = await rt.sessions.head("s")
        assert len(graph) == len(graph.ids()) == 60
        with pytest.raises(DamagedBlob, match="o7"):
            graph.get("o7")
        assert graph["o8"].id == "o8"
        await evolve(rt, "s", thing("more"))
        await evolve(rt, "s", patch("o8", x=1))
        await evolve(rt, "s", remove("o7"))
        _, graph = await rt.sessions.head("s")
        assert "o7" not in graph and not graph.damaged and len(graph) == 60


async def test_a_damaged_object_can_be_replaced(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", *things("a", "b"), relation("r", "a", "b"))
        _, graph = await rt.sessions.head("s")
        await damage(rt, graph["a"].hash)
    async with open_rt() as rt:
        moved = await rt.commits.put("s", [body("a", x=1)])
        assert moved.after["a"].structure == {"x": 1}
        _, graph = await rt.sessions.head("s")
        assert not graph.damaged and len(graph) == 3


async def test_an_object_whose_row_is_gone_is_named_and_the_rest_works(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", *things("a", "b"))
        _, graph = await rt.sessions.head("s")
        await damage(rt, graph["a"].hash, "DELETE FROM blobs WHERE hash = ?")
    async with open_rt() as rt:
        _, graph = await rt.sessions.head("s")
        with pytest.raises(DamagedBlob, match="'a'"):
            graph.get("a")
        assert graph["b"].id == "b"


async def test_writing_the_same_object_again_repairs_it_for_every_process(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", *things("a", "b"))
        _, graph = await rt.sessions.head("s")
        await damage(rt, graph["a"].hash)
    async with open_rt() as reading, open_rt() as writing:
        _, graph = await reading.sessions.head("s")
        assert list(graph.damaged) == ["a"]
        await evolve(writing, "s", remove("a"))
        await evolve(writing, "s", thing("a"))
        _, graph = await reading.sessions.head("s")
        assert graph["a"].id == "a"


async def test_a_repair_is_seen_without_a_restart(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", *things("a", "b"))
        _, whole = await rt.sessions.head("s")
        await damage(rt, whole["a"].hash)
    async with open_rt() as rt:
        _, graph = await rt.sessions.head("s")
        assert list(graph.damaged) == ["a"]
        async with rt.store.unit() as unit:
            await unit.execute("UPDATE blobs SET data = ? WHERE hash = ?", whole["a"].blob(), whole["a"].hash)
        _, graph = await rt.sessions.head("s")
        assert not graph.damaged and objects(graph) == objects(whole)


async def test_a_damaged_node_is_an_error_of_that_session_only(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "bad", *things("a", "b"))
        await evolve(rt, "good", *things("c"))
        await damage(rt, (await rt.sessions.get("bad")).root)
    async with open_rt() as rt:
        root = (await rt.sessions.get("bad")).root
        with pytest.raises(DamagedBlob, match=root.hex()):
            await rt.sessions.head("bad")
        with pytest.raises(DamagedBlob, match=root.hex()):
            await evolve(rt, "bad", thing("d"))
        await evolve(rt, "good", thing("d"))
        assert {row.session_id for row in await rt.sessions.page(None, "", 10)} == {"bad", "good"}


async def test_a_flipped_bit_anywhere_in_the_blobs_names_what_it_hit(open_rt: OpenRuntime) -> None:
    """Promise 9, at its fast size: each bit is an error with a name, or hits what no head holds any more."""
    rng = random.Random(9)
    async with open_rt() as rt:
        await evolve(rt, "s", *things(*(f"o{n}" for n in range(80))))
        for n in range(20):
            await evolve(rt, "s", patch(f"o{n}", value=n))
        async with rt.store.reader() as reader:
            blobs = [(bytes(h), bytes(d)) for h, d in await reader.fetch("SELECT hash, data FROM blobs")]
        for key, data in rng.sample(blobs, 60):
            bit = rng.randrange(len(data) * 8)
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            await _put(rt, key, bytes(flipped))
            await _reads_or_names(rt, key)
            await _put(rt, key, data)
        _, graph = await rt.sessions.head("s")
        assert len(objects(graph)) == 80


async def _put(rt: Runtime, key: Hash, data: bytes) -> None:
    async with rt.store.unit() as unit:
        await unit.execute("UPDATE blobs SET data = ? WHERE hash = ?", data, key)


async def _reads_or_names(rt: Runtime, key: Hash) -> None:
    fresh = Graphs(rt.store)
    root = (await rt.sessions.get("s")).root
    try:
        graph = await fresh.graph(root)
    except DamagedBlob as error:
        assert key.hex() in error.message
        return
    for id, error in graph.damaged.items():
        assert id in error.message and key.hex() in str(error.details)
    assert len([id for id in graph.ids() if id not in graph.damaged]) >= 79


async def test_a_version_whose_row_is_gone_is_named(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        first = await evolve(rt, "s", thing("a"))
        await evolve(rt, "s", thing("b"))
        await damage(rt, first.version.id, "DELETE FROM versions WHERE id = ?")
    async with open_rt() as rt:
        row = await rt.sessions.get("s")
        with pytest.raises(CksError, match=first.version.id.hex()):
            await rt.sessions.history([row.head], 10)
        with pytest.raises(VersionNotFound, match=first.version.id.hex()):
            await rt.graphs.version(first.version.id)
        assert await rt.graphs.is_ancestor(row.head, row.head)


def test_a_cache_is_bounded_by_weight_and_forgets_the_least_recently_used() -> None:
    cache = Lru(10)
    for number in range(5):
        cache.put(bytes([number]), number, weight=3)
    assert [cache.get(bytes([number])) for number in range(5)] == [None, None, 2, 3, 4]
    assert cache.get(bytes([2])) == 2 and cache.newest() == 2
    cache.put(b"x", "x", weight=4)
    assert cache.get(bytes([3])) is None and cache.get(bytes([2])) == 2
    cache.put(b"x", "y", weight=1)
    assert cache.stats()["weight"] == 1 + 3 + 3
    cache.put(b"huge", "z", weight=100)
    assert cache.stats()["entries"] == 1 and cache.get(b"huge") == "z"
