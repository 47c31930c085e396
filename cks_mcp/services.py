"""What every tool and resource works with: the runtime, and what the server knows about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cks_mcp.calls import ToolContext
from cks_mcp.llm.ask import Llm, LlmConfig
from cks_runtime.runtime import Runtime

Status = Callable[[], Mapping[str, Mapping[str, Any]]]


def _no_sweepers() -> Mapping[str, Mapping[str, Any]]:
    return {}


@dataclass(frozen=True, slots=True)
class Services:
    """`sweepers` tells the state of each sweeper by name, `gossip` that of replication; `llm` answers when asked."""

    rt: Runtime
    sweepers: Status = field(default=_no_sweepers)
    gossip: Callable[[], Mapping[str, Any]] = field(default=lambda: {"enabled": False})
    llm: Llm = field(default_factory=lambda: Llm(LlmConfig()))

    def author(self, ctx: ToolContext[Services], given: str | None) -> str:
        """Who a version says it is by: what the caller says, else the client's name and the replica id."""
        return given if given is not None else f"{ctx.client_name or 'client'}@{self.rt.replica_id}"


Ctx = ToolContext[Services]
