"""The server behind `cks-mcp`: the only module that joins the sweepers to the tools."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from mcp.server.lowlevel import Server

from cks_mcp.llm.ask import Llm, LlmConfig
from cks_mcp.server import Offer, build_server
from cks_mcp.services import Services
from cks_mcp.subscriptions import ResourceUpdates
from cks_mcp.touched import follow
from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.gossip import GossipConfig
from cks_runtime.runtime import Runtime
from cks_runtime.settings import Settings
from sweepers import SweeperTeam

INSTRUCTIONS = (
    "Shared, versioned knowledge: typed objects, relations and reasoning steps in sessions. Read with "
    "explain_knowledge, query_subgraph and search_knowledge; edit with evolve_knowledge; try things on a branch "
    "(create_branch, merge_branch). Nothing is ever lost: every edit is a version. What disagrees or went stale "
    "comes through list_inference_conflicts and list_gossip_conflicts, which take notices off a queue. Markdown "
    "documents are read with mark_fetch and written with mark_publish; a lost race answers with a merged candidate to "
    "review."
)

log = logging.getLogger("cks_mcp")


def make_server(settings: Settings, config: RuntimeConfig) -> Server[Services]:
    """The whole server for any transport; its lifespan opens the runtime and starts the sweepers."""
    updates = ResourceUpdates()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Services]:
        async with Runtime.open(config) as rt:
            team = SweeperTeam.standard(rt)
            events = rt.bus.subscribe(capacity=10_000, name="resources")
            rt.run([lambda: follow(events, updates)])
            team.start()
            async with replication(settings, rt) as gossip_state:
                announce(team)
                yield Services(
                    rt,
                    sweepers=lambda: sweeper_states(team),
                    gossip=gossip_state,
                    llm=Llm(LlmConfig.of(settings)),
                )

    return build_server(
        name="cks-mcp",
        version=version("cks"),
        instructions=INSTRUCTIONS,
        offer=lambda: make_offer(settings),
        updates=updates,
        lifespan=lifespan,
    )


def make_offer(settings: Settings) -> Offer:
    """Every tool and resource that the settings switch on."""
    from cks_mcp.offer import offer

    return offer(settings.toolsets, settings.max_request_bytes)


@asynccontextmanager
async def replication(settings: Settings, rt: Runtime) -> AsyncIterator[Callable[[], Mapping[str, Any]]]:
    """Gossip as the settings say; gives what tells its state."""
    if not settings.gossip_enabled:
        log.info("[CKS-MCP] Gossip disabled")
        yield lambda: {"enabled": False}
        return
    from cks_runtime.net.network import HttpNetwork

    assert settings.gossip_secret is not None, "the settings refuse gossip without a secret"
    secret = settings.gossip_secret.get_secret_value().encode()
    host, port, peers = settings.gossip_host, settings.gossip_port, settings.gossip_peers
    async with HttpNetwork(secret, rt.replica_id, host, port) as network:
        loop = rt.gossip(network, GossipConfig(peers, settings.gossip_interval_s))
        rt.run([loop.run])
        shown = f"[{host}]" if ":" in host else host
        log.info("[CKS-MCP] Gossip enabled: http://%s:%d, %d peers", shown, port, len(peers))
        try:
            yield loop.status
        finally:
            loop.stop()


def sweeper_states(team: SweeperTeam) -> Mapping[str, Mapping[str, Any]]:
    """Every sweeper's state by name, as tools show it."""
    return {name: asdict(status) for name, status in team.status().items()}


def announce(team: SweeperTeam) -> None:
    """The log lines about sweepers that an operator looks for at start."""
    for name, status in team.status().items():
        if status.enabled:
            log.info(
                "[CKS-MCP] Sweeper %s: every %g s, after commits and at due times", name, status.interval_s
            )
        else:
            log.info("[CKS-MCP] Sweeper %s: off", name)
