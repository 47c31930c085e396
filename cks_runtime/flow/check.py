"""Reading and verifying a whole database: every blob, version, head and document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cks_runtime.flow.document_check import check_documents
from cks_runtime.flow.graphs import Graphs
from cks_runtime.model.canon import digest
from cks_runtime.model.errors import CksError, DamagedBlob
from cks_runtime.model.history import version_from_blob
from cks_runtime.model.knowledge import object_from_blob
from cks_runtime.model.nodes import parse_node
from cks_runtime.store import blobs, sessions
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
    try:
        report.problems += [f"database: {problem}" for problem in await store.check()]
        await _check_blobs(store, report, progress)
        await _check_versions(store, report)
        await _check_heads(store, report)
        report.documents, problems = await check_documents(store)
        report.problems += problems
    except CksError as error:
        report.problems.append(error.message)
    finally:
        await store.close()
    return report


async def _check_blobs(store: Store, report: CheckReport, progress: Callable[[int, int], None]) -> None:
    after = 0
    async with store.reader() as reader:
        total = await blobs.count_blobs(reader)
    while True:
        async with store.reader() as reader:
            page = await blobs.page_blobs(reader, after, PAGE)
        if not page:
            return
        for number, key, kind, data in page:
            try:
                parse_node(key, data) if kind == "node" else object_from_blob(data, key)
            except DamagedBlob as error:
                report.problems.append(f"blob {number}: {error.message}")
        report.blobs += len(page)
        after = page[-1][0]
        progress(report.blobs, total)


async def _check_versions(store: Store, report: CheckReport) -> None:
    after = 0
    while True:
        async with store.reader() as reader:
            page = await blobs.page_versions(reader, after, PAGE)
        if not page:
            return
        for _, key, data in page:
            try:
                if digest(data) != key:
                    raise DamagedBlob(f"version {key.hex()}: its bytes have another hash")
                version_from_blob(data, key)
            except DamagedBlob as error:
                report.problems.append(error.message)
        report.versions += len(page)
        after = page[-1][0]


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
            await graphs.graph(root)
        except CksError as error:
            report.problems.append(f"session {session_id}: {error.message}")
