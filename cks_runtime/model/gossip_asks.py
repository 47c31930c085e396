"""What the protocol's decisions ask their driver for: the local store, or the peer at the other end.

Decisions are generators that yield asks and are sent answers; the same ones run over HTTP and a database, and in
the simulator over plain dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from cks_runtime.model.canon import Hash
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.gossip_heads import SessionHeads
from cks_runtime.model.gossip_messages import Want
from cks_runtime.model.graph import Graph
from cks_runtime.model.history import Ancestry, Version

Kind = Literal["version", "node", "object"]


@dataclass(frozen=True, slots=True)
class Lacking:
    """Which of these are not in the local store? Answer: set[Hash]."""

    kind: Kind
    hashes: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Local nodes and objects. Answer: Mapping[Hash, bytes], all of them."""

    hashes: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Ancestries:
    """Parents and generation of local versions. Answer: Mapping[Hash, Ancestry] of those that exist."""

    ids: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """Local versions. Answer: Mapping[Hash, Version] of those that exist."""

    ids: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of local versions. Answer: Mapping[Hash, Graph] by version."""

    ids: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class RefusedAmong:
    """Which of these versions are kept as history only? Answer: set[Hash]."""

    ids: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A checked version to be stored. `errors` make it one that is neither taken nor merged."""

    version: Version
    generation: int
    errors: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Store this in one transaction: history without a head, which nothing shows yet. Answer: None."""

    versions: tuple[KeptVersion, ...]
    nodes: Mapping[Hash, bytes]
    objects: Mapping[Hash, bytes]


@dataclass(frozen=True, slots=True)
class Apply:
    """Everything about this entry is stored: join it with what is known of the session. Answer: None."""

    entry: SessionHeads


Local = Lacking | Stored | Ancestries | Versions | Graphs | RefusedAmong | Keep | Apply
Ask = Local | Want

T = TypeVar("T")
A = TypeVar("A")
Asking: TypeAlias = Generator[Any, Any, T]
"""A decision: yields `Ask`s, is sent each one's answer."""


def through(
    steps: Generator[list[Hash], Mapping[Hash, A], T], ask: Callable[[tuple[Hash, ...]], Any]
) -> Asking[T]:
    """Run a generator that asks for hashes (`merge_bases`, `load_graph`, …) as part of a decision."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send((yield ask(tuple(wanted))))
    except StopIteration as stop:
        result: T = stop.value
        return result


def ancestries(ids: Iterable[Hash]) -> Asking[Mapping[Hash, Ancestry]]:
    """Ask for ancestries."""
    answer: Mapping[Hash, Ancestry] = yield Ancestries(tuple(ids))
    return answer


def lacking(kind: Kind, hashes: Iterable[Hash]) -> Asking[set[Hash]]:
    """Ask what is not stored."""
    wanted = tuple(hashes)
    if not wanted:
        return set()
    answer: set[Hash] = yield Lacking(kind, wanted)
    return answer


def graphs(ids: Iterable[Hash]) -> Asking[Mapping[Hash, Graph]]:
    """Ask for graphs of versions."""
    answer: Mapping[Hash, Graph] = yield Graphs(tuple(ids))
    return answer


def versions(ids: Iterable[Hash]) -> Asking[Mapping[Hash, Version]]:
    """Ask for versions."""
    answer: Mapping[Hash, Version] = yield Versions(tuple(ids))
    return answer
