"""The only builder: opens the store, wires the parts, and runs services in one task group."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.abc

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.branches import Branches
from cks_runtime.flow.bus import EventBus
from cks_runtime.flow.commits import Commits
from cks_runtime.flow.conflicts import KINDS, ConflictKind, Conflicts
from cks_runtime.flow.documents import Documents
from cks_runtime.flow.gossip import GossipConfig, GossipLoop, Network
from cks_runtime.flow.graphs import Graphs
from cks_runtime.flow.inbox import ConflictInbox
from cks_runtime.flow.journal import TRIM_DELAY_S, TRIM_INTERVAL_S, Journal
from cks_runtime.flow.outbox import Outbox
from cks_runtime.flow.remote import Remote
from cks_runtime.flow.search import Search
from cks_runtime.flow.sessions import Sessions
from cks_runtime.model.errors import CksError, DamagedBlob, StoreUnusable
from cks_runtime.model.events import GossipConflictDetected, InferenceConflictDetected
from cks_runtime.model.history import FIRST_VERSION
from cks_runtime.model.records import Keyring, derive_key
from cks_runtime.store.blobs import put_version
from cks_runtime.store.meta import get_meta, set_meta_once
from cks_runtime.store.open import open_store
from cks_runtime.store.outbox import TASK_TYPES
from cks_runtime.store.ports import Store

_log = logging.getLogger(__name__)

Service = Callable[[], Coroutine[Any, Any, None]]
Opener = Callable[[RuntimeConfig], Awaitable[Store]]


class Runtime:
    """One process's view of one body of knowledge: `async with Runtime.open(config) as rt`.

    `rt.commits`, `rt.branches`, `rt.sessions`, `rt.conflicts`, `rt.documents`, `rt.inboxes`, `rt.outbox`,
    `rt.journal` and `rt.bus` are its parts.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        store: Store,
        keys: Keyring,
        replica_id: str,
        tasks: anyio.abc.TaskGroup,
        kinds: Mapping[str, ConflictKind],
    ) -> None:
        self.config = config
        self.store = store
        self.keys = keys
        self.replica_id = replica_id
        self.instance_id = secrets.token_hex(8)
        self.clock = config.clock
        self.bus = EventBus()
        self.graphs = Graphs(store)
        self.journal = Journal(store, self.bus)
        self.sessions = Sessions(store, self.graphs, self.clock, config.default_session)
        self.commits = Commits(
            store,
            self.graphs,
            self.journal,
            keys,
            config.limits,
            self.clock,
            self.instance_id,
            config.default_session,
        )
        self.conflicts = Conflicts(store, kinds)
        self.branches = Branches(
            store, self.graphs, self.journal, self.commits, self.sessions, self.conflicts, self.clock
        )
        task_types = (*TASK_TYPES, *(kind.task_type for kind in kinds.values()))
        self.outbox = Outbox(store, self.clock, task_types, config.outbox_lease_s, config.outbox_attempts_max)
        self.documents = Documents(store, self.journal, self.clock)
        self.search = Search(store, self.sessions)
        self.inboxes = {
            "gossip": ConflictInbox(store, "gossip", self.clock),
            "inference": ConflictInbox(store, "inference", self.clock),
        }
        self._tasks = tasks

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: RuntimeConfig | None = None,
        *,
        opener: Opener | None = None,
        conflict_kinds: Iterable[ConflictKind] = (),
    ) -> AsyncIterator[Runtime]:
        """Open the database and start the runtime's own services; leaving the block ends and closes everything.

        `opener` brings a store of one's own, `conflict_kinds` further kinds of conflict (see adr/). Raises
        StoreUnusable when the database cannot be used.
        """
        config = config or RuntimeConfig()
        store = await (opener(config) if opener else open_store(config.db_path, config.sqlite_synchronous))
        try:
            with _refusing_damage(store):
                keys, replica_id = await _identity(store, config)
            kinds = {**KINDS, **{kind.name: kind for kind in conflict_kinds}}
            async with anyio.create_task_group() as tasks:
                runtime = cls(config, store, keys, replica_id, tasks, kinds)
                with _refusing_damage(store):
                    await runtime._start()
                try:
                    yield runtime
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # a single error inside the block reaches the caller as itself, not wrapped by the task group
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise
        finally:
            await store.close()

    async def _start(self) -> None:
        await self.journal.start()
        for inbox, kind in (
            (self.inboxes["gossip"], GossipConflictDetected),
            (self.inboxes["inference"], InferenceConflictDetected),
        ):
            events = inbox.subscribe(self.bus, kind)
            await inbox.refill()
            self._tasks.start_soon(inbox.feed, events)
        self.run([self.journal.tail, self._trim])

    def run(self, services: Iterable[Service]) -> None:
        """Run plain async callables in the runtime's task group; an error in one ends the runtime and is raised."""
        for service in services:
            self._tasks.start_soon(service)

    def gossip(self, network: Network, config: GossipConfig) -> GossipLoop:
        """Replication with other replicas: `loop = rt.gossip(network, config)`, then `rt.run([loop.run])`."""
        remote = Remote(
            self.store,
            self.graphs,
            self.journal,
            self.conflicts,
            self.keys,
            self.clock,
            self.replica_id,
            self.instance_id,
        )
        return GossipLoop(
            self.store,
            self.bus,
            self.conflicts,
            remote,
            self.keys,
            self.clock,
            self.replica_id,
            self.instance_id,
            network,
            config,
        )

    async def _trim(self) -> None:
        await anyio.sleep(TRIM_DELAY_S)
        while True:
            try:
                await self.journal.trim(self.clock())
            except CksError as error:
                _log.warning("the journal could not be trimmed: %s", error.message)
            await anyio.sleep(TRIM_INTERVAL_S)


@contextmanager
def _refusing_damage(store: Store) -> Iterator[None]:
    """Damage that is met while starting is a refusal that names the file."""
    try:
        yield
    except DamagedBlob as error:
        raise StoreUnusable(f"{store.location} cannot be used: {error.message}", error.hint) from error


async def _identity(store: Store, config: RuntimeConfig) -> tuple[Keyring, str]:
    """The record key and the replica's id; made once for a database, and its first version with them."""
    async with store.reader() as reader:
        replica_id, own = await get_meta(reader, "replica_id"), await get_meta(reader, "record_secret")
    if replica_id is None or own is None:
        async with store.unit() as unit:
            await put_version(unit, FIRST_VERSION, 0)
            replica_id = await set_meta_once(unit, "replica_id", _random_id())
            own = await set_meta_once(unit, "record_secret", secrets.token_hex(32))
    # what the database's own secret signed before there was another one stays verified
    secret = _own_secret(own, store.location)
    signing = [config.record_secret, secret] if config.record_secret else [secret]
    return Keyring.of(*(derive_key(one, "verification-records") for one in signing)), replica_id


def _own_secret(text: str, location: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise StoreUnusable(
            f"{location}: the stored record secret is damaged.", "Restore the file from a copy."
        ) from None


def _random_id() -> str:
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(16))
