"""Three replicas in network namespaces of their own: a partition, edits on both sides, and all equal after it heals.

Usage (as root, on Linux): python tests/soak/gossip_partition.py [--seeds 20] [--first 1] [--busy-s 6]
Prints one line a seed; exits with 1 when replicas stay apart, an edit is lost or records differ, 77 without rights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

COUNT = 3
PORT = 8765
INTERVAL_S = 0.3
ROUNDS_MAX = 20
SECRET = "a secret for the soak test, 32 bytes and more"
SKIPPED = 77


# ---- network


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def address(number: int) -> str:
    return f"10.77.0.{number + 1}"


@contextmanager
def network(tag: str) -> Iterator[None]:
    """A namespace with a bridge, and one namespace a replica plugged into it."""
    names = [f"{tag}-hub", *(f"{tag}-{number}" for number in range(COUNT))]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "br0", "type", "bridge")
        ip("-n", names[0], "link", "set", "br0", "up")
        for number in range(COUNT):
            own = f"{tag}-{number}"
            ip(
                "-n",
                names[0],
                "link",
                "add",
                f"p{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                own,
            )
            ip("-n", names[0], "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", own, "addr", "add", f"{address(number)}/24", "dev", "eth0")
            ip("-n", own, "link", "set", "eth0", "up")
            ip("-n", own, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def plug(tag: str, number: int, state: str) -> None:
    """Connect a replica with the others, or part it from them."""
    ip("-n", f"{tag}-hub", "link", "set", f"p{number}", state)


# ---- a replica


async def replica(number: int, folder: str, seed: int) -> None:
    """Obeys its standard input: `edit` makes a random edit, `state` prints where it stands."""
    from cks_runtime.config import RuntimeConfig
    from cks_runtime.flow.gossip import GossipConfig
    from cks_runtime.net.network import HttpNetwork
    from cks_runtime.runtime import Runtime

    chance = random.Random(seed * 10 + number)
    peers = tuple(f"http://{address(other)}:{PORT}" for other in range(COUNT) if other != number)
    config = RuntimeConfig(
        db_path=f"{folder}/{number}.db", sqlite_synchronous="NORMAL", record_secret=SECRET.encode()
    )
    acknowledged: list[tuple[str, bytes]] = []
    async with (
        Runtime.open(config) as rt,
        HttpNetwork(SECRET.encode(), rt.replica_id, address(number), PORT) as net,
    ):
        loop = rt.gossip(net, GossipConfig(peers, INTERVAL_S))
        rt.run([loop.run])
        print("ready", flush=True)
        while line := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip():
            if line == "edit":
                session_id = chance.choice(("main", "plan"))
                acknowledged.append((session_id, await edit(rt, session_id, chance)))
                print("done", flush=True)
            else:
                print(json.dumps(await standing(rt, acknowledged)), flush=True)
        loop.stop()


async def edit(rt: Any, session_id: str, chance: random.Random) -> bytes:
    from cks_runtime.model.errors import SessionNotFound

    id = f"o{chance.randrange(6)}"
    try:
        known = id in (await rt.sessions.head(session_id))[1]
    except SessionNotFound:
        known = False
    patch = {chance.choice("ab"): chance.randrange(1_000_000)}
    operation: dict[str, Any] = {
        "op": "add_object",
        "identity": {"id": id, "type": "Thing", "name": id},
        "structure": patch,
    }
    if known:
        operation = {"op": "update_object", "object_id": id, "structure_patch": patch, "mode": "merge"}
    moved = await rt.commits.evolve(session_id, [operation], create=True)
    version: bytes = moved.version.id
    return version


async def standing(rt: Any, acknowledged: list[tuple[str, bytes]]) -> dict[str, Any]:
    """The heads it knows by session, its open records, and how many of its edits no head descends from."""
    from cks_runtime.flow.graphs import drive
    from cks_runtime.flow.heads_map import known_heads
    from cks_runtime.model.gossip_heads import join_heads
    from cks_runtime.store.gossip import remote_heads

    heads: dict[str, list[str]] = {}
    lost = 0
    for row in await rt.sessions.page(None, "", 100):
        async with rt.store.reader() as reader:
            known = known_heads(row, await remote_heads(reader, row.session_id), rt.replica_id)
        known = await drive(join_heads(known), rt.graphs.ancestries)
        heads[row.session_id] = sorted(head.hex() for head in known)
    for session_id, version in acknowledged:
        found = [bytes.fromhex(head) for head in heads[session_id]]
        lost += not any([await rt.graphs.is_ancestor(version, head) for head in found])
    records = sorted(record.record_id for record in await rt.conflicts.page("gossip", "open", None, 0, 100))
    return {"heads": heads, "records": records, "lost": lost}


# ---- the run


class Child:
    """A replica's process in its namespace."""

    def __init__(self, tag: str, number: int, folder: str, seed: int) -> None:
        self.log = Path(folder) / f"{number}.log"
        command = ["ip", "netns", "exec", f"{tag}-{number}", sys.executable, __file__]
        self.process = subprocess.Popen(
            [*command, "--child", str(number), "--folder", folder, "--first", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise SystemExit(f"a replica died: {self.log.read_text()[-2000:]}") from None
        return self._line()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("state"))
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def run(seed: int, busy_s: float) -> bool:
    """One seed; whether all held."""
    tag = f"cks{os.getpid()}"
    chance = random.Random(seed)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(network(tag))
        children = []
        for number in range(COUNT):
            child = Child(tag, number, folder, seed)
            stack.callback(child.close)
            children.append(child)
        apart = chance.randrange(COUNT)
        began = time.monotonic()
        parted = False
        while (now := time.monotonic() - began) < busy_s:
            if not parted and now > busy_s / 4:
                plug(tag, apart, "down")
                parted = True
            chance.choice(children).ask("edit")
            time.sleep(chance.uniform(0.0, 0.2))
        plug(tag, apart, "up")
        return settled(seed, children)


def settled(seed: int, children: list[Child]) -> bool:
    """Wait until all are equal; whether that came in time and nothing was lost."""
    healed = time.monotonic()
    while True:
        states = [child.state() for child in children]
        # each conflict is between two of the heads, so it stands open where these are held: on two at least
        held_by = Counter(record for s in states for record in s["records"])
        equal = all(s["heads"] == states[0]["heads"] for s in states) and min(held_by.values(), default=2) > 1
        rounds = (time.monotonic() - healed) / INTERVAL_S
        if equal or rounds > 3 * ROUNDS_MAX:
            break
        time.sleep(INTERVAL_S / 3)
    if not equal:
        print(json.dumps(states, indent=1), flush=True)
    lost = sum(state["lost"] for state in states)
    held = equal and lost == 0
    print(
        f"seed {seed}: {'equal' if equal else 'NOT equal'} after {rounds:.0f} rounds, lost {lost},"
        f" {len(states[0]['records'])} conflicts open on each",
        flush=True,
    )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--busy-s", type=float, default=6.0)
    parser.add_argument("--child", type=int)
    parser.add_argument("--folder", default="")
    args = parser.parse_args()
    if args.child is not None:
        anyio.run(replica, args.child, args.folder, args.first)
        return 0
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        print("skipped: no right to make network namespaces")
        return SKIPPED
    assert Path(__file__).exists()
    held = [run(seed, args.busy_s) for seed in range(args.first, args.first + args.seeds)]
    print(f"{sum(held)} of {len(held)} seeds hold")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
