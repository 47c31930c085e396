"""The merge of three texts, from cutting off what they share to the candidate."""

from cks_mcp.merging.candidate import Candidate, Changes, LineRange, Region, SideChanges
from cks_mcp.merging.check import explains, sound
from cks_mcp.merging.diff import Hunk, diff, intern
from cks_mcp.merging.diff3 import Chunk, Texts, chunks_of, judged
from cks_mcp.merging.lines import join, split, window
from cks_mcp.merging.markers import Place, Style, render, uses_crlf, width_for
from cks_mcp.merging.myers import Budget
from cks_mcp.merging.scene import Scene
from cks_mcp.merging.warnings import warnings_of


def merge3(base: str, ours: str, theirs: str) -> Candidate:
    """Merge two texts made from one base, line by line.

    Lines end at LF only and every byte of them is kept. Never raises; time and memory are bounded by the
    length of the texts. Swapping the sides swaps the answer.
    """
    cut = window(base, ours, theirs)
    texts = Texts(split(cut.cut(base)), split(cut.cut(ours)), split(cut.cut(theirs)))
    numbers = intern(*texts)
    o_hunks, t_hunks = (diff(numbers[0], side, Budget(len(numbers[0]) + len(side))) for side in numbers[1:])
    chunks = _chunks(texts, numbers, o_hunks, t_hunks)
    marked = any(chunk.kind == "conflict" for chunk in chunks)
    style = Style(0, "")
    if marked:
        style = Style(width_for(ours, theirs), "\r" if uses_crlf(ours, theirs) else "")
    rendered = render(texts, chunks, style)
    head, tail = base[: cut.head], base[len(base) - cut.tail :]
    scene = Scene(texts, chunks, rendered, head, tail)
    return Candidate(
        body=head + join(rendered.lines) + tail,
        has_markers=marked,
        marker_width=style.width,
        conflicts=tuple(_region(place, scene.skipped) for place in rendered.places),
        changes=Changes(_side_changes(o_hunks), _side_changes(t_hunks)),
        warnings=warnings_of(scene, base, ours, theirs),
    )


def merge_text(base: str, ours: str, theirs: str) -> tuple[str, bool]:
    """The merged text and whether it has conflict markers."""
    candidate = merge3(base, ours, theirs)
    return candidate.body, candidate.has_markers


def _chunks(texts: Texts, numbers: list[list[int]], ours: list[Hunk], theirs: list[Hunk]) -> list[Chunk]:
    base, o_numbers, t_numbers = numbers
    if explains(base, o_numbers, ours) and explains(base, t_numbers, theirs):
        return sound(texts, chunks_of(texts, ours, theirs))
    return [judged(texts, (0, len(texts.base), 0, len(texts.ours), 0, len(texts.theirs)))]


def _region(place: Place, skipped: int) -> Region:
    chunk, block, first, end = place
    return Region(
        candidate=_lines(first, end, skipped),
        base=_lines(chunk.b0, chunk.b1, skipped),
        ours=_lines(block.o0, block.o0 + len(block.ours), skipped),
        theirs=_lines(block.t0, block.t0 + len(block.theirs), skipped),
    )


def _lines(start: int, end: int, skipped: int) -> LineRange:
    return LineRange(start + skipped + 1, end + skipped)


def _side_changes(hunks: list[Hunk]) -> SideChanges:
    return SideChanges(
        added=sum(b1 - b0 for _, _, b0, b1 in hunks), removed=sum(a1 - a0 for a0, a1, _, _ in hunks)
    )
