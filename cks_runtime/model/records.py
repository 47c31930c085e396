"""Proofs that a source was checked: signs VerificationRecords and refuses those that are not intact."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cks_runtime.model.canon import Json, canonical
from cks_runtime.model.diagnostics import (
    UNVERIFIED_PROVENANCE,
    VERIFICATION_RECORD,
    Diagnostic,
    broken,
    quoted,
    quoted_ids,
)
from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.supersession import RECORD_TYPE
from cks_runtime.model.times import format_ms, parse_rfc3339

LINK_TYPE: Final = "verified_by"
MANUAL_REVIEW: Final = "manual_review"
CHECKED_VIA: Final = ("automated_http_check", "automated_search_check", MANUAL_REVIEW)
UNSIGNED_KEYS: Final = frozenset({"signature", "superseded_by"})
KEY_BYTES_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys that sign and verify records, by key id; `primary_id` is the one that signs."""

    primary_id: str
    keys: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if self.primary_id not in self.keys:
            raise ValueError("the primary key is not on the keyring")
        if any(len(key) < KEY_BYTES_MIN for key in self.keys.values()):
            raise ValueError(f"a record key has at least {KEY_BYTES_MIN} bytes")

    @classmethod
    def of(cls, primary: bytes, *others: bytes) -> Keyring:
        """The keyring that signs with `primary` and also trusts what `others` signed."""
        return cls(key_id(primary), {key_id(key): key for key in (primary, *others)})


def key_id(key: bytes) -> str:
    """The public name of a key: 16 hex digits that tell nothing about it."""
    return hmac.digest(key, b"cks record key id", "sha256").hex()[:16]


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A 32-byte key for one purpose: HKDF-SHA256 (RFC 5869) without salt, the purpose being its info."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, purpose.encode() + b"\x01", "sha256")


def sign(record_id: str, name: str, fields: Mapping[str, Json], keyring: Keyring) -> dict[str, Json]:
    """The structure of a signed record: `fields` with `key_id` and `signature`.

    The signature is HMAC-SHA256 in hex over the canonical JSON of the identity and every field but the
    signature and `superseded_by`, so a record holds under this id and name only.
    """
    signed: dict[str, Json] = {**fields, "key_id": keyring.primary_id}
    signature = _signature(record_id, name, signed, keyring.keys[keyring.primary_id])
    return {**signed, "signature": signature}


def verify(obj: KObject, keyring: Keyring) -> bool:
    """Whether this is a record that a key of the ring signed exactly so; compares in constant time."""
    name, shown = obj.structure.get("key_id"), obj.structure.get("signature")
    if obj.type != RECORD_TYPE or not isinstance(name, str) or not isinstance(shown, str):
        return False
    key = keyring.keys.get(name)
    if key is None:
        return False
    return hmac.compare_digest(_signature(obj.id, obj.name, obj.structure, key).encode(), shown.encode())


def _signature(record_id: str, name: str, fields: Mapping[str, Json], key: bytes) -> str:
    return hmac.new(key, _signed_bytes(record_id, name, fields), hashlib.sha256).hexdigest()


def _signed_bytes(record_id: str, name: str, fields: Mapping[str, Json]) -> bytes:
    kept: dict[str, Json] = {key: value for key, value in fields.items() if key not in UNSIGNED_KEYS}
    identity: dict[str, Json] = {"id": record_id, "type": RECORD_TYPE, "name": name}
    return canonical({"identity": identity, "structure": kept})


def record_operations(
    record_id: str,
    relation_id: str,
    subject: KObject,
    url: str,
    final_url: str,
    http_status: int | None,
    checked_at_ms: int,
    checked_via: str,
    keyring: Keyring,
) -> list[dict[str, Json]]:
    """The operations that add a signed record of `subject` as it is now, and its `verified_by` relation.

    `http_status` is a 2xx number, or None for a manual review. Raises ValueError for what no record can say.
    """
    fields: dict[str, Json] = {
        "url": url,
        "final_url": final_url,
        "http_status": http_status,
        "checked_at": format_ms(checked_at_ms),
        "checked_via": checked_via,
        "subject_id": subject.id,
        "subject_hash": subject.hash.hex(),
    }
    problems = list(_faults(fields))
    if problems:
        raise ValueError(problems[0])
    name = f"Verification of {subject.id}"[:512]
    signed = sign(record_id, name, fields, keyring)
    return [
        {
            "op": "add_object",
            "identity": {"id": record_id, "type": RECORD_TYPE, "name": name},
            "structure": signed,
        },
        {
            "op": "add_relation",
            "identity": {"id": relation_id, "type": "Relation", "name": LINK_TYPE},
            "participants": [subject.id, record_id],
            "relation_type": LINK_TYPE,
        },
    ]


# ---- rules


def check_record(record: KObject, graph: Graph, keys: Keyring) -> Iterator[Diagnostic]:
    """ERRORs of one record as it stands: its form, signature, subject and link (not its successor)."""
    for fault in _faults(record.structure):
        yield _unfit(record, fault)
    if not verify(record, keys):
        yield broken(UNVERIFIED_PROVENANCE, record.id, _unverified(record, keys))
    subject_id = record.structure.get("subject_id")
    if isinstance(subject_id, str) and subject_id:
        if subject_id not in graph:
            problem = (
                f"its subject {quoted(subject_id)} does not exist: remove the record or keep the subject"
            )
            yield _unfit(record, problem, subject_id)
        yield from _check_link(record, subject_id, graph)


