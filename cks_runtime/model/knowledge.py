"""The knowledge format: objects with identity and structure, read strictly and written canonically."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cks_runtime.model.canon import Hash, Json, NotCanonical, canonical, digest, normalize
from cks_runtime.model.diagnostics import FORMAT, UNIQUE_IDENTITY, Diagnostic, error, quoted
from cks_runtime.model.errors import DamagedBlob, InvalidKnowledge, InvalidParameter, TooLarge

FORMAT_VERSION: Final = "1.0"
NAME_LENGTH_MAX: Final = 512
PROBLEMS_MAX: Final = 100
FOREIGN_PREFIX: Final = "_cks_"
SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
IDENTITY_KEYS: Final = ("id", "type", "name")
RULE_OF_ONE_RELATION_TYPE: Final = "FunctionalRelationRule"

# Integers of 16 digits and more may be doubles, which orjson reads as int.


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that a caller may not exceed; `depth` counts from the structure, which is level 1."""

    request_bytes: int = 5_000_000
    objects: int = 100_000
    object_bytes: int = 262_144
    depth: int = 100


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, eq=False)
class KObject:
    """An object of the graph, immutable and named by `hash`; equal hash is equal content.

    `structure` is normalized JSON that nobody may change; `size` is the length of `blob()` in bytes.
    """

    id: str
    type: str
    name: str
    structure: Mapping[str, Json]
    hash: Hash
    size: int

    def __eq__(self, other: object) -> bool:
        return self.hash == other.hash if isinstance(other, KObject) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.hash)

    @property
    def is_relation(self) -> bool:
        """Whether the object joins others."""
        return "participants" in self.structure

    def as_json(self) -> dict[str, Json]:
        """`{"identity": {…}, "structure": {…}}`; the structure is this object's own, not a copy."""
        return _as_json(self.id, self.type, self.name, self.structure)

    def blob(self) -> bytes:
        """The canonical bytes that `hash` names."""
        return canonical(self.as_json())


def _as_json(id: str, type: str, name: str, structure: Mapping[str, Json]) -> dict[str, Json]:
    plain = structure if isinstance(structure, dict) else dict(structure)
    return {"identity": {"id": id, "type": type, "name": name}, "structure": plain}


def check_session_id(text: object, argument: str = "session_id") -> str:
    """`text` if it can name a session. Raises InvalidParameter, naming the argument it was given as."""
    if isinstance(text, str) and SESSION_ID.fullmatch(text):
        return text
    raise InvalidParameter(
        f"{argument} {quoted(text)} is not a session id",
        "Use 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
        argument=argument,
    )


# ---- reading


def make_object(
    id: object,
    type: object,
    name: object,
    structure: object,
    limits: Limits = DEFAULT_LIMITS,
    where: str = "",
) -> KObject:
    """A checked object. Raises InvalidKnowledge with every problem found, or TooLarge."""
    problems: list[Diagnostic] = []
    made = _make({"id": id, "type": type, "name": name}, structure, limits, where, problems)
    return _made_or_raise(made, problems)


def object_from_json(value: object, limits: Limits = DEFAULT_LIMITS, where: str = "") -> KObject:
    """The object of `{"identity": {…}, "structure": {…}}`. Raises InvalidKnowledge or TooLarge."""
    problems: list[Diagnostic] = []
    return _made_or_raise(_read(value, limits, where, problems), problems)


def parse_knowledge(value: object, limits: Limits = DEFAULT_LIMITS) -> list[KObject]:
    """The objects of a knowledge document, in its order.

    Raises InvalidKnowledge with the first 100 problems, or TooLarge. Whether participants exist is not
    checked here, since they may stand in the graph that the objects are added to.
    """
    problems: list[Diagnostic] = []
    entries = _entries(value, problems)
    if len(entries) > limits.objects:
        raise TooLarge(
            f"the knowledge has {len(entries)} objects; at most {limits.objects} are allowed",
            "Split it, or raise CKS_MAX_OBJECTS.",
            objects=len(entries),
            objects_max=limits.objects,
        )
    objects: list[KObject] = []
    first: dict[str, int] = {}
    for index, entry in enumerate(entries):
        made = _read(entry, limits, f"objects[{index}]", problems)
        if made is not None:
            earlier = first.setdefault(made.id, index)
            if earlier != index:
                text = f"the id {quoted(made.id)} of objects[{index}] is that of objects[{earlier}] already"
                problems.append(error(UNIQUE_IDENTITY, made.id, f"{text}; ids are unique"))
            objects.append(made)
        if len(problems) >= PROBLEMS_MAX:
            break
    if problems:
        raise _invalid(problems)
    _check_total(sum(obj.size for obj in objects), limits)
    return objects


