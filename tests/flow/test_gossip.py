"""The gossip service over two databases and a network that only calls functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow import gossip as service
from cks_runtime.flow import remote
from cks_runtime.flow.branches import MergeDone, MergeRefused
from cks_runtime.flow.gossip import GossipConfig, GossipLoop, Handler
from cks_runtime.model.errors import InternalError, InvalidKnowledge, InvalidParameter, SessionNotFound
from cks_runtime.model.events import ConflictClosed, GossipConflictDetected, HeadMoved, SessionCreated
from cks_runtime.model.gossip_merge import decide, fold
from cks_runtime.model.gossip_messages import PATH, GossipRefused, OwnAddress
from cks_runtime.model.gossip_rules import ELSEWHERE_MS, nearest
from cks_runtime.model.records import record_operations
from cks_runtime.runtime import Runtime
from cks_runtime.store.gossip import refused_among

Reached = Callable[[], Awaitable[bool]]


class Cable:
    """Networks of several replicas in one process; `cut` addresses cannot be reached."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.cut: set[str] = set()

    def network(self, address: str, replica_id: str) -> Socket:
        return Socket(self, address, replica_id)


class Socket:
    """One replica's end of the cable."""

    def __init__(self, cable: Cable, address: str, replica_id: str) -> None:
        self._cable, self._address, self._id = cable, address, replica_id

    async def request(self, address: str, path: str, body: bytes) -> bytes:
        if {address, self._address} & self._cable.cut or address not in self._cable.handlers:
            raise InternalError(f"{address} cannot be reached")
        await anyio.lowlevel.checkpoint()
        return await self._cable.handlers[address](path, body, self._id)

    def traffic(self, address: str) -> tuple[int, int]:
        return 0, 0

    def refusals(self) -> Mapping[str, Any]:
        return {}

    @asynccontextmanager
    async def listen(self, handler: Handler) -> AsyncIterator[str]:
        self._cable.handlers[self._address] = handler
        try:
            yield self._address
        finally:
            del self._cable.handlers[self._address]


class Pair:
    """Two replicas, `a` and `b`, that dial each other."""

    def __init__(self, a: Runtime, b: Runtime) -> None:
        self.a, self.b = a, b
        self.cable = Cable()
        self.loops = [self._start(a, "a", "b"), self._start(b, "b", "a")]

    def _start(self, rt: Runtime, own: str, peer: str) -> GossipLoop:
        loop = rt.gossip(self.cable.network(own, rt.replica_id), GossipConfig((peer,), 0.02))
        rt.run([loop.run])
        return loop

    async def same(self, session_id: str) -> None:
        async def reached() -> bool:
            try:
                heads = {(await rt.sessions.get(session_id)).head for rt in (self.a, self.b)}
            except SessionNotFound:
                return False
            return len(heads) == 1

        await until(reached)


async def until(reached: Reached) -> None:
    with anyio.fail_after(20):
        while True:
            if await reached():
                return
            await anyio.sleep(0.01)


@asynccontextmanager
async def replicas(folder: Path, **secrets: bytes) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        opened = []
        for name in ("a", "b"):
            config = RuntimeConfig(
                db_path=str(folder / f"{name}.db"),
                sqlite_synchronous="NORMAL",
                record_secret=secrets.get(name, b"one secret for both, 32 bytes long"),
            )
            opened.append(await stack.enter_async_context(Runtime.open(config)))
        yield Pair(*opened)


def add(id: str, **structure: Any) -> dict[str, Any]:
    return {"op": "add_object", "identity": {"id": id, "type": "Thing", "name": id}, "structure": structure}


def update(id: str, **patch: Any) -> dict[str, Any]:
    return {"op": "update_object", "object_id": id, "structure_patch": patch, "mode": "merge"}


async def records(rt: Runtime, state: str, count: int = 1) -> list[Any]:
    async def reached() -> bool:
        return len(await rt.conflicts.page("gossip", state)) == count

    await until(reached)
    return await rt.conflicts.page("gossip", state)


async def diverged(pair: Pair) -> tuple[Any, Any]:
    """A conflict on `x` of session `s`; the records of both sides."""
    await pair.a.commits.evolve("s", [add("x", n=0)], create=True)
    await pair.same("s")
    await pair.a.commits.evolve("s", [update("x", n=1)])
    await pair.b.commits.evolve("s", [update("x", n=2)])
    (ours,), (theirs,) = await records(pair.a, "open"), await records(pair.b, "open")
    return ours, theirs


async def test_what_arrives_is_told_like_any_other_change(tmp_path: Path) -> None:
    async with replicas(tmp_path) as pair:
        await pair.a.commits.evolve("s", [add("x")], create=True, title="told")
        await pair.same("s")
        kinds = [SessionCreated, HeadMoved]
        told = [event async for event in pair.b.journal.replay(types=kinds)]
        assert [event.kind for event in told] == ["SessionCreated", "HeadMoved"]
        assert told[1].changed == 1  # type: ignore[attr-defined]
        assert (await pair.b.sessions.get("s")).title == "told"


