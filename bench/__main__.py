"""`python -m bench [name …]`: every benchmark in turn, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HELPERS = {"__init__", "__main__", "report"}


def main() -> int:
    """Names are modules of this folder; without names, all of them. Exit code 0 unless one could not run."""
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)
    wanted = sys.argv[1:] or known
    failed = [name for name in wanted if name not in known]
    for name in wanted:
        if name in known:
            print(f"— {name}", flush=True)
            if subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode:
                failed.append(name)
    if failed:
        print("could not run: " + ", ".join(failed) + "; known: " + ", ".join(known))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
