"""What the tests of the bus are built from."""

from __future__ import annotations

from cks_runtime.flow.bus import Subscription
from cks_runtime.model.events import HeadMoved, SessionCreated


def moved(seq: int) -> HeadMoved:
    return HeadMoved(version_id="aa", previous_id="bb", seq=seq)


def created(seq: int) -> SessionCreated:
    return SessionCreated(version_id="aa", seq=seq)


def taken(subscription: Subscription) -> list[int]:
    found = []
    while len(subscription):
        found.append(subscription.receive_nowait().seq)
    return found
