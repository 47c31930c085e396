"""How long does a merge take against git's own, on documents and on texts made to hurt, and how many conflicts?

The rival is libgit2 in this process where its library is found (pygit2 carries it), else `git merge-file` with
the cost of an empty merge taken off. Times are processor time, the median of paired runs.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from bench.report import line
from cks_mcp.merging import merge3

Texts = tuple[str, str, str]
Merge = Callable[[str, str, str], str]
Rival = Callable[[str, str, str], tuple[float, str]]
"""Seconds of processor time and the merged text."""

PATHOLOGICAL_SIZE = 20_000
BLOCKS_LIMIT = 1.1
OPENING = re.compile(r"^<{7,} ", re.MULTILINE)


def document(size: int) -> list[str]:
    """A list with an empty line after every fourth item."""
    seeds = random.Random(1)
    return ["" if k % 5 == 4 else f"- item {_words(seeds)}" for k in range(size)]


def edited(lines: list[str], percent: int, seed: int) -> list[str]:
    """Some per cent of the lines replaced (three of five), deleted or followed by a new one (one of five each)."""
    seeds = random.Random(seed)
    chosen = set(seeds.sample(range(len(lines)), len(lines) * percent // 100))
    out: list[str] = []
    for k, old in enumerate(lines):
        what = seeds.random() if k in chosen else 2.0
        if what >= 0.8:
            out.append(old)
        if what < 0.6 or 0.8 <= what < 1:
            out.append(f"- edit {_words(seeds)}")
    return out


def _words(seeds: random.Random) -> str:
    return " ".join(f"{seeds.getrandbits(20):x}" for _ in range(5))


def _shuffled(lines: list[str], seed: int) -> list[str]:
    mixed = lines[:]
    random.Random(seed).shuffle(mixed)
    return mixed


def mixed_edits(size: int, percent: int) -> Texts:
    base = document(size)
    return _texts(base, edited(base, percent, 2), edited(base, percent, 3))


def pathological() -> dict[str, Texts]:
    """Texts that give a comparison of lines nothing, or far too much, to hold on to."""
    size = PATHOLOGICAL_SIZE
    same, period = ["x"] * size, [f"p{k % 7}" for k in range(size)]
    unique = [f"line {k}" for k in range(size)]
    letters = [random.Random(k).choice("abcd") for k in range(size)]
    return {
        "all equal": _texts(same, ["A", *same, *same[:200]], [*same[400:], "B"]),
        "all equal, 10 % edited": _texts(same, edited(same, 10, 2), edited(same, 10, 3)),
        "nothing in common": _texts(*([f"{name}{k}" for k in range(size)] for name in "bot")),
        "periodic, shifted": _texts(period, [*period[3:], "q"], ["r", *period[:-2]]),
        "periodic, 10 % edited": _texts(period, edited(period, 10, 2), edited(period, 10, 3)),
        "shuffled": _texts(unique, _shuffled(unique, 4), _shuffled(unique, 5)),
        "shuffled, each line 40 times": _texts(
            *(
                [f"line {k % 500}" for k in range(size)],
                _shuffled([f"line {k % 500}" for k in range(size)], 4),
            ),
            _shuffled([f"line {k % 500}" for k in range(size)], 5),
        ),
        "reversed": _texts(unique, unique[::-1], edited(unique, 1, 3)),
        "four letters, 1 % edited": _texts(letters, edited(letters, 1, 2), edited(letters, 1, 3)),
    }


def one_byte_lines() -> Texts:
    """One MiB of lines of one letter, one in a hundred edited by each side."""
    seeds = random.Random(9)
    base = [seeds.choice("abcd") for _ in range(1 << 19)]
    ours, theirs = ([seeds.choice("efgh") if seeds.random() < 0.01 else x for x in base] for _ in range(2))
    return _texts(base, ours, theirs)


def _texts(base: list[str], ours: list[str], theirs: list[str]) -> Texts:
    b, o, t = ("".join(x + "\n" for x in lines) for lines in (base, ours, theirs))
    return b, o, t


def rival() -> tuple[str, Rival]:
    path = ctypes.util.find_library("git2")
    found = find_spec("pygit2")
    if found is not None and found.origin is not None:
        carried = Path(found.origin).parents[1].glob("pygit2.libs/libgit2*")
        path = next(map(str, carried), path)
    return ("libgit2", _timed(_libgit2(path))) if path else ("git merge-file", _git)


def _timed(merge: Merge) -> Rival:
    def run(base: str, ours: str, theirs: str) -> tuple[float, str]:
        began = time.process_time()
        body = merge(base, ours, theirs)
        return time.process_time() - began, body

    return run


class _Input(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("ptr", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("path", ctypes.c_char_p),
        ("mode", ctypes.c_uint),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("automergeable", ctypes.c_uint),
        ("path", ctypes.c_char_p),
        ("mode", ctypes.c_uint),
        ("ptr", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
    )


def _libgit2(path: str) -> Merge:
    library = ctypes.CDLL(path)
    library.git_libgit2_init()

    def merge(base: str, ours: str, theirs: str) -> str:
        data = [text.encode() for text in (base, ours, theirs)]
        inputs = [ctypes.byref(_Input(1, text, len(text), b"doc.md", 0o100644)) for text in data]
        result = _Result()
        if library.git_merge_file(ctypes.byref(result), *inputs, None):
            raise RuntimeError("git_merge_file failed")
        body = ctypes.string_at(result.ptr, result.len).decode() if result.len else ""
        library.git_merge_file_result_free(ctypes.byref(result))
        return body

    return merge


def _git(base: str, ours: str, theirs: str) -> tuple[float, str]:
    body, seconds = _git_once(base, ours, theirs)
    _, empty = _git_once("", "", "")
    return max(seconds - empty, 1e-4), body


def _git_once(base: str, ours: str, theirs: str) -> tuple[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for file, text in zip(files, (ours, base, theirs), strict=True):
            file.write_text(text, newline="")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run(["git", "merge-file", "-p", *files], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return run.stdout.decode(), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(texts: Texts, against: Rival, rounds: int) -> tuple[float, float, float]:
    """Median seconds, median ratio to the rival, and conflict blocks for each of the rival's."""
    own = _timed(lambda *given: merge3(*given).body)
    spent: list[float] = []
    ratios: list[float] = []
    blocks = 1.0
    for _ in range(rounds):
        seconds, body = own(*texts)
        other, other_body = against(*texts)
        spent.append(seconds)
        ratios.append(seconds / other)
        blocks = len(OPENING.findall(body)) / max(1, len(OPENING.findall(other_body)))
    return statistics.median(spent), statistics.median(ratios), blocks


