"""Reading and verifying a whole database: every blob, version, head, document, conflict and event."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cks_runtime.flow.bus import EventBus
from cks_runtime.flow.document_check import check_documents
from cks_runtime.flow.graphs import Graphs, in_worker
from cks_runtime.flow.journal import Journal
from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import CksError, DamagedBlob
from cks_runtime.model.events import UnknownEvent
from cks_runtime.model.history import Ancestry, generation_after, version_from_blob
from cks_runtime.model.knowledge import object_from_blob
from cks_runtime.model.nodes import Children, Leaf, parse_node
from cks_runtime.model.trie import EMPTY_ROOT
from cks_runtime.store import blobs, conflicts, sessions
from cks_runtime.store.meta import get_meta
from cks_runtime.store.open import open_store
from cks_runtime.store.ports import Store

PAGE = 1000


@dataclass(slots=True)
class CheckReport:
    """What was read, and one line for each problem."""

    blobs: int = 0
    versions: int = 0
    sessions: int = 0
    documents: int = 0
    problems: list[str] = field(default_factory=list)


async def check_database(
    db_path: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> CheckReport:
    """Read everything and report what is damaged. Raises StoreUnusable when the database cannot be opened."""
    store = await open_store(db_path)
    report = CheckReport()
    found = _Found()
    stages = (
        partial(_check_database, store, report),
        partial(_check_blobs, store, report, found, progress),
        partial(_check_versions, store, report, found),
        partial(_check_heads, store, report),
        partial(_check_documents, store, report),
        partial(_check_records, store, report),
        partial(_check_journal, store, report),
    )
    try:
        for stage in stages:
            try:
                await stage()
            except CksError as error:
                report.problems.append(error.message)  # what stops one part does not hide the others
    finally:
        await store.close()
    return report


@dataclass(slots=True)
class _Found:
    """Every blob and version seen, and who names each blob that is needed."""

    blobs: set[Hash] = field(default_factory=set)
    needed: dict[Hash, str] = field(default_factory=dict)
    ancestries: dict[Hash, Ancestry] = field(default_factory=dict)


async def _check_database(store: Store, report: CheckReport) -> None:
    report.problems += [f"database: {problem}" for problem in await store.check()]
    async with store.reader() as reader:
        replica_id, secret = await get_meta(reader, "replica_id"), await get_meta(reader, "record_secret")
    if replica_id is not None and not re.fullmatch(r"[a-z0-9]{16}", replica_id):
        report.problems.append("the stored replica id is damaged")
    if secret is not None and not re.fullmatch(r"[0-9a-f]{64}", secret):
        report.problems.append("the stored record secret is damaged")


async def _check_blobs(
    store: Store, report: CheckReport, found: _Found, progress: Callable[[int, int], None]
) -> None:
    after = 0
    async with store.reader() as reader:
        total = await blobs.count_blobs(reader)
    while True:
        async with store.reader() as reader:
            page = await blobs.page_blobs(reader, after, PAGE)
        if not page:
            break
        report.problems += await in_worker(lambda page=page: _blob_problems(page, found))  # type: ignore[misc]
        report.blobs += len(page)
        after = page[-1][0]
        progress(report.blobs, total)
    report.problems += [
        f"blob {key.hex()} is missing; {who} needs it"
        for key, who in found.needed.items()
        if key not in found.blobs
    ]


def _blob_problems(page: Sequence[tuple[int, Hash, str, bytes]], found: _Found) -> list[str]:
    problems = []
    for number, key, kind, data in page:
        found.blobs.add(key)
        try:
            if kind == "node":
                for child, who in _named(parse_node(key, data), key):
                    found.needed.setdefault(child, who)
            else:
                object_from_blob(data, key)
        except DamagedBlob as error:
            problems.append(f"blob {number}: {error.message}")
    return problems


def _named(node: Leaf | Children, key: Hash) -> Iterator[tuple[Hash, str]]:
    if isinstance(node, Leaf):
        yield from ((value, f"object {id!r}") for id, value in node.entries.items())
    else:
        yield from ((child, f"node {key.hex()}") for child, _ in node.values())


async def _check_versions(store: Store, report: CheckReport, found: _Found) -> None:
    after = 0
    roots: dict[Hash, Hash] = {}
    while True:
        async with store.reader() as reader:
            page = await blobs.page_versions(reader, after, PAGE)
        if not page:
            break
        for _, key, beside, data in page:
            found.ancestries[key] = beside
            try:
                version = version_from_blob(data, key)
            except DamagedBlob as error:
                report.problems.append(error.message)
                continue
            roots.setdefault(version.root, key)
            if version.parents != beside.parents:
                report.problems.append(f"version {key.hex()}: the parents stored beside it are others")
        report.versions += len(page)
        after = page[-1][0]
    known = found.blobs | {EMPTY_ROOT}
    report.problems += [
        f"version {key.hex()}: its root {root.hex()} is missing"
        for root, key in roots.items()
        if root not in known
    ]
    report.problems += _generation_problems(found.ancestries)


def _generation_problems(known: Mapping[Hash, Ancestry]) -> Iterator[str]:
    for key, one in known.items():
        for parent in one.parents:
            if parent not in known:
                yield f"version {key.hex()}: its parent {parent.hex()} is missing"
        above = [known[parent] for parent in one.parents if parent in known]
        if len(above) == len(one.parents) and one.generation != generation_after(above):
            yield f"version {key.hex()}: its generation {one.generation} is wrong"


async def _check_heads(store: Store, report: CheckReport) -> None:
    graphs = Graphs(store)
    async with store.reader() as reader:
        heads = await sessions.session_roots(reader)
    for session_id, head, root in heads:
        report.sessions += 1
        try:
            version = await graphs.version(head)
            if version.root != root:
                report.problems.append(f"session {session_id}: its root is not that of its head")
            graph = await graphs.graph(root)
            report.problems += [f"session {session_id}: {error.message}" for error in graph.damaged.values()]
        except CksError as error:
            report.problems.append(f"session {session_id}: {error.message}")


async def _check_documents(store: Store, report: CheckReport) -> None:
    report.documents, problems = await check_documents(store)
    report.problems += problems


async def _check_records(store: Store, report: CheckReport) -> None:
    after = ""
    while True:
        async with store.reader() as reader:
            page = await conflicts.page_bodies(reader, after, PAGE)
        if not page:
            return
        report.problems += [
            f"conflict {record.record_id}: its content is damaged"
            for record in page
            if "unreadable" in record.body
        ]
        after = page[-1].record_id


async def _check_journal(store: Store, report: CheckReport) -> None:
    async for event in Journal(store, EventBus()).replay():
        if isinstance(event, UnknownEvent) and "unreadable" in event.body:
            report.problems.append(f"event {event.seq}: its content is damaged")