def check_introduced(record: KObject, parents: Sequence[Graph], after: Graph) -> Diagnostic | None:
    """The ERROR of a record that is new to every parent and was not made for its subject as it is in `after`.

    A record that some parent has, superseded or not, is history: its subject may have changed since.
    """
    subject_id = record.structure.get("subject_id")
    subject = after.get(subject_id) if isinstance(subject_id, str) else None
    if subject is None or record.structure.get("subject_hash") == subject.hash.hex():
        return None
    if any(_same_record(record, parent.readable(record.id)) for parent in parents):
        return None
    problem = (
        f"'subject_hash' {quoted(record.structure.get('subject_hash'))} is not the content of "
        f"{quoted(subject.id)} now ({subject.hash.hex()}): verify the source again"
    )
    return _unfit(record, problem, subject.id)


def _same_record(record: KObject, other: KObject | None) -> bool:
    """Equal in all but `superseded_by`."""
    if other is None or other.type != RECORD_TYPE:
        return False
    if record.structure.get("signature") != other.structure.get("signature"):
        return False
    return _signed_bytes(record.id, record.name, record.structure) == _signed_bytes(
        other.id, other.name, other.structure
    )


def _faults(fields: Mapping[str, Json]) -> Iterator[str]:
    for key in ("url", "final_url", "subject_id"):
        if not isinstance(fields.get(key), str) or not fields[key]:
            yield f"{key!r} must be a non-empty text, is {quoted(fields.get(key))}"
    via, status = fields.get("checked_via"), fields.get("http_status")
    if not isinstance(via, str) or via not in CHECKED_VIA:
        yield f"'checked_via' must be one of {', '.join(CHECKED_VIA)}, is {quoted(via)}"
    if not _verifies(status) and not (status is None and via == MANUAL_REVIEW):
        yield f"'http_status' must be a number from 200 to 299, is {quoted(status)}"
    hash = fields.get("subject_hash")
    if not isinstance(hash, str) or len(hash) != 64 or not set(hash) <= set("0123456789abcdef"):
        yield f"'subject_hash' must be 64 hex digits, is {quoted(hash)}"
    checked_at = fields.get("checked_at")
    try:
        parse_rfc3339(checked_at if isinstance(checked_at, str) else "")
    except ValueError:
        yield f"'checked_at' must be an RFC 3339 time, is {quoted(checked_at)}"


def _verifies(status: Json) -> bool:
    return isinstance(status, int) and not isinstance(status, bool) and 200 <= status <= 299


def _unverified(record: KObject, keys: Keyring) -> str:
    name = record.structure.get("key_id")
    advice = "records are made by 'verify_source' and kept as they are; remove this one and verify the source"
    if not record.structure.get("signature"):
        problem = "it is not signed"
    elif not isinstance(name, str) or name not in keys.keys:
        problem = f"it is signed with an unknown key {quoted(name)}"
    else:
        problem = "its signature does not fit its content"
    return f"VerificationRecord {quoted(record.id)}: {problem}; {advice}"


def _check_link(record: KObject, subject_id: str, graph: Graph) -> Iterator[Diagnostic]:
    found = (graph[id] for id in sorted(graph.referrers("participant", record.id)))
    links = [obj for obj in found if is_link(obj) and not _as_subject(record, obj, graph)]
    if len(links) == 1 and links[0].structure.get("participants") == [subject_id, record.id]:
        return
    wanted = f"one relation {LINK_TYPE!r} with participants {[subject_id, record.id]}"
    ids = [obj.id for obj in links]
    yield _unfit(record, f"needs exactly {wanted}; has {quoted_ids(ids) or 'none'}", *ids)


def is_link(obj: KObject | None) -> bool:
    """Whether this is a relation that joins a subject to its record."""
    return obj is not None and obj.structure.get("relation_type") == LINK_TYPE


def _as_subject(record: KObject, link: KObject, graph: Graph) -> bool:
    """Whether in this link the record is what another record verifies."""
    ends = link.structure.get("participants")
    if not isinstance(ends, list) or len(ends) != 2 or ends[0] != record.id or not isinstance(ends[1], str):
        return False
    other = graph.get(ends[1])
    return other is not None and other.type == RECORD_TYPE and other.structure.get("subject_id") == record.id


def concerned(id: str, versions: Iterable[KObject | None], graph: Graph) -> Iterator[str]:
    """Ids of other records whose link may break when object `id` has had these versions."""
    for obj in versions:
        if obj is None:
            continue
        ends = obj.structure.get("participants") if is_link(obj) else None
        near = list(ends) if isinstance(ends, list) else []
        if obj.type == RECORD_TYPE:
            near.append(obj.structure.get("subject_id"))
        for other in near:
            found = graph.readable(other) if isinstance(other, str) else None
            if found is not None and found.type == RECORD_TYPE and found.id != id:
                yield found.id


def _unfit(record: KObject, problem: str, *others: str) -> Diagnostic:
    return broken(
        VERIFICATION_RECORD, record.id, f"VerificationRecord {quoted(record.id)}: {problem}", *others
    )