def peak_mib() -> float:
    """The most memory that a process held which did nothing but merge one MiB of one-byte lines."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.diff3", "--memory"], capture_output=True, check=True, text=True
    )
    return float(done.stdout)


def _report_memory() -> None:
    merge3(*one_byte_lines())
    status = Path("/proc/self/status").read_text()  # ru_maxrss would count what the parent held
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def main() -> None:
    name, against = rival()
    for size, limit, rounds in ((1_000, 15, 41), (10_000, 8, 21), (100_000, 12, 5)):
        for percent in (1, 10):
            seconds, ratio, blocks = measured(mixed_edits(size, percent), against, rounds)
            label = f"{size:,} lines, {percent} % edited by both, times {name}"
            line(label, ratio, f"<= {limit}", ratio <= limit, f"{seconds * 1000:.1f} ms")
            line("  conflict blocks for each of git's", blocks, f"<= {BLOCKS_LIMIT}", blocks <= BLOCKS_LIMIT)
    for label, texts in pathological().items():
        seconds, ratio, _ = measured(texts, against, 5)
        ok = ratio <= 20 and seconds <= 0.4
        line(f"20,000 lines, {label}, times {name}", ratio, "<= 20", ok, f"{seconds * 1000:.1f} of 400 ms")
    seconds, _, _ = measured(one_byte_lines(), against, 1)
    line("1 MiB of one-byte lines, 1 % edited by both, seconds", seconds, "<= 5", seconds <= 5)
    peak = peak_mib()
    line("  memory of the whole process at its peak, MiB", peak, "<= 200", peak <= 200)


if __name__ == "__main__":
    _report_memory() if "--memory" in sys.argv else main()
