"""Three-way merge of texts: pure, standard library only, no other part of the project."""

from cks_mcp.merging.candidate import Candidate, Changes, LineRange, MergeWarning, Region, SideChanges
from cks_mcp.merging.merge import merge3, merge_text

__all__ = [
    "Candidate",
    "Changes",
    "LineRange",
    "MergeWarning",
    "Region",
    "SideChanges",
    "merge3",
    "merge_text",
]
