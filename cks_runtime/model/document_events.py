"""The fact that a document has a new version."""

from __future__ import annotations

from typing import Literal

from cks_runtime.model.events import Event


class DocumentPublished(Event):
    """The document at `path` went to `version`; `content_hash` and `hash` (of the chain) in hex."""

    kind: Literal["DocumentPublished"] = "DocumentPublished"
    path: str
    version: int
    author: str = ""
    archived: bool = False
    content_hash: str
    hash: str
