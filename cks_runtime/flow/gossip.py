"""The service that gossips: one process of a database runs rounds and answers peers, the others stand by."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from cks_runtime.flow.bus import EventBus
from cks_runtime.flow.clock import Clock
from cks_runtime.flow.conflicts import Conflicts
from cks_runtime.flow.gossip_status import PeerStatus, Refusal, Status
from cks_runtime.flow.remote import Remote
from cks_runtime.model import gossip_rules as rules
from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import CksError
from cks_runtime.model.events import HeadMoved
from cks_runtime.model.gossip_exchange import Conversation, Exchanged, answer, dial
from cks_runtime.model.gossip_messages import (
    PATH,
    GossipRefused,
    Message,
    OwnAddress,
    StaleTurn,
    Turn,
    decode,
    encode,
)
from cks_runtime.model.records import Keyring
from cks_runtime.store import gossip as rows
from cks_runtime.store.ports import Store
from cks_runtime.store.sweeps import release_lease, take_lease

LEASE: Final = "gossip"
LEASE_MS: Final = 10_000
RENEW_S: Final = 3.0
STANDBY_S: Final = 2.0
REBIND_S: Final = 5.0
EXCHANGE_S: Final = 600.0
"""A fresh replica takes its time, and keeps what it has when the time is over."""
TALK_S: Final = 60.0
"""A conversation whose other side is silent for so long is forgotten."""
HEAVY_BYTES: Final = 16_384
TELL_ROUNDS: Final = 5
DEBOUNCE_S: Final = 0.2

_log = logging.getLogger(__name__)

Handler = Callable[[str, bytes, str], Awaitable[bytes]]


class Network(Protocol):
    """What carries the bytes: asks peers, and answers them on our address."""

    async def request(self, address: str, path: str, body: bytes) -> bytes:
        """The peer's reply. Raises CksError when there is none, OwnAddress when the peer is this replica."""
        ...

    def traffic(self, address: str) -> tuple[int, int]:
        """Bytes sent to and received from this peer."""
        ...

    def listen(self, handler: Handler) -> AbstractAsyncContextManager[str]:
        """Answer peers while the block runs; gives the address. Raises CksError when it cannot be bound."""
        ...

    def refusals(self) -> Mapping[str, Any]:
        """What was refused at the door, for the status."""
        ...


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """`peers` are the seeds: addresses that are dialled for ever; a round every `interval_s` seconds."""

    peers: tuple[str, ...] = ()
    interval_s: float = 5.0


@dataclass(slots=True)
class _Talk:
    """A replica that dialled us: one message at a time, and our wants while it takes its turns.

    `last` answers a turn that is sent again because its reply was lost.
    """

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    open_now: Conversation | None = None
    at: float = 0.0
    last: tuple[str, int, bytes] = ("", 0, b"")


