"""A graph in the middle of a list of edits: the changes so far, laid over the graph they began with."""

from __future__ import annotations

from typing import Literal

from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.references import Role, references
from cks_runtime.model.supersession import RECORD_TYPE

Cascade = Literal["relation", "record"]


class Draft:
    """Reads as the graph with the changes so far; making one change costs no new graph.

    `cascaded` names what is gone because something it needs was removed.
    """

    def __init__(self, base: Graph) -> None:
        self.base = base
        self.changes: dict[str, KObject | None] = {}
        self.cascaded: dict[str, Cascade] = {}
        self._referrers: dict[tuple[Role, str], set[str]] = {}

    def get(self, id: str) -> KObject | None:
        """The object as it now stands."""
        return self.changes[id] if id in self.changes else self.base.get(id)

    def present(self, id: str) -> bool:
        """Whether the object now stands, be it one that cannot be read."""
        return self.changes[id] is not None if id in self.changes else id in self.base

    def was_removed(self, id: str) -> bool:
        """Whether an edit of this draft removed the object."""
        return id in self.changes and self.changes[id] is None

    def put(self, obj: KObject) -> None:
        """Adds the object or puts it in place of the one with its id."""
        self._forget(obj.id)
        self.cascaded.pop(obj.id, None)
        self.changes[obj.id] = obj
        for reference in references(obj):
            self._referrers.setdefault(reference, set()).add(obj.id)

    def remove(self, id: str) -> None:
        """Removes the object, the relations that mention it, its records as a subject, and so on."""
        waiting = [id]
        while waiting:
            gone = waiting.pop()
            if not self.present(gone):
                continue
            self._forget(gone)
            self.changes[gone] = None
            for relation in self.referrers("participant", gone):
                self._cascade(relation, waiting)
            for record in self.referrers("subject", gone):
                self._cascade(record, waiting)

    def referrers(self, role: Role, target: str) -> list[str]:
        """Ids of the objects that now refer to `target` in `role`, sorted."""
        kept = {id for id in self.base.referrers(role, target) if id not in self.changes}
        return sorted(kept | self._referrers.get((role, target), set()))

    def net(self) -> dict[str, KObject | None]:
        """The objects that differ from the graph the draft began with, None being removed."""
        return {
            id: now for id, now in self.changes.items() if id in self.base.damaged or now != self.base.get(id)
        }

    def _cascade(self, id: str, waiting: list[str]) -> None:
        obj = self.get(id)
        if obj is not None:
            self.cascaded[id] = "record" if obj.type == RECORD_TYPE else "relation"
            waiting.append(id)

    def _forget(self, id: str) -> None:
        """Takes the references of a changed object off the index."""
        changed = self.changes.get(id)
        for reference in references(changed) if changed is not None else ():
            self._referrers[reference].discard(id)
