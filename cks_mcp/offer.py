"""Everything a client can be offered. Importing it loads every tool, so a server does that after its start."""

from __future__ import annotations

from collections.abc import Collection

from cks_mcp.calls import Tools, Toolset
from cks_mcp.server import Offer
from cks_mcp.tools.agent import agent
from cks_mcp.tools.arbitrate import arbitration
from cks_mcp.tools.compare import comparisons
from cks_mcp.tools.conflicts import conflicts
from cks_mcp.tools.dead_letters import dead_letters
from cks_mcp.tools.documents import documents
from cks_mcp.tools.gossip import gossip
from cks_mcp.tools.history import history
from cks_mcp.tools.lines import lines
from cks_mcp.tools.read import reads
from cks_mcp.tools.write import core
from cks_mcp.views import build_resources

TOOLSETS: tuple[Toolset, ...] = (
    core,
    reads,
    history,
    comparisons,
    lines,
    conflicts,
    gossip,
    arbitration,
    dead_letters,
    documents,
    agent,
)


def offer(switched_on: Collection[str], request_bytes_max: int, further: Collection[Toolset] = ()) -> Offer:
    """The toolsets of these names and `further` ones, with every resource."""
    toolsets = [toolset for toolset in TOOLSETS if toolset.name in switched_on]
    return Offer(Tools([*toolsets, *further], request_bytes_max=request_bytes_max), build_resources())
