"""The answer to a lost race: a merge of what the caller sent with the head, for the caller to judge and publish."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cks_mcp.answers import fitting
from cks_mcp.merging import Candidate, LineRange, merge3
from cks_runtime.flow.documents import Archived, Documents
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.documents import BODY_BYTES_MAX, DocumentVersion
from cks_runtime.model.errors import InternalError
from cks_runtime.model.times import format_ms

WARNINGS_MAX = 40
INTERVENING_MAX = 50
WRITERS_SHOWN = 5
PART_BYTES = 12_000


@dataclass(frozen=True, slots=True)
class Proposal:
    """`fields` head the text in this order, `notes` follow them; `details` stand in the structured content only."""

    fields: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    body: str | None = None


async def candidate_for(documents: Documents, head: DocumentVersion, expected: int, body: str) -> Proposal:
    """Merge `body`, made from version `expected`, with `head`; a plain conflict when that version is not there.

    Writes nothing and looks once: a head that moves meanwhile is found by the publish that follows.
    """
    if head.version < 1:
        raise InternalError(
            f"The current version of {head.path!r} is {head.version}, which is not a positive number.",
            "Run `cks-mcp check`; restore the database from a copy.",
            current_version=head.version,
        )
    lost = {"your-version": expected, "current-version": head.version}
    base = "" if expected == 0 else None
    if 0 < expected < head.version:
        base = await documents.text_at(head.path, expected)
    if base is None:
        return Proposal({"status": "conflict", **lost, "reason": "base-missing"})
    ground, current = base, await documents.fetch(head.path, head.version)
    assert not isinstance(current, Archived), "an archived head is answered before"
    merged = await in_worker(lambda: merge3(ground, body, current.body))
    between = await documents.between(head.path, expected + 1, head.version, INTERVENING_MAX)
    warnings = _warnings(merged)
    return Proposal(
        fields={
            "status": "merge-candidate",
            **lost,
            "publish-at-version": head.version,
            "has-markers": merged.has_markers,
            "base-version": expected,
        },
        notes=_notes(merged, between, warnings),
        details=_details(merged, between, head.version - expected, warnings),
        body=merged.body,
    )


def _details(
    merged: Candidate, between: list[DocumentVersion], total: int, warnings: list[dict[str, Any]]
) -> dict[str, Any]:
    regions = [
        {
            "candidate": _range(region.candidate),
            "base": _range(region.base),
            "ours": _range(region.ours),
            "theirs": _range(region.theirs),
        }
        for region in merged.conflicts
    ]
    writers = [
        {
            "version": version.version,
            "author": version.author,
            "modified": format_ms(version.at_ms),
            "archived": version.archived,
        }
        for version in between
    ]
    shown = writers[: fitting(writers, PART_BYTES)][::-1]
    return {
        "marker_width": merged.marker_width,
        "conflicts": regions[: fitting(regions, PART_BYTES)],
        "conflicts_total": len(regions),
        "changes": {
            "ours": {"added": merged.changes.ours.added, "removed": merged.changes.ours.removed},
            "theirs": {"added": merged.changes.theirs.added, "removed": merged.changes.theirs.removed},
        },
        "intervening": shown,
        "intervening_total": total,
        "warnings": warnings[: fitting(warnings, PART_BYTES)],
    }


def _range(lines: LineRange) -> dict[str, int]:
    return {"first": lines.first, "last": lines.last}


def _warnings(merged: Candidate) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"code": warning.code, "lines": list(warning.lines[:20]), "text": warning.text[:400]}
        for warning in merged.warnings
    ]
    if (size := len(merged.body.encode())) > BODY_BYTES_MAX:
        text = f"The candidate has {size} bytes; only {BODY_BYTES_MAX} can be published."
        found.insert(0, {"code": "too-large", "lines": [], "text": text})
    return found[:WARNINGS_MAX]


def _notes(
    merged: Candidate, between: list[DocumentVersion], warnings: list[dict[str, Any]]
) -> dict[str, Any]:
    """What readers of the text alone need to judge the candidate."""
    names = [f"v{version.version} {version.author}" for version in between[:WRITERS_SHOWN]]
    ours, theirs = merged.changes.ours, merged.changes.theirs
    notes: dict[str, Any] = {
        "marker-width": merged.marker_width if merged.has_markers else None,
        "conflicts": len(merged.conflicts) or None,
        "changes-ours": f"+{ours.added} -{ours.removed}",
        "changes-theirs": f"+{theirs.added} -{theirs.removed}",
        "intervening": ", ".join(names) + (", …" if len(between) > WRITERS_SHOWN else ""),
        "warnings": len(warnings) or None,
    }
    for number, warning in enumerate(warnings, 1):
        lines = " ".join(str(line) for line in warning["lines"])
        notes[f"warning-{number}"] = f"{warning['code']}, lines {lines or '-'}: {warning['text']}"
    return notes