class GossipLoop:
    """`rt.run([loop.run])` gossips as long as the runtime is open; `loop.status()` tells how it goes.

    Of all processes on one database the holder of a lease gossips. Nothing here is durable but what the tables
    hold, so another process takes over where this one left off.
    """

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        conflicts: Conflicts,
        remote: Remote,
        keys: Keyring,
        clock: Clock,
        me: str,
        instance_id: str,
        network: Network,
        config: GossipConfig,
    ) -> None:
        self._store, self._bus, self._conflicts = store, bus, conflicts
        self._remote, self._keys, self._clock = remote, keys, clock
        self._me, self._instance, self._network, self._config = me, instance_id, network, config
        self._chance = random.Random(secrets.randbits(64))  # noqa: S311 - whom to dial is no secret
        self._scope = anyio.CancelScope()
        self._round = 0
        self._heard: dict[str, int] = {}
        self._still: dict[str, rules.Still] = {}
        self._talks: dict[str, _Talk] = {}
        self._busy: set[str] = set()
        self._told: set[str] = set()
        self._peers = {address: rules.Peer(address) for address in config.peers}
        self._status = Status(peers={address: PeerStatus(address) for address in config.peers})
        remote.may_merge = self._may_merge
        conflicts.task_due = self._task_due

    # ---- for others

    def status(self) -> dict[str, Any]:
        """How replication goes, as `runtime_status` shows it."""
        for address, peer in self._status.peers.items():
            peer.bytes_sent, peer.bytes_received = self._network.traffic(address)
        return self._status.as_json(self._round, self._heard, self._network.refusals())

    async def handle(self, path: str, body: bytes, sender: str) -> bytes:
        """Answer a peer's request. Raises GossipRefused for one that the protocol does not allow."""
        if path != PATH:
            raise GossipRefused(f"nothing is answered at {path[:80]}")
        message = decode(body)
        talk = self._talks.setdefault(sender, _Talk())
        async with talk.lock:
            talk.at = anyio.current_time()
            if isinstance(message, Turn) and (message.exchange, message.step) == talk.last[:2]:
                return talk.last[2]
            steps = answer(message, self._me, self._heard, talk.open_now, self._keys)
            try:
                reply, talk.open_now = await self._remote.run(
                    steps, hear=self._hearing(sender), heavy=len(body) > HEAVY_BYTES
                )
            except StaleTurn:
                raise
            except BaseException:
                talk.open_now = None
                raise
            data = encode(reply)
            if isinstance(message, Turn):
                talk.last = (message.exchange, message.step, data)
        return data

    def _hearing(self, known_as: str | None) -> Callable[[str, Mapping[str, int]], None]:
        def hear(sender: str, heard: Mapping[str, int]) -> None:
            if known_as is not None and sender != known_as:
                raise GossipRefused(f"the message says it is from {sender}, the signature is {known_as}'s")
            self._heard = rules.heard_joined(self._heard, sender, heard, self._me)
            self._status.heard_ms[sender] = self._clock()

        return hear

    def _may_merge(self, session_id: str, heads: Mapping[Hash, str]) -> bool:
        still = rules.still_after(self._still.get(session_id), heads)
        self._still[session_id] = still
        return rules.may_merge(session_id, self._me, self._heard, still)

    def _task_due(self, session_id: str, now_ms: int) -> int:
        near = rules.nearest(session_id, self._me, self._heard)
        return now_ms if near == self._me else now_ms + rules.ELSEWHERE_MS

    # ---- the service

    async def run(self) -> None:
        """Service: stand by until the lease is ours, then gossip until it is not; `stop` ends it."""
        with self._scope:
            while True:
                try:
                    if await self._take_lease():
                        await self._gossip()
                    else:
                        await self._stand_by()
                except CksError as error:
                    self._status.trouble(error.message)
                    _log.warning("gossip stopped and starts again: %s", error.message)
                await anyio.sleep(STANDBY_S)

    def stop(self) -> None:
        """End the service; another process of this database takes over."""
        self._scope.cancel()

    async def _take_lease(self) -> bool:
        clock = await self._store.lease_clock()
        async with self._store.unit() as unit:
            return await take_lease(unit, LEASE, self._instance, LEASE_MS, clock)

    async def _stand_by(self) -> None:
        """Another process gossips; what it hears decides here as well who works on a conflict first."""
        self._status.state = "standby"
        horizon_ms = int((rules.HEARD_ROUNDS * self._config.interval_s + 2 * REBIND_S) * 1000)
        async with self._store.reader() as reader:
            known = await rows.heard_since(reader, self._clock() - horizon_ms)
        self._heard = {id: 0 for id in known if id != self._me}

    async def _gossip(self) -> None:
        self._status.state = "active"
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_lease, tasks.cancel_scope)
                tasks.start_soon(self._listen)
                tasks.start_soon(self._follow)
                tasks.start_soon(self._rounds, tasks)
        finally:
            self._status.state = "standby"
            self._busy.clear()
            with anyio.CancelScope(shield=True):
                async with self._store.unit() as unit:
                    await release_lease(unit, LEASE, self._instance)

    async def _keep_lease(self, scope: anyio.CancelScope) -> None:
        while True:
            await anyio.sleep(RENEW_S)
            try:
                if not await self._take_lease():
                    _log.warning("another process took over gossip while this one was stopped")
                    scope.cancel()
                    return
            except CksError as error:
                _log.warning("the gossip lease could not be renewed: %s", error.message)

    async def _listen(self) -> None:
        """Answer peers; a port that is taken is told and tried again."""
        told = False
        while True:
            try:
                async with self._network.listen(self.handle) as address:
                    self._status.listening(address)
                    await anyio.sleep_forever()
            except CksError as error:
                self._status.port_trouble(error.message)
                if not told:
                    _log.warning("[CKS-MCP] %s", error.message)
                told = True
            await anyio.sleep(REBIND_S)

    async def _follow(self) -> None:
        """Look again at a session with several heads when it is edited, in this process or another."""
        async with self._bus.subscribe(HeadMoved, capacity=4096, name="gossip") as events:
            while True:
                moved = {event.session_id for event in await events.receive_batch()}
                await anyio.sleep(DEBOUNCE_S)
                try:
                    await self._remote.map.refresh()
                    for session_id in moved.intersection(self._remote.map.several()):
                        await self._remote.settle(session_id)
                except Exception as error:
                    self._trouble("an edited session could not be looked at", error)

    def _trouble(self, what: str, error: Exception) -> None:
        """Note a failure that a later round may not have; what other replicas sent must not end this process."""
        if isinstance(error, CksError):
            self._status.trouble(error.message)
            _log.warning("%s: %s", what, error.message)
        else:
            self._status.trouble(f"{what}: {type(error).__name__}")
            _log.error("%s", what, exc_info=error)

    async def _rounds(self, tasks: TaskGroup) -> None:
        while True:
            began = anyio.current_time()
            try:
                await self._one_round(tasks)
            except Exception as error:
                self._trouble("a gossip round failed", error)
            jitter = self._chance.uniform(0.9, 1.1)
            await anyio.sleep(max(0.05, began + self._config.interval_s * jitter - anyio.current_time()))

    async def _one_round(self, tasks: TaskGroup) -> None:
        """Look at what has several heads, and dial. An exchange that takes long holds up no other round."""
        self._round += 1
        self._heard = rules.heard_later(self._heard)
        self._still = {id: still.later() for id, still in self._still.items()}
        now = anyio.current_time()
        self._talks = {id: t for id, t in self._talks.items() if t.lock.locked() or now - t.at < TALK_S}
        await self._remote.map.refresh()
        several = self._remote.map.several()
        self._still = {id: self._still[id] for id in several if id in self._still}
        for session_id in several:
            await self._remote.settle(session_id)
        idle = [peer for address, peer in self._peers.items() if address not in self._busy]
        order = list(range(len(idle)))
        self._chance.shuffle(order)
        for peer in rules.partners(idle, self._round, order):
            self._busy.add(peer.address)
            tasks.start_soon(self._exchange, peer)
        await self._tell_others()

    async def _tell_others(self) -> None:
        """Leave whom we hear of to the other processes, and take over what a lost replica was nearer to."""
        changed = self._told != self._heard.keys()
        if not changed and self._round % TELL_ROUNDS:
            return
        heard = [(id, None, self._status.heard_ms.get(id, self._clock())) for id in self._heard]
        self._told = set(self._heard)
        async with self._store.reader() as reader:
            waiting = await rows.waiting_elsewhere(reader, self._clock()) if self._store.has_outbox else []
        now_ms = self._clock()
        ours = [key for key, session_id in waiting if self._task_due(session_id, now_ms) == now_ms]
        async with self._store.unit() as unit:
            await rows.put_peers(unit, heard)
            for key in ours:
                await rows.postpone_task(unit, key, now_ms)

    async def _exchange(self, peer: rules.Peer) -> None:
        """One exchange with a peer; whatever goes wrong is noted and waits for a later round."""
        shown = self._status.peers[peer.address]

        async def send(message: Message) -> Message:
            return decode(await self._network.request(peer.address, PATH, encode(message)))

        def hear(sender: str, heard: Mapping[str, int]) -> None:
            self._hearing(None)(sender, heard)
            shown.replica_id = sender

        before = shown.state
        try:
            with anyio.fail_after(EXCHANGE_S):
                steps = dial(self._me, self._heard, secrets.token_hex(8), self._keys)
                done = await self._remote.run(steps, send, hear)
        except OwnAddress:
            # one list of peers may serve all replicas
            del self._peers[peer.address]
            shown.state = "self"
            return
        except Exception as error:
            # whatever a peer sends, it must not end this process: the boundary is here
            if not isinstance(error, CksError | GossipRefused | TimeoutError):
                _log.exception("gossip with %s failed in an unforeseen way", peer.address)
            reason = error.message if isinstance(error, CksError) else str(error) or "it took too long"
            self._peers[peer.address] = rules.peer_failed(self._peers[peer.address], self._round)
            shown.failed(reason, self._peers[peer.address].failures)
            if before != "failing":
                _log.warning("gossip with %s failed: %s", peer.address, reason)
            return
        finally:
            self._busy.discard(peer.address)
        self._peers[peer.address] = rules.peer_answered(self._peers[peer.address])
        shown.answered(done, self._round, self._clock())
        if before == "failing":
            _log.info("gossip with %s works again", peer.address)
        self._note(shown, done)

    def _note(self, shown: PeerStatus, done: Exchanged) -> None:
        for session_id, reason in done.pulled.refused:
            told = Refusal(shown.address, session_id, reason, self._clock())
            if self._status.refused(told):
                _log.warning("session %s of %s was refused: %s", session_id, shown.address, reason)