def _check_total(size: int, limits: Limits) -> None:
    if size > limits.request_bytes:
        raise TooLarge(
            f"the knowledge has {size} bytes; at most {limits.request_bytes} are allowed in one request",
            "Split it, or raise CKS_MAX_REQUEST_BYTES.",
            bytes=size,
            bytes_max=limits.request_bytes,
        )


def _entries(value: object, problems: list[Diagnostic]) -> list[object]:
    """The list under `objects`; what is wrong around it goes to `problems`."""
    if not isinstance(value, Mapping):
        text = f"the knowledge is {quoted(value)}; it must be an object with the key 'objects'"
        problems.append(error(FORMAT, "$", text))
        return []
    for key in value:
        known = isinstance(key, str) and (key in ("version", "objects") or key.startswith(FOREIGN_PREFIX))
        if not known:
            text = f"unknown key {quoted(key)}; allowed are 'version', 'objects' and keys that begin '_cks_'"
            problems.append(error(FORMAT, "$", text))
        if len(problems) >= PROBLEMS_MAX:
            return []
    if value.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        text = f"version is {quoted(value['version'])}; only '{FORMAT_VERSION}' is known"
        problems.append(error(FORMAT, "version", text))
    if "objects" not in value:
        problems.append(error(FORMAT, "objects", "'objects' is missing; it is a list, which may be empty"))
        return []
    entries = value["objects"]
    if not isinstance(entries, list | tuple):
        problems.append(error(FORMAT, "objects", f"objects is {quoted(entries)}; it must be a list"))
        return []
    return list(entries)


def _read(value: object, limits: Limits, where: str, problems: list[Diagnostic]) -> KObject | None:
    place = where or "object"
    if not isinstance(value, Mapping):
        text = f"{place} is {quoted(value)}; it must be an object with 'identity' and 'structure'"
        problems.append(error(FORMAT, place, text))
        return None
    location = _location(value.get("identity"), place)
    before = len(problems)
    for key in value:
        if key not in ("identity", "structure"):
            text = (
                f"{_named(location, where)}: unknown key {quoted(key)}; allowed are 'identity', 'structure'"
            )
            problems.append(error(FORMAT, location, text))
            if len(problems) >= PROBLEMS_MAX:
                return None
    if "identity" not in value:
        problems.append(error(FORMAT, location, f"{place}: 'identity' is missing"))
        return None
    made = _make(value["identity"], value.get("structure", {}), limits, where, problems)
    return made if len(problems) == before else None


def _make(
    identity: object, structure: object, limits: Limits, where: str, problems: list[Diagnostic]
) -> KObject | None:
    names = _names(identity)
    faults: list[str] = [] if names else list(_identity_faults(identity))
    type_given = identity.get("type") if isinstance(identity, Mapping) else None
    plain = _plain_structure(structure, type_given, limits.depth, faults)
    if names is None or plain is None or faults:
        location = _location(identity, where or "object")
        named = _named(location, where)
        problems.extend(error(FORMAT, location, f"{named}: {fault}") for fault in faults)
        return None
    data = canonical(_as_json(*names, plain))
    if len(data) > limits.object_bytes:
        raise TooLarge(
            f"{_named(names[0], where)} has {len(data)} bytes; at most {limits.object_bytes} are allowed",
            "Split it into several objects or a document, or raise CKS_MAX_OBJECT_BYTES.",
            object_id=names[0],
            bytes=len(data),
            bytes_max=limits.object_bytes,
        )
    # read back, so that an object is the same, keys in order, in the process that made it and in every other
    return object_from_blob(data, digest(data))


def _names(identity: object) -> tuple[str, str, str] | None:
    """Id, type and name of a faultless identity."""
    if not isinstance(identity, Mapping) or len(identity) != len(IDENTITY_KEYS):
        return None
    names = [identity.get(key) for key in IDENTITY_KEYS]
    good = [str.__str__(name) for name in names if isinstance(name, str) and _name_fault(name) is None]
    return (good[0], good[1], good[2]) if len(good) == len(IDENTITY_KEYS) else None


def _name_fault(name: str) -> str | None:
    """Why the text cannot be an id, type or name."""
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        length = f" of {len(name)} characters" if name else ""
        return f"is {quoted(name)}{length}; it must have 1 to {NAME_LENGTH_MAX} characters"
    if not name.isascii():
        try:
            normalize(name)
        except NotCanonical as refused:
            return f"is refused: {refused.reason}"
    return None


def _identity_faults(identity: object) -> Iterable[str]:
    if not isinstance(identity, Mapping):
        yield f"identity is {quoted(identity)}; it must be an object with 'id', 'type' and 'name'"
        return
    unknown = [key for key in identity if key not in IDENTITY_KEYS]
    if unknown:
        yield f"identity has the unknown key {quoted(unknown[0])}; it has exactly 'id', 'type' and 'name'"
    for key in IDENTITY_KEYS:
        if key not in identity:
            yield f"identity.{key} is missing; it must be a non-empty string"
            continue
        value = identity[key]
        fault = _name_fault(value) if isinstance(value, str) else f"is {quoted(value)}; it must be a string"
        if fault is not None:
            yield f"identity.{key} {fault}"


