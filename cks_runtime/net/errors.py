"""What can go wrong between two replicas, each as a sentence for an operator."""

from __future__ import annotations

from cks_runtime.model.errors import CksError

TEXT_CHARACTERS_MAX = 300


class PeerError(CksError):
    """Base of all that a request to a peer raises; `peer` is its address without credentials."""

    def __init__(self, peer: str, message: str, hint: str = "", **details: object) -> None:
        super().__init__(f"peer {peer} {message}", hint, peer=peer, **details)
        self.peer = peer


class PeerUnreachable(PeerError):
    """No answer came: the peer is down, too slow, or the way to it is cut. Try again later."""


class PeerGarbage(PeerError):
    """What answers is no replica that knows our secret, or its answer was altered on the way."""


class PeerRefused(PeerError):
    """The peer understood who asks and said no; `status` and `reason` are its own."""

    def __init__(self, peer: str, status: int, reason: str, hint: str = "") -> None:
        super().__init__(peer, f"refused with {status}: {reason}", hint, status=status)
        self.status = status
        self.reason = reason


class PeerIsSelf(PeerRefused):
    """The address leads to a replica with our own id."""


class WrongSecret(PeerError):
    """The peer does not accept our signature."""

    code = "unauthorized"


class PortUnavailable(CksError):
    """The address cannot be bound now: free the port or choose another; the caller tries again."""


def one_line(text: str) -> str:
    """`text` as it may stand in a message: no control characters, at most 300 characters."""
    kept = text[: TEXT_CHARACTERS_MAX + 1]
    shown = "".join(char if char.isprintable() else " " for char in kept)
    return shown if len(shown) <= TEXT_CHARACTERS_MAX else shown[: TEXT_CHARACTERS_MAX - 1] + "…"
