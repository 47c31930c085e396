"""`python -m sweepers`: ready for a signal before anything slow is imported."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # until the program runs and listens itself
        signal.signal(number, lambda *_: os._exit(0))

    from sweepers.program import main

    main()