def format_faults(obj: KObject) -> Iterable[str]:
    """What breaks the format in an object that was not made here, as one from another replica may."""
    if _names(identity := {"id": obj.id, "type": obj.type, "name": obj.name}) is None:
        yield from _identity_faults(identity)
    yield from _relation_faults(obj.structure, obj.type)


def _plain_structure(
    structure: object, type: object, depth: int, faults: list[str]
) -> dict[str, Json] | None:
    """The normalized structure; what is wrong with it goes to `faults`."""
    if not isinstance(structure, Mapping):
        faults.append(f"structure is {quoted(structure)}; it must be an object")
        return None
    plain: Json = None
    try:
        plain = normalize(structure, "structure", depth)
    except NotCanonical as refused:
        faults.append(str(refused))
    faults.extend(_relation_faults(structure, type))
    return plain if isinstance(plain, dict) else None


def _relation_faults(structure: Mapping[Any, object], type: object) -> Iterable[str]:
    joined = "participants" in structure
    # A rule about relations of one type names that type and joins nothing.
    ruling = type == RULE_OF_ONE_RELATION_TYPE and not joined
    if joined != ("relation_type" in structure) and not ruling:
        has, lacks = ("participants", "relation_type") if joined else ("relation_type", "participants")
        yield f"structure has '{has}' but not '{lacks}'; a relation has both, any other object neither"
    if joined:
        yield from _participant_faults(structure["participants"])
    if "relation_type" in structure:
        relation_type = structure["relation_type"]
        if not isinstance(relation_type, str) or not relation_type:
            yield f"structure.relation_type is {quoted(relation_type)}; it must be a non-empty string"


def _participant_faults(participants: object) -> Iterable[str]:
    if not isinstance(participants, list | tuple):
        yield f"structure.participants is {quoted(participants)}; it must be a list of two or more object ids"
        return
    if len(participants) < 2:
        yield f"structure.participants has {len(participants)} object id(s); a relation has two or more"
    for index, participant in enumerate(participants):
        if not isinstance(participant, str) or not participant:
            yield f"structure.participants[{index}] is {quoted(participant)}; it must be an object id"
            return


def _location(identity: object, place: str) -> str:
    """The object's id where it can be named by it, else its place in the input."""
    id = identity.get("id") if isinstance(identity, Mapping) else None
    return str.__str__(id) if isinstance(id, str) and _name_fault(id) is None else place


def _named(location: str, where: str) -> str:
    if location == (where or "object"):
        return location
    return f"object {quoted(location)}" + (f" ({where})" if where else "")


def _made_or_raise(made: KObject | None, problems: list[Diagnostic]) -> KObject:
    if made is None or problems:
        raise _invalid(problems)
    return made


def _invalid(problems: list[Diagnostic]) -> InvalidKnowledge:
    kept = problems[:PROBLEMS_MAX]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidKnowledge(
        problems[0].message + more,
        "Fix what the diagnostics name and send it again.",
        diagnostics=[problem.as_json() for problem in kept],
    )


# ---- stored form


def object_from_blob(data: bytes, expected: Hash) -> KObject:
    """The object that `expected` names, from its canonical bytes. Raises DamagedBlob."""
    if digest(data) != expected:
        raise _damaged(expected, "do not match their hash")
    try:
        value = orjson.loads(data)
        identity, structure = value["identity"], value["structure"]
        id, type, name = identity["id"], identity["type"], identity["name"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(expected, "are not an object") from None
    if (
        isinstance(id, str)
        and isinstance(type, str)
        and isinstance(name, str)
        and isinstance(structure, dict)
    ):
        return KObject(id, type, name, structure, expected, len(data))
    raise _damaged(expected, "are not an object")


def _damaged(expected: Hash, what: str) -> DamagedBlob:
    return DamagedBlob(
        f"the stored bytes of object {expected.hex()} {what}",
        "Restore it from a replica or a copy of the database.",
        object_hash=expected.hex(),
    )


def dump_knowledge(objects: Iterable[KObject]) -> dict[str, Json]:
    """The knowledge document of these objects, sorted by id (in code point order)."""
    ordered = sorted(objects, key=lambda obj: obj.id)
    return {"version": FORMAT_VERSION, "objects": [obj.as_json() for obj in ordered]}


def dump_bytes(objects: Iterable[KObject]) -> bytes:
    """The canonical bytes of `dump_knowledge`: the same objects always give the same bytes."""
    ordered = sorted(objects, key=lambda obj: obj.id)
    return b'{"objects":[' + b",".join(obj.blob() for obj in ordered) + b'],"version":"1.0"}'
