"""Run the simulator: `python -m tests.sim --seeds 1000` checks seeds and prints figures; `--seed N` replays one."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback

from tests.sim.world import Figures, Weather, World


def run(seed: int) -> tuple[int, Figures | None, str]:
    """One seed's figures, or what went wrong."""
    world = World(seed, Weather.of(seed))
    try:
        world.live()
    except Exception:
        return seed, None, traceback.format_exc()
    return seed, world.figures, ""


def measured(task: tuple[int, int]) -> Figures:
    """Figures of a calm world of so many replicas, whose edits seldom clash."""
    seed, replicas = task
    world = World(
        seed,
        Weather(replicas, 20, loss=0.0, duplicates=0.0, partition=0.0, restart=0.0, edits=0.2, objects=60),
    )
    world.live()
    return world.figures


def share(values: list[int], part: float) -> int:
    """The value below which `part` of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else 0


def main() -> None:
    """Exit code 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    began = time.monotonic()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    failed, slow, edits, versions, conflicts, rounds = [], 0, 0, 0, 0, []
    with multiprocessing.Pool(args.jobs) as pool:
        for seed, figures, error in pool.imap_unordered(run, seeds):
            if figures is None:
                failed.append(seed)
                print(f"seed {seed} failed:\n{error}")
                continue
            rounds.append(figures.to_equal)
            slow += figures.to_equal > 10
            edits += figures.edits
            conflicts += figures.conflicts
            versions += figures.versions
        took = time.monotonic() - began
        print(f"{len(rounds)} seeds hold, {len(failed)} fail {sorted(failed)[:20]} ({took:.0f} s)")
        print(
            f"equal after healing: p50 {share(rounds, 0.5)}, p99 {share(rounds, 0.99)}, most {max(rounds, default=0)}"
            f" rounds; {slow} seeds over 10"
        )
        print(f"versions per edit: {versions / max(edits, 1):.2f}; {conflicts} conflicts")
        if args.seed is None:
            for replicas in (2, 3, 8, 16):
                table(pool.map(measured, [(seed, replicas) for seed in range(20)]), replicas)
    sys.exit(1 if failed else 0)


def table(found: list[Figures], replicas: int) -> None:
    """Print one line of figures."""
    readable = [rounds for figures in found for rounds in figures.readable]
    equal = [figures.to_equal for figures in found]
    versions = sum(f.versions for f in found) / max(1, sum(f.edits for f in found))
    print(
        f"{replicas:2d} replicas: readable elsewhere p50 {share(readable, 0.5)}, p95 {share(readable, 0.95)};"
        f" equal p50 {share(equal, 0.5)}, p95 {share(equal, 0.95)}; versions per edit {versions:.2f}"
    )


if __name__ == "__main__":
    main()
