"""Which objects an object refers to, and in what role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from cks_runtime.model.knowledge import KObject

Role = Literal["participant", "premise", "conclusion", "superseded_by", "subject"]

_ROLES: Final[dict[str, tuple[tuple[Role, str], ...]]] = {
    "InferenceStep": (
        ("premise", "premises"),
        ("conclusion", "conclusion"),
        ("superseded_by", "superseded_by"),
    ),
    "VerificationRecord": (("subject", "subject_id"), ("superseded_by", "superseded_by")),
}
_OF_ANY: Final[tuple[tuple[Role, str], ...]] = (("participant", "participants"),)


def references(obj: KObject) -> list[tuple[Role, str]]:
    """Every (role, id) that `obj` refers to, each once, in the order written.

    Whether the ids exist is not asked; where the structure is malformed, what is not a string is passed over.
    """
    return list(dict.fromkeys(_references(obj)))


def _references(obj: KObject) -> Iterator[tuple[Role, str]]:
    for role, key in _OF_ANY + _ROLES.get(obj.type, ()):
        value = obj.structure.get(key)
        for target in value if isinstance(value, list) else [value]:
            if isinstance(target, str):
                yield role, target