async def test_of_two_replicas_the_nearer_one_gets_the_task_at_once(tmp_path: Path) -> None:
    async with replicas(tmp_path) as pair:
        ours, theirs = await diverged(pair)
        assert ours.record_id == theirs.record_id
        due = {}
        for rt in (pair.a, pair.b):
            async with rt.store.reader() as reader:
                rows = await reader.fetch(
                    "SELECT next_retry_at - created_at, task_type FROM cks_outbox_tasks"
                )
            due[rt.replica_id] = rows[0][0]
            assert rows[0][1] == "gossip_conflict"
        near = nearest("s", pair.a.replica_id, [pair.b.replica_id])
        far = pair.b.replica_id if near == pair.a.replica_id else pair.a.replica_id
        assert due == {near: 0, far: ELSEWHERE_MS}


async def test_the_far_one_takes_the_task_over_when_the_near_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path) as pair:
        await diverged(pair)
        near = nearest("s", pair.a.replica_id, [pair.b.replica_id])
        far = pair.b if near == pair.a.replica_id else pair.a
        pair.cable.cut.update(("a", "b"))

        async def due() -> bool:
            async with far.store.reader() as reader:
                rows = await reader.fetch("SELECT next_retry_at FROM cks_outbox_tasks")
            return bool(rows[0][0] <= far.clock())

        await until(due)


async def test_merging_the_other_side_closes_the_conflict_in_the_same_transaction(tmp_path: Path) -> None:
    async with replicas(tmp_path) as pair:
        ours, _ = await diverged(pair)
        line = ours.body["source_session_id"]
        assert (await pair.a.sessions.head(line))[1]["x"].structure == {"n": 2}
        assert isinstance(await pair.a.branches.merge("s", line), MergeRefused)
        done = await pair.a.branches.merge("s", line, resolutions={"x": "branch_a"})
        assert isinstance(done, MergeDone)
        events = [e async for e in pair.a.journal.replay(types=[HeadMoved, ConflictClosed])]
        assert events[-2].kind == "ConflictClosed" and events[-1].seq == events[-2].seq + 1
        (closed,) = await records(pair.b, "closed")
        assert closed.closed_how == "resolved"
        async with pair.b.store.reader() as reader:
            assert await reader.fetch("SELECT 1 FROM cks_outbox_tasks") == []
        with pytest.raises(SessionNotFound):
            await pair.a.sessions.get(line)


async def test_edits_that_become_equal_close_the_conflict(tmp_path: Path) -> None:
    async with replicas(tmp_path) as pair:
        await diverged(pair)
        await pair.b.commits.evolve("s", [update("x", n=1)])
        (closed,) = await records(pair.a, "closed")
        assert closed.closed_how in ("resolved", "cause_gone")
        await pair.same("s")
        assert (await pair.a.conflicts.page("gossip", "open")) == []
        assert len([e async for e in pair.a.journal.replay(types=[GossipConflictDetected])]) == 1


async def test_a_record_of_another_key_is_refused_and_settled_by_dropping_it(tmp_path: Path) -> None:
    async with replicas(tmp_path, b=b"another secret, also 32 bytes long") as pair:
        await pair.a.commits.evolve("s", [add("x", n=0)], create=True)
        await pair.same("s")
        subject = (await pair.b.sessions.head("s"))[1]["x"]
        signed = record_operations(
            "v", "l", subject, "https://e.org/", "https://e.org/", 200, 0, "manual_review", pair.b.keys
        )
        await pair.b.commits.evolve("s", signed)
        (record,) = await records(pair.a, "open")
        assert record.body["kind"] == "refused" and "v" in record.body["conflicts"]
        assert "v" not in (await pair.a.sessions.head("s"))[1]
        line = record.body["source_session_id"]
        assert "v" in (await pair.a.sessions.head(line))[1]
        with pytest.raises(InvalidKnowledge):
            await pair.a.branches.create(line)
        tried = await pair.a.branches.merge("s", line)
        assert isinstance(tried, MergeRefused)
        drop = {conflict.object_id: None for conflict in tried.conflicts}
        assert isinstance(await pair.a.branches.merge("s", line, resolutions=drop), MergeDone)
        await pair.same("s")
        assert "v" not in (await pair.b.sessions.head("s"))[1]
        await records(pair.a, "closed")
        async with pair.a.store.reader() as reader:
            version = (await pair.a.graphs.version((await pair.a.sessions.get("s")).head)).parents
            assert len(await refused_among(reader, list(version))) == 1


async def test_after_a_partition_both_go_on_and_all_is_equal_again(tmp_path: Path) -> None:
    async with replicas(tmp_path) as pair:
        await pair.a.commits.evolve("s", [add("x"), add("y")], create=True)
        await pair.same("s")
        pair.cable.cut.add("b")
        for n in range(5):
            await pair.a.commits.evolve("s", [update("x", n=n)])
            await pair.b.commits.evolve("s", [update("y", n=n)])
        await pair.b.commits.evolve("only-b", [add("z")], create=True)

        async def failing() -> bool:
            return bool(pair.loops[0].status()["peers"][0]["state"] == "failing")

        await until(failing)
        pair.cable.cut.clear()
        await pair.same("s")
        await pair.same("only-b")
        graph = (await pair.a.sessions.head("s"))[1]
        assert graph["x"].structure == graph["y"].structure == {"n": 4}

        async def well() -> bool:
            return bool(pair.loops[0].status()["peers"][0]["state"] == "ok")

        await until(well)


