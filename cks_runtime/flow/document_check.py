"""Verifying documents: every link of a version chain, and every stored body against its hash."""

from __future__ import annotations

from collections.abc import Sequence

from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.canon import Hash, digest
from cks_runtime.model.documents import DocumentVersion, link_error
from cks_runtime.store import documents as rows
from cks_runtime.store.ports import Store

PAGE = 500
HASHED_BYTES = 4 * 1024 * 1024  # bodies held in memory at once


async def check_documents(store: Store) -> tuple[int, list[str]]:
    """Read every document: how many there are, and one line for each that is damaged."""
    problems: list[str] = []
    count, after = 0, ""
    while True:
        async with store.reader() as reader:
            paths = await rows.page_paths(reader, after, PAGE)
        if not paths:
            return count, problems
        for path in paths:
            async with store.reader() as reader:
                current = await rows.head_number(reader, path) or 0
            error = await chain_error(store, path, current)
            if error is not None:
                problems.append(f"document {path}: {error}")
        count += len(paths)
        after = paths[-1]


async def chain_error(store: Store, path: str, current: int) -> str | None:
    """The first thing wrong with versions 1 to `current`, or None. Reads them all, a page at a time."""
    before: DocumentVersion | None = None
    sound: set[Hash] = set()
    while before is None or before.version < current:
        after = 0 if before is None else before.version
        async with store.reader() as reader:
            links = await rows.page_links(reader, path, after, current, PAGE)
        if not links:
            return f"version {after + 1} is missing"
        broken, good = None, []
        for link, size in links:
            broken = link_error(before, link)
            if broken is not None:
                break
            good.append((link, size))
            before = link
        error = await _body_error(store, good, sound)
        if error is not None or broken is not None:
            return error or broken
    return None


async def _body_error(
    store: Store, links: Sequence[tuple[DocumentVersion, int | None]], sound: set[Hash]
) -> str | None:
    """The first of these versions whose body is not what its hash says; `sound` are those seen already."""
    batch: dict[Hash, int] = {}
    size_sum = 0
    for link, size in links:
        if size is None:
            return await _hash_error(store, batch) or f"version {link.version}: its body is missing"
        if link.content in sound:
            continue
        sound.add(link.content)
        batch[link.content] = link.version
        size_sum += size
        if size_sum > HASHED_BYTES:
            error = await _hash_error(store, batch)
            if error is not None:
                return error
            batch, size_sum = {}, 0
    return await _hash_error(store, batch)


async def _hash_error(store: Store, batch: dict[Hash, int]) -> str | None:
    if not batch:
        return None
    async with store.reader() as reader:
        bodies = await rows.get_bodies(reader, list(batch))
    right = await in_worker(lambda: {key for key, data in bodies.items() if digest(data) == key})
    wrong = [version for key, version in batch.items() if key not in right]
    return f"version {min(wrong)}: its body does not match its content hash" if wrong else None
