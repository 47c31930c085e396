"""The statements that every body runs: blobs, versions, sessions, the journal, due times, marks and leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cks_runtime.model.canon import digest
from cks_runtime.model.errors import DamagedBlob, VersionNotFound
from cks_runtime.model.events import HeadMoved, SessionCreated
from cks_runtime.model.history import FIRST_VERSION, Ancestry, Version
from cks_runtime.model.trie import EMPTY_ROOT
from cks_runtime.store import blobs, journal, sessions, sweeps
from cks_runtime.store.ports import LeaseClock, Store
from cks_runtime.store.sessions import SessionRow
from cks_runtime.store.sweeps import SweepRow


def version(number: int, *parents: Version) -> Version:
    return Version(tuple(parent.id for parent in parents), EMPTY_ROOT, False, "ann", f"v{number}", number)


# ---- blobs and versions


async def test_blobs_are_written_once_and_repaired_by_writing(store: Store) -> None:
    data = [f"blob {n}".encode() for n in range(1200)]
    keys = [digest(one) for one in data]
    async with store.unit() as unit:
        await blobs.put_blobs(unit, [(key, "object", one) for key, one in zip(keys, data, strict=True)])
        await unit.execute("UPDATE blobs SET data = ? WHERE hash = ?", b"damaged", keys[0])
        await blobs.put_blobs(unit, [(keys[0], "object", data[0]), (keys[1], "object", data[1])])
    async with store.reader() as reader:
        assert await blobs.get_blobs(reader, [*keys, digest(b"nobody")]) == dict(zip(keys, data, strict=True))
        assert await blobs.get_blobs(reader, []) == {}
        assert await blobs.count_blobs(reader) == 1200
        page = await blobs.page_blobs(reader, 0, 5)
        assert [one[3] for one in page] == data[:5]
        assert (await blobs.page_blobs(reader, page[-1][0], 1))[0][3] == data[5]


async def test_versions_with_their_ancestry(store: Store) -> None:
    one = version(1, FIRST_VERSION)
    two = version(2, one, FIRST_VERSION)
    async with store.unit() as unit:
        for generation, made in enumerate((FIRST_VERSION, one, two)):
            await blobs.put_version(unit, made, generation)
        await blobs.put_version(unit, two, 2)
    async with store.reader() as reader:
        assert await blobs.get_version(reader, two.id) == two
        assert await blobs.get_versions(reader, [one.id, bytes(32)]) == {one.id: one}
        assert await blobs.get_ancestry(reader, [two.id, FIRST_VERSION.id]) == {
            two.id: Ancestry(two.parents, 2),
            FIRST_VERSION.id: Ancestry((), 0),
        }
        low, high = one.id[:4] + bytes(28), one.id[:4] + b"\xff" * 28
        assert await blobs.versions_between(reader, low, high, 2) == [one.id]
        with pytest.raises(VersionNotFound):
            await blobs.get_version(reader, bytes(32))
    async with store.unit() as unit:
        await unit.execute("UPDATE versions SET data = ? WHERE id = ?", one.blob(), two.id)
    async with store.reader() as reader:
        with pytest.raises(DamagedBlob, match=two.id.hex()):
            await blobs.get_version(reader, two.id)


# ---- sessions


ROW = SessionRow("s", "Title", None, FIRST_VERSION.id, FIRST_VERSION.id, EMPTY_ROOT, False, 1, 1, 1, 0)


async def test_a_head_moves_by_compare_and_swap(store: Store) -> None:
    one = version(1, FIRST_VERSION)
    async with store.unit() as unit:
        await blobs.put_version(unit, FIRST_VERSION, 0)
        await blobs.put_version(unit, one, 1)
        assert await sessions.insert_session(unit, ROW)
        assert not await sessions.insert_session(unit, replace(ROW, title="Another"))
        assert not await sessions.move_head(unit, "s", one.id, one.id, one.root, True, 5, 9)
        assert await sessions.move_head(unit, "s", ROW.head, one.id, one.root, True, 5, 9)
    moved = replace(ROW, head=one.id, closed=True, moved_at_ms=5, moved_seq=9, generation=1)
    async with store.reader() as reader:
        assert await sessions.get_session(reader, "s") == moved
        assert await sessions.get_session(reader, "t") is None
        assert await sessions.session_roots(reader) == [("s", one.id, EMPTY_ROOT)]


async def test_sessions_by_id_by_state_and_by_their_moves(store: Store) -> None:
    async with store.unit() as unit:
        await blobs.put_version(unit, FIRST_VERSION, 0)
        for number, name in enumerate("cab"):
            await sessions.insert_session(
                unit, replace(ROW, session_id=name, closed=name == "b", moved_seq=number + 1)
            )
    async with store.reader() as reader:
        assert [row.session_id for row in await sessions.page_sessions(reader, None, "", 2)] == ["a", "b"]
        assert [row.session_id for row in await sessions.page_sessions(reader, None, "b", 2)] == ["c"]
        assert [row.session_id for row in await sessions.page_sessions(reader, False, "", 9)] == ["a", "c"]
        assert [row.session_id for row in await sessions.page_sessions(reader, True, "", 9)] == ["b"]
        assert [row.session_id for row in await sessions.moved_sessions(reader, 1, 9)] == ["a", "b"]
        assert [row.session_id for row in await sessions.moved_sessions(reader, 0, 1)] == ["c"]


async def test_a_session_whose_head_is_gone_is_still_listed(store: Store) -> None:
    async with store.unit() as unit:
        await sessions.insert_session(unit, ROW)
    async with store.reader() as reader:
        (row,) = await sessions.page_sessions(reader, None, "", 9)
    assert row.generation < 0


# ---- journal


async def test_many_events_are_numbered_in_their_order(store: Store) -> None:
    count = 2 * journal.APPENDED_AT_ONCE + 50
    async with store.unit() as unit:
        assert await journal.append_events(unit, []) == []
        told = [SessionCreated(session_id=f"s{n}", version_id="", at_ms=n) for n in range(count)]
        stored = await journal.append_events(unit, told)
        more = await journal.append_events(unit, [HeadMoved(version_id="a", previous_id="b")])
    assert [event.seq for event in stored] == list(range(stored[0].seq, stored[0].seq + count))
    assert more[0].seq == stored[-1].seq + 1
    async with store.reader() as reader:
        assert await journal.read_events(reader, 0, count + 9) == [*stored, *more]
        assert await journal.read_events(reader, stored[-1].seq, 9) == more
        assert await journal.read_events(reader, 0, 9, ["HeadMoved"]) == more
        assert await journal.last_seq(reader) == more[0].seq


async def test_a_rolled_back_number_is_given_again(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.unit() as unit:
            await journal.append_events(unit, [HeadMoved(version_id="a", previous_id="b")])
            raise ZeroDivisionError
    async with store.unit() as unit:
        (event,) = await journal.append_events(unit, [HeadMoved(version_id="a", previous_id="b")])
    assert event.seq == 1


# ---- sweeps


async def test_due_rows_come_in_whole_milliseconds(store: Store) -> None:
    rows = [
        ("temporal", at_ms, digest(f"{at_ms}-{n}".encode()), f"o{n}") for at_ms in (5, 6, 7) for n in range(4)
    ]
    async with store.unit() as unit:
        await sweeps.put_due(unit, [*rows, *rows, ("provenance", 1, bytes(32), "other")])
    async with store.reader() as reader:
        whole = await sweeps.due_between(reader, "temporal", None, 9, 100)
        assert sorted(whole) == sorted((at_ms, key, id) for _, at_ms, key, id in rows)
        for limit in (1, 2, 4, 5, 8):
            page = await sweeps.due_between(reader, "temporal", None, 9, limit)
            last = page[-1][0]
            assert len(page) >= min(limit, 12)
            assert sorted(page) == sorted(row for row in whole if row[0] <= last)
        assert {row[0] for row in await sweeps.due_between(reader, "temporal", 5, 6, 100)} == {6}
        assert await sweeps.next_due(reader, "temporal", None) == 5
        assert await sweeps.next_due(reader, "temporal", 5) == 6
        assert await sweeps.next_due(reader, "temporal", 7) is None


async def test_a_sweepers_state_is_kept(store: Store) -> None:
    row = SweepRow("x", 3, -5, "ttl=1", 7, 2)
    async with store.unit() as unit:
        assert await sweeps.get_sweep(unit, "x") == SweepRow("x")
        await sweeps.put_sweep(unit, SweepRow("x"))
        await sweeps.put_sweep(unit, row)
    async with store.reader() as reader:
        assert await sweeps.get_sweep(reader, "x") == row


async def test_a_mark_moves_by_compare_and_swap(store: Store) -> None:
    first, second = digest(b"1"), digest(b"2")
    async with store.unit() as unit:
        assert await sweeps.get_mark(unit, "x", "s") is None
        assert not await sweeps.swap_mark(unit, "x", "s", first, second)
        assert await sweeps.swap_mark(unit, "x", "s", None, first)
        assert not await sweeps.swap_mark(unit, "x", "s", None, second)
        assert not await sweeps.swap_mark(unit, "x", "s", second, first)
        assert await sweeps.swap_mark(unit, "x", "s", first, second)
        assert await sweeps.get_mark(unit, "x", "s") == second
        assert await sweeps.get_mark(unit, "y", "s") is None


async def test_a_lease_is_held_by_one_until_it_ends(store: Store) -> None:
    clock = LeaseClock(1000, "boot")

    async def take(owner: str, now_ms: int = 1000, boot: str = "boot") -> bool:
        async with store.unit() as unit:
            return await sweeps.take_lease(
                unit, "sweep", owner, 100, replace(clock, now_ms=now_ms, boot_id=boot)
            )

    assert await take("a")
    assert not await take("b") and not await take("b", 1099)
    assert await take("a", 1050), "its holder renews it"
    assert not await take("b", 1149)
    assert await take("b", 1150), "it has ended"
    assert not await take("a", 1200)
    assert await take("a", 1200, "another boot"), "a lease of another boot has ended"
    assert await take("b", 1000, "another boot"), "one that ends too late was taken by a wrong clock"
    async with store.unit() as unit:
        await sweeps.release_lease(unit, "sweep", "nobody")
    assert not await take("a", 1001, "another boot")
    async with store.unit() as unit:
        await sweeps.release_lease(unit, "sweep", "b")
    assert await take("a", 1001, "another boot")
