"""What a three-way merge answers: the text, where it is in conflict, and what to look at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines `first` to `last` of a text, counted from 1, both included; an empty range has last = first - 1."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Region:
    """One conflict: its lines in the candidate (markers included) and what they were made from."""

    candidate: LineRange
    base: LineRange
    ours: LineRange
    theirs: LineRange


@dataclass(frozen=True, slots=True)
class SideChanges:
    """Lines that one side added to the base and removed from it; a changed line counts as both."""

    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What each side did to the base."""

    ours: SideChanges
    theirs: SideChanges


@dataclass(frozen=True, slots=True)
class MergeWarning:
    """A hint for whoever reviews the candidate: `lines` are line numbers of the candidate, counted from 1."""

    code: str
    lines: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A merged text. `marker_width` is the length of the conflict markers in it, 0 where it has none."""

    body: str
    has_markers: bool
    marker_width: int
    conflicts: tuple[Region, ...]
    changes: Changes
    warnings: tuple[MergeWarning, ...]
