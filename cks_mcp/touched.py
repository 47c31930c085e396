"""Which resources an event touches, and telling the clients that subscribed to them."""

from __future__ import annotations

from urllib.parse import quote

from cks_mcp.subscriptions import ResourceUpdates
from cks_runtime.flow.bus import Subscription
from cks_runtime.model.document_events import DocumentPublished
from cks_runtime.model.events import ConflictClosed, Event, HeadMoved, SessionCreated

_KIND_OF = {
    "GossipConflictDetected": "gossip",
    "InferenceConflictDetected": "inference",
    "TemporalConflictDetected": "temporal",
    "VerificationExpired": "provenance",
}


_UNQUOTED = "/:@!$&'()*+,;="  # RFC 3986: what may stand in a path as it is


def touched(event: Event) -> list[str]:
    """URIs of the resources that show something else after this event."""
    uris: list[str] = []
    if isinstance(event, DocumentPublished):
        # as RFC 3986 spells it, and plainly where that differs
        uris += dict.fromkeys([f"doc://{quote(event.path, safe=_UNQUOTED)}", f"doc://{event.path}"])
    if isinstance(event, HeadMoved | SessionCreated):
        uris.append(f"cks://sessions/{event.session_id}")
    kind = event.conflict_kind if isinstance(event, ConflictClosed) else _KIND_OF.get(event.kind)
    if kind is not None:
        uris += [f"cks://conflicts/{kind}", f"cks://sessions/{event.session_id}"]
    return uris


async def follow(events: Subscription, updates: ResourceUpdates) -> None:
    """Service: tell subscribed clients what changed, in this process or another."""
    async with events:
        async for event in events:
            updates.touch(*touched(event))