async def test_a_line_is_read_only(tmp_path: Path) -> None:
    async with replicas(tmp_path) as pair:
        ours, _ = await diverged(pair)
        line = ours.body["source_session_id"]
        with pytest.raises(InvalidParameter):
            await pair.a.commits.evolve(line, [add("z")])
        with pytest.raises(InvalidParameter):
            await pair.a.branches.merge(line, "s")
        with pytest.raises(InvalidParameter):
            await pair.a.branches.close(line)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"{}\n", b"\xff" * 100, b'{"v":1,"kind":"turn"}\n', b"[" * 5000]
)
async def test_garbage_is_refused_and_changes_nothing(tmp_path: Path, body: bytes) -> None:
    async with replicas(tmp_path) as pair:
        await pair.a.commits.evolve("s", [add("x")], create=True)
        await pair.same("s")
        with pytest.raises(GossipRefused):
            await pair.loops[0].handle(PATH, body, "c" * 16)
        await pair.b.commits.evolve("s", [update("x", n=1)])
        await pair.same("s")


async def test_one_process_of_a_database_gossips_and_the_next_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STANDBY_S", 0.05)
    async with replicas(tmp_path) as pair, Runtime.open(pair.a.config) as beside:
        await pair.a.commits.evolve("s", [add("x")], create=True)
        await pair.same("s")
        loop = beside.gossip(pair.cable.network("a", beside.replica_id), GossipConfig(("b",), 0.02))
        beside.run([loop.run])
        await anyio.sleep(0.2)
        assert loop.status()["state"] == "standby"
        await beside.commits.evolve("s", [update("x", n=1)])
        await pair.same("s")
        pair.loops[0].stop()

        async def active() -> bool:
            return bool(loop.status()["state"] == "active")

        await until(active)
        await pair.b.commits.evolve("s", [update("x", n=2)])
        await pair.same("s")


async def test_a_standing_conflict_is_not_decided_again_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[str] = []

    def counting(lines: Any, *more: Any) -> Any:
        decided.append(lines.session_id)
        return decide(lines, *more)

    monkeypatch.setattr(remote, "decide", counting)
    async with replicas(tmp_path) as pair:
        await diverged(pair)
        rounds = pair.loops[0].status()["rounds"]

        async def later(count: int) -> None:
            async def reached() -> bool:
                return bool(pair.loops[0].status()["rounds"] >= rounds + count)

            await until(reached)

        await later(20)  # by now whoever is not the merger has tried to merge as well
        before = len(decided)
        await later(40)
        assert len(decided) == before


async def test_a_list_of_peers_may_hold_our_own_address(tmp_path: Path) -> None:
    class Mirror(Socket):
        async def request(self, address: str, path: str, body: bytes) -> bytes:
            raise OwnAddress(f"{address} is our own")

    async with replicas(tmp_path) as pair, Runtime.open(RuntimeConfig(db_path=":memory:")) as alone:
        loop = alone.gossip(Mirror(pair.cable, "c", alone.replica_id), GossipConfig(("c",), 0.02))
        alone.run([loop.run])

        async def seen() -> bool:
            return bool(loop.status()["peers"][0]["state"] == "self")

        await until(seen)
        rounds = loop.status()["rounds"]

        async def goes_on() -> bool:
            return bool(loop.status()["rounds"] > rounds + 2)

        await until(goes_on)


async def test_merges_made_at_once_in_another_order_are_no_conflict(tmp_path: Path) -> None:
    """Two heads that each merged the same edits are criss-crossed: their bases disagree, nobody's edits clash."""
    async with replicas(tmp_path) as pair:
        for loop in pair.loops:
            loop.stop()
        a = pair.a
        await a.commits.evolve("s", [add("x", n=0), add("y", n=0)], create=True)
        left = (await a.branches.create("s", title="left")).session_id
        right = (await a.branches.create("s", title="right")).session_id
        await a.commits.evolve(left, [update("x", n=1)])
        await a.commits.evolve(right, [update("y", n=1)])
        crossed = (await a.branches.create(right, title="crossed")).session_id
        await a.branches.merge(crossed, left)
        await a.branches.merge(left, right)
        await a.commits.evolve(left, [update("x", n=2)])
        await a.commits.evolve(crossed, [update("y", n=2)])
        heads = [(await a.sessions.get(name)).head for name in (left, crossed)]
        bases = await a.graphs.merge_bases(*heads)
        assert len(bases) == 2
        driver = remote.Remote(a.store, a.graphs, a.journal, a.conflicts, a.keys, a.clock, a.replica_id, "i")
        (parts,) = await driver.run(fold(heads, a.keys))
        assert parts.graph["x"].structure == {"n": 2} and parts.graph["y"].structure == {"n": 2}
